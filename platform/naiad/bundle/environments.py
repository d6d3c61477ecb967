"""The environments of a bundle: each is one archive in the bundle, however many models name it."""

from __future__ import annotations

import os
from pathlib import Path

from naiad.config.model.environment_source import EnvironmentSource, redact
from naiad.environments.archives.archive_writer import OutputMember
from naiad.environments.archives.inspection import inspect_environment
from naiad.environments.archives.manifest import Manifest, host_platform, read_manifest
from naiad.environments.archives.signatures import SIGNATURE_SUFFIX
from naiad.environments.building.pack import pack
from naiad.environments.fetching.download import download
from naiad.environments.progress import ProgressReporter
from naiad.environments.store.archive_digest import digest_of
from naiad.errors import BundleError

__all__ = ["ENVIRONMENTS_FOLDER", "BundledEnvironments"]

ENVIRONMENTS_FOLDER = "environments"
_SHOWN_DIGITS = 12


class BundledEnvironments:
    """Collects the environments that models and backends name.

    Args:
        scratch: Folder for packed and downloaded archives.
        reporter: Receives the progress.
        signed: Whether the server will require signatures (`--env-trust`).

    Attributes:
        members: Archives and signatures, by path in the bundle.
        sources: Collected files and folders of this machine; models that contain one are copied without it.
        facts: Origin and SHA-256 of each environment, by path in the bundle.
        manifests: Manifests of the environments that have one, by path in the bundle.
    """

    def __init__(self, scratch: Path, reporter: ProgressReporter, *, signed: bool = False) -> None:
        self._scratch = scratch
        self._reporter = reporter
        self._signed = signed
        self._paths: dict[str, str] = {}
        self.members: dict[str, OutputMember] = {}
        self.sources: set[Path] = set()
        self.facts: dict[str, dict[str, str]] = {}
        self.manifests: dict[str, Manifest] = {}

    def add(self, source: Path | EnvironmentSource, origin: str) -> str:
        """Collect an environment unless it is collected already; returns its path in the bundle.

        Args:
            source: The environment.
            origin: The setting that names it, for errors.

        Raises:
            BundleError: If it is for another platform, or its digest or signature is not the required one.
            ExecutionEnvironmentError: If it cannot be read, packed or downloaded.
        """
        named = source if isinstance(source, EnvironmentSource) else EnvironmentSource(path=source)
        key = f"{os.path.realpath(named.path) if named.path is not None else named.uri}@{named.digest}"
        if key not in self._paths:
            self._paths[key] = self._collect(named, origin)
        return self._paths[key]

    def _collect(self, named: EnvironmentSource, origin: str) -> str:
        archive, label = self._archive(named, origin)
        digest = digest_of(archive, self._scratch / "index", reporter=self._reporter)
        if named.digest and digest != named.digest:
            raise BundleError(
                f"{origin}: cannot use {label}: its SHA-256 is {digest}, and the configuration requires {named.digest}"
            )
        manifest = read_manifest(archive)
        if manifest is not None and manifest.platform != host_platform():
            raise BundleError(
                f"{origin}: cannot use the execution environment {label}: it is for {manifest.platform}, and the "
                f"server of this bundle is for {host_platform()}; make the bundle on a {manifest.platform} machine"
            )
        path = f"{ENVIRONMENTS_FOLDER}/{digest[:_SHOWN_DIGITS]}-{archive.name}"
        if path not in self.members:
            self.members[path] = OutputMember(name=path, source=archive)
            # Only the name of a path: its folders would make bundles of two machines differ.
            self.facts[path] = {"from": label if named.path is None else named.path.name, "sha256": digest}
            if manifest is not None:
                self.manifests[path] = manifest
        signature = archive.with_name(archive.name + SIGNATURE_SUFFIX)
        if signature.is_file():
            self.members[path + SIGNATURE_SUFFIX] = OutputMember(name=path + SIGNATURE_SUFFIX, source=signature)
            self.sources.add(signature.resolve())
        elif self._signed:
            raise BundleError(
                f"{origin}: cannot use {label}: --env-trust requires signatures, and {signature.name} is missing; "
                "sign it with `naiad env sign`"
            )
        return path

    def _archive(self, named: EnvironmentSource, origin: str) -> tuple[Path, str]:
        """An archive of the environment, and its name for messages; packs folders and downloads URIs."""
        if named.path is None:
            name = named.uri.partition("?")[0].rpartition("/")[2] or "environment"
            archive = self._scratch / str(len(self._paths)) / name
            download(named.uri, archive, reporter=self._reporter)
            return archive, redact(named.uri)
        path = Path(os.path.realpath(named.path))
        self.sources.add(path)
        if not path.is_dir():
            return path, str(named.path)
        if self._signed or named.digest:
            raise BundleError(
                f"{origin}: cannot check the execution environment {named}: it is a directory, and only archives have "
                "a digest and signatures; pack it with `naiad env pack`, and sign the archive"
            )
        # Packing takes minutes; a directory without an interpreter fails here, before that.
        inspect_environment(str(path), self._scratch / "store", self._reporter)
        archive = self._scratch / str(len(self._paths)) / f"{path.name}.tar.zst"
        pack(path, archive, reporter=self._reporter)
        return archive, str(named.path)
