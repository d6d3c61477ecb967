"""The environments of a bundle: each an archive of its own, once, whatever names it."""

from __future__ import annotations

import os
from pathlib import Path

from naiad.config.model.environment_source import EnvironmentSource, shown
from naiad.environments.archives.archive_writer import Packed
from naiad.environments.archives.inspection import inspect_environment
from naiad.environments.archives.manifest import Manifest, host_platform, read_manifest
from naiad.environments.archives.signatures import SIGNATURE_SUFFIX
from naiad.environments.building.pack import pack
from naiad.environments.fetching.download import download
from naiad.environments.progress import Reporter
from naiad.environments.store.archive_digest import digest_of
from naiad.errors import BundleError

__all__ = ["ENVIRONMENTS_FOLDER", "BundledEnvironments"]

ENVIRONMENTS_FOLDER = "environments"
_SHOWN_DIGITS = 12


class BundledEnvironments:
    """Collects environments as they are named.

    Args:
        scratch: A folder for what is packed and downloaded.
        reporter: Whoever shows progress.
        signed: Whether the server will want signatures.
    """

    def __init__(self, scratch: Path, reporter: Reporter, *, signed: bool = False) -> None:
        self._scratch = scratch
        self._reporter = reporter
        self._signed = signed
        self._paths: dict[str, str] = {}
        self.members: dict[str, Packed] = {}
        self.sources: set[Path] = set()
        """What of this machine was taken in: it need not travel a second time, inside of a model."""
        self.facts: dict[str, dict[str, str]] = {}
        self.manifests: dict[str, Manifest] = {}

    def add(self, source: Path | EnvironmentSource, origin: str) -> str:
        """Take an environment in; its path in the bundle.

        Args:
            source: Where it is.
            origin: Who names it, for errors.

        Raises:
            BundleError: If it is not for this platform, or not the one that is asked for.
            ExecutionEnvironmentError: If it cannot be read, packed or downloaded.
        """
        named = source if isinstance(source, EnvironmentSource) else EnvironmentSource(path=source)
        key = f"{os.path.realpath(named.path) if named.path is not None else named.uri}@{named.digest}"
        if key not in self._paths:
            self._paths[key] = self._take(named, origin)
        return self._paths[key]

    def _take(self, named: EnvironmentSource, origin: str) -> str:
        archive, label = self._archive(named, origin)
        digest = digest_of(archive, self._scratch / "index", reporter=self._reporter)
        if named.digest and digest != named.digest:
            raise BundleError(f"{origin}: the SHA-256 of {label} is {digest}, pinned is {named.digest}")
        manifest = read_manifest(archive)
        if manifest is not None and manifest.platform != host_platform():
            raise BundleError(
                f"{origin}: the execution environment {label} is for {manifest.platform}, the server of this bundle is "
                f"for {host_platform()}; make the bundle on a machine of the environment's kind"
            )
        path = f"{ENVIRONMENTS_FOLDER}/{digest[:_SHOWN_DIGITS]}-{archive.name}"
        if path not in self.members:
            self.members[path] = Packed(name=path, source=archive)
            # Of a path, the name: the folders are this machine's, and the same bundle may be made in others.
            self.facts[path] = {"from": label if named.path is None else named.path.name, "sha256": digest}
            if manifest is not None:
                self.manifests[path] = manifest
        signature = archive.with_name(archive.name + SIGNATURE_SUFFIX)
        if signature.is_file():
            self.members[path + SIGNATURE_SUFFIX] = Packed(name=path + SIGNATURE_SUFFIX, source=signature)
            self.sources.add(signature.resolve())
        elif self._signed:
            raise BundleError(f"{origin}: the server wants signatures (--env-trust), and {label} has none beside it")
        return path

    def _archive(self, named: EnvironmentSource, origin: str) -> tuple[Path, str]:
        """A file with the environment, and what to call it."""
        if named.path is None:
            name = named.uri.partition("?")[0].rpartition("/")[2] or "environment"
            archive = self._scratch / str(len(self._paths)) / name
            download(named.uri, archive, reporter=self._reporter)
            return archive, shown(named.uri)
        path = Path(os.path.realpath(named.path))
        self.sources.add(path)
        if not path.is_dir():
            return path, str(named.path)
        if self._signed or named.digest:
            raise BundleError(
                f"{origin}: the execution environment {named} is a directory, and only archives have a digest and "
                "signatures; pack it with `naiad env pack`, and sign that"
            )
        # Told before minutes of packing: a directory without an interpreter, for one.
        inspect_environment(str(path), self._scratch / "store", self._reporter)
        archive = self._scratch / str(len(self._paths)) / f"{path.name}.tar.zst"
        pack(path, archive, reporter=self._reporter)
        return archive, str(named.path)
