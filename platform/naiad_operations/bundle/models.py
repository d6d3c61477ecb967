"""The models and backends of a bundle, copied with configurations that name the environments in the bundle.

Every repository becomes a folder `models`, `models-2`, ... and every parent folder of backends a folder `backends`,
`backends-2`, ... of the bundle; the names are those of a `CollectedLayout`. `config.pbtxt` and `backend.toml` name
environments by paths or URIs of this machine; `rewrite_config` and `rewrite_backend` replace these with relative paths
into the bundle.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from google.protobuf import text_format
from packaging.specifiers import SpecifierSet

from naiad.config.model.declared_environment import is_declaration
from naiad.config.model.environment_source import EnvironmentSource
from naiad.config.model.model_config import ModelConfig
from naiad.config.model.text import parse_text
from naiad.config.server.backend_settings import shipped_backends
from naiad.config.server.options import ServerOptions
from naiad.core.errors import BundleError
from naiad.core.real_paths import real_path
from naiad.environments.archives.archive_writer import OutputMember
from naiad.models.repository.layout import ModelFiles, available_versions, versions_to_load
from naiad.models.repository.read import read_frozen_config
from naiad.models.repository.repositories import Repositories, open_repositories_of
from naiad.models.resolution.decision import MODEL_FILENAME, Resolution
from naiad.models.resolution.environment import (
    DEFAULT_ENVIRONMENT,
    ENVIRONMENT_PARAMETER,
    PYTHON_PARAMETER,
    EnvironmentSearch,
    locate_environment,
    names_environment,
    read_script,
)
from naiad.models.resolution.files import Files
from naiad.models.resolution.manifest import BACKEND_MANIFEST, BackendManifest, read_backend_manifest
from naiad.models.resolution.resolve import ResolutionSettings, resolution_settings, resolve
from naiad.sources.interpreters.versions import PythonVersion, matches, version_text
from naiad_operations.bundle.environments import BundledEnvironments

_SKIPPED_FOLDERS = frozenset({"__pycache__", ".git"})
_KEEP = ".keep"  # empty file that keeps an otherwise empty folder in an archive, which has no entries for folders
_CONFIGURATION = "config.pbtxt"


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectedLayout:
    """Folders of the result: those of the first repository and of the first backends, or of all backends."""

    models: str = "models"
    backends: str = "backends"
    has_one_backends_folder: bool = False


@dataclass(slots=True)
class CollectedModels:
    """The models and backends of a bundle."""

    members: dict[str, OutputMember] = field(default_factory=dict)
    # Paths of the environments and folders of the backends that each model needs, by its folder.
    uses: dict[str, list[str]] = field(default_factory=dict)
    repositories: list[str] = field(default_factory=list)
    backends: list[str] = field(default_factory=list)
    models: dict[str, list[int]] = field(default_factory=dict)
    # Models without an environment; the bundle's own interpreter runs them.
    on_host: list[str] = field(default_factory=list)
    # The repositories. Those that are copies on this machine exist as long as this object.
    sources: Repositories = field(default_factory=Repositories)


def collect_models(
    options: ServerOptions,
    environments: BundledEnvironments,
    host_python: PythonVersion | None,
    layout: CollectedLayout | None = None,
) -> CollectedModels:
    """All models of a server's repositories and the backends they use; their environments go into *environments*."""
    settings = resolution_settings(options)
    collector = _ModelCollector(options, settings, environments, host_python, layout or CollectedLayout())
    repositories = collector.collected.sources = open_repositories_of(options)
    scan = repositories.scan()
    if scan.duplicates:
        raise BundleError(
            f"cannot bundle models that several repositories have: {', '.join(scan.duplicates)}; rename or remove "
            "all but one of each"
        )
    if not scan.models:
        places = ", ".join(map(str, options.models.repositories)) or "no repository"
        raise BundleError(f"cannot find models to bundle in {places}; name a --model-repository")
    for files in scan.models.values():
        repositories.fetch(files)
        collector.add_model(files)
    return collector.collected


