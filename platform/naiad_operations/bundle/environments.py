"""The environments of a bundle: each is one archive in the bundle, however many models name it."""

from __future__ import annotations

import json
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path

from packaging.specifiers import SpecifierSet

from naiad.config.model.declared_environment import is_declaration
from naiad.config.model.environment_source import EnvironmentSource, redact
from naiad.core.errors import BundleError
from naiad.core.real_paths import real_path
from naiad.core.signatures import SIGNATURE_SUFFIX
from naiad.environments.archives.archive_writer import OutputMember
from naiad.environments.archives.manifest import Manifest, host_platform, read_manifest
from naiad.environments.fetching.download import download
from naiad.environments.manager import EnvironmentManager
from naiad.environments.progress import ProgressReporter
from naiad.environments.store.archive_digest import digest_of
from naiad.environments.store.inspection import inspect_environment
from naiad_building.declared.declaration import is_locked
from naiad_building.pack import pack
from naiad_operations.bundle.records import PushRecords, StaleRecordError, state_of_environment

ENVIRONMENTS_FOLDER = "environments"
_SHOWN_DIGITS = 12
_SYSTEM_FOLDERS = frozenset({"/", "/usr", "/usr/local"})
# Name of each archive of a declared environment: models that declare the same packages in other files share it.
_DECLARED_NAME = "packages.tar.zst"


@dataclass(frozen=True, slots=True, kw_only=True)
class _LaterArchive:
    """An archive of a folder that is packed only if somebody reads it."""

    prefix: Path
    digest: str
    manifest: Manifest


