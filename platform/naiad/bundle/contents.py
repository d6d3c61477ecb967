"""The models and backends of a bundle, as its members."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from packaging.specifiers import SpecifierSet

from naiad.bundle.environments import BundledEnvironments
from naiad.bundle.rewriting import rewrite_backend, rewrite_config
from naiad.config.model.model_config import freeze
from naiad.config.server.backend_settings import shipped_backends
from naiad.config.server.options import ServerOptions
from naiad.environments.archives.archive_writer import OutputMember
from naiad.errors import BundleError
from naiad.interpreters.versions import PythonVersion, matches, version_text
from naiad.repository.layout import ModelFiles, available_versions, versions_to_load
from naiad.repository.read import read_config
from naiad.repository.repositories import open_repositories
from naiad.resolution.decision import Resolution, ResolutionSettings
from naiad.resolution.environment_names import Places, locate
from naiad.resolution.files import RealFiles
from naiad.resolution.manifest import BACKEND_MANIFEST, read_backend_manifest
from naiad.resolution.resolve import resolve
from naiad.resolution.settings import resolution_settings

__all__ = ["Contents", "collect_contents"]

_NOT_TAKEN = frozenset({"__pycache__", ".git"})
_KEEP = ".keep"
_CONFIGURATION = "config.pbtxt"


@dataclass(slots=True)
class Contents:
    """What was collected.

    Attributes:
        members: Files by path in the bundle.
        repositories: Folders of models in the bundle, in order.
        backends: Folders of backends.
        models: Versions by model.
        on_host: Models that the server's own interpreter runs.
    """

    members: dict[str, OutputMember] = field(default_factory=dict)
    repositories: list[str] = field(default_factory=list)
    backends: list[str] = field(default_factory=list)
    models: dict[str, list[int]] = field(default_factory=dict)
    on_host: list[str] = field(default_factory=list)


def collect_contents(options: ServerOptions, environments: BundledEnvironments, host_python: PythonVersion) -> Contents:
    """All models of a server's repositories, the backends they use and their environments.

    Raises:
        BundleError: If a model would not run from the bundle.
        NaiadError: If something of a model cannot be read, as the server says it.
    """
    settings = resolution_settings(options)
    collector = _Collector(options, settings, environments, host_python)
    repositories = open_repositories(options.models.repositories)
    try:
        found = repositories.scan()
        if found.duplicates:
            raise BundleError(f"these models are in more than one repository: {', '.join(found.duplicates)}")
        if not found.models:
            places = ", ".join(map(str, options.models.repositories))
            raise BundleError(f"there are no models in {places}; name a --model-repository")
        for files in found.models.values():
            repositories.fetch(files)
            collector.add_model(files)
    finally:
        repositories.close()
    return collector.contents


class _Collector:
    def __init__(
        self,
        options: ServerOptions,
        settings: ResolutionSettings,
        environments: BundledEnvironments,
        host_python: PythonVersion,
    ) -> None:
        self.contents = Contents()
        self._options = options
        self._settings = settings
        self._environments = environments
        self._host_python = host_python
        self._repositories: dict[Path, str] = {}
        self._backends: dict[Path, str] = {}

    def add_model(self, files: ModelFiles) -> None:
        repository = self._folder(self._repositories, files.repository, "models", self.contents.repositories)
        versions = list(available_versions(files))
        folder = f"{repository}/{files.directory.name}"
        texts = dict(self._configurations(files, folder, versions))
        self.contents.models[files.name] = versions
        self._resolve(files)
        for path, name in _files_in(files.directory, self._environments.sources):
            target = f"{folder}/{name}"
            text = texts.get(path)
            # What is read now is what travels: a remote repository's copy is gone in a moment.
            data = path.read_bytes() if files.uri else None
            self._add(target, path, data if text is None else text.encode())

    def _configurations(self, files: ModelFiles, folder: str, versions: list[int]) -> Iterator[tuple[Path, str]]:
        """The texts of configurations that name an environment, with the one in the bundle."""

        def place(key: str, text: str, version: int) -> str:
            origin = f"parameter {key} of model '{files.name}'"
            places = Places(
                base=files.directory,
                model_dir=files.directory,
                version=version,
                model_uri=files.uri,
                directories=self._settings.environment_directories,
            )
            found, _ = locate(text, origin, places, RealFiles())
            return f"$$TRITON_MODEL_DIRECTORY/{_up(folder)}{self._environments.add(found, origin)}"

        for path in (files.directory / _CONFIGURATION, *sorted(files.directory.glob("configs/*.pbtxt"))):
            if path.is_file():
                old = path.read_text(encoding="utf-8")
                new = rewrite_config(old, str(path), versions, place)
                if new != old:
                    yield path, new

    def _resolve(self, files: ModelFiles) -> None:
        options = self._options
        config = freeze(
            read_config(files, strict=not options.models.auto_complete, config_name=options.models.config_name)
        )
        if config.platform == "ensemble":
            return
        for version in versions_to_load(config.version_policy, available_versions(files), files.name):
            found = resolve(
                config, model_dir=files.directory, version=version, settings=self._settings, model_uri=files.uri
            )
            if found.environment is None:
                self._require_host(found)
            if found.backend_dir is not None and not found.backend_dir.is_relative_to(shipped_backends()):
                self._add_backend(found.backend_dir)

    def _require_host(self, found: Resolution) -> None:
        """Without an environment a model runs under the bundle's own interpreter: no other one can be relied on."""
        asked: SpecifierSet | None = found.python
        if not matches(asked, self._host_python):
            raise BundleError(
                f"model '{found.model}' asks for Python {asked} ({found.python_origin}) and names no environment; "
                f"the bundle has Python {version_text(self._host_python)} alone, and the other machine may have none: "
                "name an environment of that version (EXECUTION_ENV_PATH)"
            )
        if found.model not in self.contents.on_host:
            self.contents.on_host.append(found.model)

    def _add_backend(self, directory: Path) -> None:
        parent = self._folder(self._backends, directory.parent, "backends", self.contents.backends)
        folder = f"{parent}/{directory.name}"
        manifest = read_backend_manifest(directory, RealFiles())
        text: str | None = None
        if manifest is not None and manifest.environment:
            places = Places(base=directory, directories=self._settings.environment_directories)
            source, _ = locate(manifest.environment, str(manifest.path), places, RealFiles())
            new = f"{_up(folder)}{self._environments.add(source, str(manifest.path))}"
            text = rewrite_backend(manifest.path.read_text(encoding="utf-8"), new)
        for path, name in _files_in(directory, self._environments.sources):
            is_manifest = text is not None and name == BACKEND_MANIFEST
            self._add(f"{folder}/{name}", path, text.encode() if is_manifest and text is not None else None)

    def _add(self, name: str, path: Path, data: bytes | None) -> None:
        executable = os.access(path, os.X_OK)
        if path.name == _KEEP and not path.exists():
            data, executable = b"", False
        self.contents.members[name] = OutputMember(
            name=name, source=path if data is None else None, data=data, executable=executable
        )

    @staticmethod
    def _folder(known: dict[Path, str], place: Path, name: str, listed: list[str]) -> str:
        if place not in known:
            known[place] = name if not known else f"{name}-{len(known) + 1}"
            listed.append(known[place])
        return known[place]


def _up(folder: str) -> str:
    """From a folder of the bundle to its top."""
    return "../" * len(folder.split("/"))


def _files_in(directory: Path, without: set[Path]) -> Iterator[tuple[Path, str]]:
    """The files of a folder with their names below it; links are followed, as they may lead out of it."""
    for folder, folders, names in os.walk(directory, followlinks=True):
        here = Path(folder)
        folders[:] = sorted(
            name for name in folders if name not in _NOT_TAKEN and Path(os.path.realpath(here / name)) not in without
        )
        kept = sorted(name for name in names if Path(os.path.realpath(here / name)) not in without)
        if not folders and not kept:
            kept = [_KEEP]  # an archive of files has no empty folders, and an ensemble's version is one
        for name in kept:
            yield here / name, (here / name).relative_to(directory).as_posix()