@dataclass(slots=True)
class _ModelCollector:
    options: ServerOptions
    settings: ResolutionSettings
    environments: BundledEnvironments
    host_python: PythonVersion | None
    layout: CollectedLayout
    collected: CollectedModels = field(default_factory=CollectedModels)
    used: list[str] = field(default_factory=list)  # what the current model uses
    repositories: dict[Path, str] = field(default_factory=dict)
    backends: dict[Path, str] = field(default_factory=dict)

    def add_model(self, files: ModelFiles) -> None:
        listed = self.collected.repositories
        repository = self._folder(self.repositories, files.repository, self.layout.models, listed)
        versions = list(available_versions(files))
        folder = f"{repository}/{files.directory.name}"
        self.used = []
        pythons: dict[int, SpecifierSet | None] = {}
        declared = self._resolve(files, pythons)
        texts = dict(self._configurations(files, folder, versions, pythons))
        self.collected.models[files.name] = versions
        if declared:
            path = files.directory / _CONFIGURATION
            old = texts.get(path) or (path.read_text(encoding="utf-8") if path.is_file() else "")
            texts[path] = old + "".join(
                f'\nparameters {{ key: "{ENVIRONMENT_PARAMETER}.{version}" value {{ string_value: '
                f'"$$TRITON_MODEL_DIRECTORY/{os.path.relpath(archive, folder)}" }} }}\n'
                for version, archive in declared.items()
            )
            self._add(f"{folder}/{_CONFIGURATION}", path, texts[path].encode())
        self.collected.uses[folder] = sorted(set(self.used))
        for path, name in _files_in(files.directory, self.environments.sources):
            target = f"{folder}/{name}"
            text = texts.get(path)
            self._add(target, path, None if text is None else text.encode())

    def _configurations(
        self, files: ModelFiles, folder: str, versions: list[int], pythons: Mapping[int, SpecifierSet | None]
    ) -> Iterator[tuple[Path, str]]:
        """Paths and new texts of the configuration files that name an environment."""

        def place(key: str, text: str, version: int) -> str:
            origin = f"parameter {key} of model '{files.name}'"
            places = EnvironmentSearch(
                base=files.directory,
                model_dir=files.directory,
                version=version,
                model_uri=files.uri,
                directories=self.settings.environment_directories,
                repository=files.directory.parent,
            )
            is_interpreter = key == PYTHON_PARAMETER
            source, _ = locate_environment(text, origin, places, Files(), is_interpreter=is_interpreter)
            archive = self._add_environment(source, origin, pythons.get(version))
            return f"$$TRITON_MODEL_DIRECTORY/{os.path.relpath(archive, folder)}"

        for path in (files.directory / _CONFIGURATION, *sorted(files.directory.glob("configs/*.pbtxt"))):
            if path.is_file():
                old = path.read_text(encoding="utf-8")
                new = rewrite_config(old, str(path), versions, place)
                if new != old:
                    yield path, new

    def _resolve(self, files: ModelFiles, pythons: dict[int, SpecifierSet | None]) -> dict[int, str]:
        """Check what runs each version; returns the archives of environments that its configuration must name.

        Those are declared by the model's own code, or by its backend while the model asks for a Python version.
        *pythons* receives the required Python of each version.
        """
        declared: dict[int, str] = {}
        config = read_frozen_config(files, self.options.models)  # machines that build images have no GPU
        if config.platform == "ensemble":
            return declared
        for version in versions_to_load(config.version_policy, available_versions(files), files.name):
            resolution = resolve(
                config, model_dir=files.directory, version=version, settings=self.settings, model_uri=files.uri
            )
            pythons[version] = resolution.python
            if resolution.environment is None:
                self._require_host_python(resolution)
            elif _is_to_be_named(resolution, config):
                declared[version] = self._add_environment(
                    resolution.environment, resolution.environment_origin, resolution.python
                )
            outside = resolution.outside_dir
            if outside is not None and not outside.is_relative_to(shipped_backends()):
                self._add_backend(outside)
        return declared

    def _require_host_python(self, resolution: Resolution) -> None:
        """Record a model without an environment, and reject it unless the bundle's own interpreter can run it.

        A server would search this machine for another interpreter; the machine that runs the bundle may have none.
        """
        required: SpecifierSet | None = resolution.python
        if self.host_python is None:
            return
        if not matches(required, self.host_python):
            raise BundleError(
                f"cannot bundle model '{resolution.model}': it requires Python {required} "
                f"({resolution.python_origin}), it names no environment, and the bundle's own Python is "
                f"{version_text(self.host_python)}; name an environment of that version (EXECUTION_ENV_PATH)"
            )
        if resolution.model not in self.collected.on_host:
            self.collected.on_host.append(resolution.model)

    def _add_environment(
        self, source: Path | EnvironmentSource, origin: str, python: SpecifierSet | None = None
    ) -> str:
        path = self.environments.add(source, origin, python)
        self.used.append(path)
        return path

    def _add_backend(self, directory: Path) -> None:
        # Names do not collide: a backend is the first of its name in the search path.
        place = Path() if self.layout.has_one_backends_folder else directory.parent
        parent = self._folder(self.backends, place, self.layout.backends, self.collected.backends)
        folder = f"{parent}/{directory.name}"
        self.used.append(folder)
        manifest = read_backend_manifest(directory, Files())
        text: str | None = None
        if manifest is not None and manifest.environment:
            places = EnvironmentSearch(base=directory, directories=self.settings.environment_directories)
            source, _ = locate_environment(manifest.environment, str(manifest.path), places, Files())
            archive = self._add_environment(source, str(manifest.path), manifest.requires_python)
            new = os.path.relpath(archive, folder)
            text = rewrite_backend(manifest.path.read_text(encoding="utf-8"), new)
        elif (declared := self._declared_of_backend(directory, manifest)) is not None:
            own = manifest.path.read_text(encoding="utf-8") if manifest is not None else ""
            text = f'environment = "{os.path.relpath(declared, folder)}"\n{own}'
            self._add(f"{folder}/{BACKEND_MANIFEST}", directory / BACKEND_MANIFEST, text.encode())
        for path, name in _files_in(directory, self.environments.sources):
            is_manifest = text is not None and name == BACKEND_MANIFEST
            self._add(f"{folder}/{name}", path, text.encode() if is_manifest and text is not None else None)

    def _declared_of_backend(self, directory: Path, manifest: BackendManifest | None) -> str | None:
        """The archive of the environment that a shared backend's code declares; None if it has another one, or none."""
        script = read_script(directory / MODEL_FILENAME, Files())
        if script is None or not script.block.dependencies or (directory / DEFAULT_ENVIRONMENT).exists():
            return None
        python = None if manifest is None else manifest.requires_python
        return self._add_environment(script.path, f"the script block of {script.path}", python)

    def _add(self, name: str, path: Path, data: bytes | None) -> None:
        executable = os.access(path, os.X_OK)
        if path.name == _KEEP and not path.exists():
            data, executable = b"", False
        self.collected.members[name] = OutputMember(
            name=name, source=path if data is None else None, data=data, executable=executable
        )

    @staticmethod
    def _folder(known: dict[Path, str], place: Path, name: str, listed: list[str]) -> str:
        if place not in known:
            known[place] = name if not known else f"{name}-{len(known) + 1}"
            listed.append(known[place])
        return known[place]