@dataclass(slots=True)
class BundledEnvironments:
    """Collects the environments that models and backends name."""

    scratch: Path
    reporter: ProgressReporter
    manager: EnvironmentManager
    _: KW_ONLY
    signed: bool = False
    folder: str = ENVIRONMENTS_FOLDER
    has_own_folders: bool = False  # whether each archive is in its own folder, with its signature
    is_for_any_platform: bool = False
    records: PushRecords = field(default_factory=lambda: PushRecords(None))  # what earlier calls have found out
    members: dict[str, OutputMember] = field(default_factory=dict)
    sources: set[Path] = field(default_factory=set)
    # Origin and SHA-256 of each environment, by path in the bundle.
    facts: dict[str, dict[str, str]] = field(default_factory=dict)
    manifests: list[Manifest] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    _later: dict[Path, _LaterArchive] = field(default_factory=dict)
    _paths: dict[str, str] = field(default_factory=dict)
    _packed: dict[Path, Path] = field(default_factory=dict)
    _digests: dict[Path, str] = field(default_factory=dict)

    def add(self, source: Path | EnvironmentSource, origin: str, python: SpecifierSet | None = None) -> str:
        """Collect an environment once; returns its path in the bundle. BundleError for another platform or content."""
        named = source if isinstance(source, EnvironmentSource) else EnvironmentSource(path=source)
        if named.is_interpreter:
            named = EnvironmentSource(path=self._folder_of(named, origin))
        key = f"{real_path(named.path) if named.path is not None else named.uri}@{named.digest}"
        if named.path is not None and is_declaration(named.path):
            key += f" {python or ''}"
        if key not in self._paths:
            self._paths[key] = self._collect(named, origin, python)
        return self._paths[key]

    def _collect(self, named: EnvironmentSource, origin: str, python: SpecifierSet | None) -> str:
        archive, label = self._archive(named, origin, python)
        later = self._later.get(archive)
        digest = self._digests.get(archive) or digest_of(
            archive, (self.records.folder or self.scratch) / "index", reporter=self.reporter
        )
        if named.digest and digest != named.digest:
            raise BundleError(
                f"{origin}: cannot use {label}: its SHA-256 is {digest}, and the configuration requires {named.digest}"
            )
        manifest = read_manifest(archive) if later is None else later.manifest
        if manifest is not None and manifest.platform != host_platform() and not self.is_for_any_platform:
            raise BundleError(
                f"{origin}: cannot use the execution environment {label}: it is for {manifest.platform}, and the "
                f"server of this bundle is for {host_platform()}; make the bundle on a {manifest.platform} machine"
            )
        shown = digest[:_SHOWN_DIGITS]
        path = f"{self.folder}/{shown}-{archive.name}"
        if self.has_own_folders:
            path = f"{self.folder}/{shown}-{archive.name.partition('.')[0]}/{archive.name}"
        if path not in self.members:
            self.members[path] = OutputMember(name=path, source=archive)
            # Only the name of a path: its folders would make bundles of two machines differ.
            self.facts[path] = {"from": label if named.path is None else named.path.name, "sha256": digest}
            if manifest is not None:
                self.manifests.append(manifest)
        signature = archive.with_name(archive.name + SIGNATURE_SUFFIX)
        if signature.is_file():
            self.members[path + SIGNATURE_SUFFIX] = OutputMember(name=path + SIGNATURE_SUFFIX, source=signature)
            self.sources.add(real_path(signature))
        elif self.signed:
            raise BundleError(
                f"{origin}: cannot use {label}: --env-trust requires signatures, and {signature.name} is missing; "
                "sign it with `naiad env sign`"
            )
        return path

    def _folder_of(self, named: EnvironmentSource, origin: str) -> Path:
        prefix = self.manager.prepare(named).prefix
        if str(prefix) in _SYSTEM_FOLDERS:
            raise BundleError(
                f"{origin}: cannot bundle the interpreter {named}: its packages are in {prefix}, with the rest of this "
                "system; make a venv or a conda environment with the packages of the model, and name that"
            )
        return prefix

    def _built(self, named: EnvironmentSource, python: SpecifierSet | None) -> Path:
        """An archive of an environment that a file declares: built from its lock, and packed with its interpreter."""
        assert named.path is not None
        ready = self.manager.prepare(named, python=python)  # kept while it is packed: it has a lease on the entry
        if ready.prefix not in self._packed:
            archive = self.scratch / str(len(self._paths)) / _DECLARED_NAME
            self._pack(ready.prefix, archive, is_checked=True)
            self._packed[ready.prefix] = archive
        if not is_locked(named.path, ready.version):
            self.notes.append(
                f"{named.path} has no lock, so its packages were resolved now; `naiad lock {named.path}` writes one, "
                "and keeps their versions the next time"
            )
        return self._packed[ready.prefix]

    def _archive(self, named: EnvironmentSource, origin: str, python: SpecifierSet | None) -> tuple[Path, str]:
        """An archive of the environment, and its name for messages; packs folders and downloads URIs."""
        if named.path is None:
            name = named.uri.partition("?")[0].rpartition("/")[2] or "environment"
            archive = self.scratch / str(len(self._paths)) / name
            download(named.uri, archive, reporter=self.reporter)
            return archive, redact(named.uri)
        if is_declaration(named.path):
            return self._built(named, python), str(named.path)
        path = real_path(named.path)
        self.sources.add(path)
        if not path.is_dir():
            return path, str(named.path)
        if self.signed or named.digest:
            raise BundleError(
                f"{origin}: cannot check the execution environment {named}: it is a directory, and only archives have "
                "a digest and signatures; pack it with `naiad env pack`, and sign the archive"
            )
        archive = self.scratch / str(len(self._paths)) / f"{path.name}.tar.zst"
        self._pack(path, archive, is_checked=False)
        return archive, str(named.path)

    def _pack(self, prefix: Path, archive: Path, *, is_checked: bool) -> None:
        """Pack a folder, unless it is known what its archive will be: then `provide` packs it if it is needed."""
        name, state = f"archive of {prefix}", state_of_environment(prefix) if self.records.folder else ""
        known = self.records.find(name, state)
        if known is not None:
            self._digests[archive] = known["digest"]
            self._later[archive] = _LaterArchive(
                prefix=prefix, digest=known["digest"], manifest=Manifest.from_json(known["manifest"])
            )
            return
        if not is_checked:  # packing takes minutes; a directory without an interpreter fails before that
            inspect_environment(str(prefix), self.scratch / "store", self.reporter)
        packed = pack(prefix, archive, reporter=self.reporter)
        self._digests[archive] = packed.digest
        if state and state == state_of_environment(prefix):
            self.records.remember(
                name, state, {"digest": packed.digest, "manifest": json.loads(packed.manifest.as_bytes())}
            )

    def provide(self, archive: Path | None) -> None:
        """Pack the archive now if that was left out; StaleRecordError if it is another one than was known."""
        later = None if archive is None else self._later.pop(archive, None)
        if archive is not None and later is not None:
            packed = pack(later.prefix, archive, reporter=self.reporter)
            if packed.digest != later.digest:
                raise StaleRecordError(
                    f"cannot use what is known of {later.prefix}: its archive is {packed.digest}, not {later.digest}"
                )