def _is_to_be_named(resolution: Resolution, config: ModelConfig) -> bool:
    """Whether a model's configuration must name the environment in the bundle, because nothing else there does."""
    source = resolution.environment
    if resolution.has_default_environment:
        return True
    if isinstance(source, EnvironmentSource) or source is None or not is_declaration(source):
        return False
    if not resolution.is_shared:
        return source == resolution.model_file
    # The bundled backend names one environment; this model may need one with another Python, or bring its own.
    names_own = any(_is_environment(key) and value for key, value in config.parameters.items())
    is_brought = source.is_relative_to(resolution.model_dir)
    return not names_own and (is_brought or bool(config.parameters.get(PYTHON_PARAMETER)))


def _files_in(directory: Path, without: set[Path]) -> Iterator[tuple[Path, str]]:
    """The files of a folder, with their paths below it; links are followed, because they may point outside of it."""
    for folder, folders, names in os.walk(directory, followlinks=True):
        here = Path(folder)
        folders[:] = sorted(
            name for name in folders if name not in _SKIPPED_FOLDERS and real_path(here / name) not in without
        )
        kept = sorted(name for name in names if real_path(here / name) not in without)
        if not folders and not kept:
            kept = [_KEEP]  # a version of an ensemble is an empty folder
        for name in kept:
            yield here / name, (here / name).relative_to(directory).as_posix()


_VERSION_DIRECTORY = "$$NAIAD_VERSION_DIRECTORY"


def rewrite_config(text: str, source: str, versions: Iterable[int], place: Callable[[str, str, int], str]) -> str:
    """A configuration with replaced environments; the same text, comments included, if it names none."""
    message = parse_text(text, source)
    named = {
        key: value.string_value
        for key, value in message.parameters.items()
        if _is_environment(key) or (key == PYTHON_PARAMETER and names_environment(value.string_value))
    }
    for key, old in named.items():
        if not old:
            continue
        if key in (ENVIRONMENT_PARAMETER, PYTHON_PARAMETER) and _VERSION_DIRECTORY in old:
            # One value names a different environment for each version, so each version gets its own parameter.
            del message.parameters[key]
            for version in versions:
                own = f"{ENVIRONMENT_PARAMETER}.{version}"
                if not named.get(own):
                    message.parameters[own].string_value = place(key, old, version)
            continue
        _, _, number = key.partition(".")
        version = int(number) if number.isdecimal() else max(versions, default=1)
        message.parameters[key].string_value = place(key, old, version)
    return text_format.MessageToString(message) if any(named.values()) else text


def rewrite_backend(text: str, new: str) -> str:
    """A `backend.toml` with another environment; its comments are kept."""
    return re.sub(r"""(?m)^(\s*environment\s*=\s*)(?:"[^"\n]*"|'[^'\n]*')""", lambda match: f'{match[1]}"{new}"', text)


def _is_environment(key: str) -> bool:
    return key == ENVIRONMENT_PARAMETER or key.startswith(f"{ENVIRONMENT_PARAMETER}.")
