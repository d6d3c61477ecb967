"""Decide what runs a model: backend, code, stub, environment and Python version, each with its reason.

`naiad explain` prints the decisions; errors carry those that were made before the failure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from packaging.specifiers import SpecifierSet

from naiad.config.model.model_config import ModelConfig
from naiad.config.server.backend_settings import ENVIRONMENT_SETTING, BackendConfigs, effective_settings
from naiad.config.server.options import ServerOptions
from naiad.core.errors import ResolutionError
from naiad.core.file_content import HEAD_BYTES, explain_content
from naiad.models.resolution.artifacts import Artifacts, choose_artifacts
from naiad.models.resolution.backend import PYTHON, Backend, find_backend
from naiad.models.resolution.decision import STUB_FILENAME, Decision, GuestLayout, Resolution
from naiad.models.resolution.environment import (
    EnvironmentChoice,
    EnvironmentSearch,
    PythonChoice,
    choose_environment,
    choose_python,
    python_defaults,
    read_script,
)
from naiad.models.resolution.files import Files
from naiad.models.resolution.layout import lay_out_guest
from naiad.models.resolution.manifest import REPOSITORY_BACKENDS, BackendManifest, read_backend_manifest

_MIN_COMPUTE_CAPABILITY = "6.000000"
_DEFAULT_MAX_BATCH_SIZE = "4"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolutionSettings:
    """The server's options that resolution depends on; directories are searched in order."""

    backend_directories: tuple[Path, ...]
    guest: GuestLayout
    backend_configs: BackendConfigs = field(default_factory=lambda: MappingProxyType({}))
    auto_complete: bool = True
    environment_directories: tuple[Path, ...] = ()


def resolution_settings(options: ServerOptions) -> ResolutionSettings:
    """The settings of a server's options; installs the default guest if it is missing."""
    return ResolutionSettings(
        backend_directories=options.backends.directories,
        guest=lay_out_guest(options.environments.guest_directory),
        backend_configs=options.backends.configs,
        auto_complete=options.models.auto_complete,
        environment_directories=options.environments.directories,
    )


def resolve(
    config: ModelConfig,
    *,
    model_dir: Path,
    version: int,
    settings: ResolutionSettings,
    files: Files | None = None,
    model_uri: str = "",
) -> Resolution:
    """Decide what runs one version of a model.

    Args:
        model_uri: URI from which the model's directory was copied; empty for a directory of this machine.

    Raises:
        ResolutionError: If a file is missing. The message lists the searched paths, `decided` the earlier decisions.
    """
    decided: list[Decision] = []
    try:
        files = Files() if files is None else files
        return _resolve(config, model_dir, version, settings, files, decided, model_uri)
    except ResolutionError as error:
        error.decided = tuple(decided)
        raise


def _check_fetched(path: Path, files: Files) -> None:
    """Raise if the file with a model's code is not that file: without this, its first line would be a syntax error."""
    try:
        unfetched = explain_content(files.read(path, HEAD_BYTES))
    except OSError:
        return  # loading the code will report it
    if unfetched:
        raise ResolutionError(f"cannot run the code in {path}: it is {unfetched}")


def _resolve(
    config: ModelConfig,
    model_dir: Path,
    version: int,
    settings: ResolutionSettings,
    files: Files,
    decided: list[Decision],
    model_uri: str,
) -> Resolution:
    directories = settings.backend_directories
    # A repository that `naiad push` wrote brings the backends of its models.
    own = model_dir.parent / REPOSITORY_BACKENDS
    if files.is_dir(own):
        directories = (own, *directories)
    backend = find_backend(
        config, model_dir=model_dir, version_dir=model_dir / str(version), directories=directories, files=files
    )
    decided += backend.steps
    _check_fetched(backend.model_file, files)
    if backend.library is not None:
        return _resolve_native(config, model_dir, version, settings, backend, decided)
    artifacts = choose_artifacts(
        model_dir=model_dir,
        backend_dir=backend.directory,
        python_dirs=tuple(directory / PYTHON for directory in directories),
        default=settings.guest,
        files=files,
    )
    decided += artifacts.steps
    manifest = None if backend.directory is None else read_backend_manifest(backend.directory, files)
    search = EnvironmentSearch(
        base=model_dir,
        model_dir=model_dir,
        version=version,
        model_uri=model_uri,
        directories=settings.environment_directories,
        repository=model_dir.parent,
    )
    defaults = python_defaults(
        effective_settings(settings.backend_configs, PYTHON), _default_manifest(settings.backend_directories, files)
    )
    script = read_script(backend.model_file, files)
    environment = choose_environment(
        config,
        search=search,
        backend_dir=backend.directory,
        manifest=manifest,
        files=files,
        defaults=defaults,
        script=script,
        backend_setting=settings.backend_configs.get(config.backend, {}).get(ENVIRONMENT_SETTING, ""),
    )
    decided.append(environment.step)
    python = choose_python(config, manifest, defaults, environment, script)
    python = _as_stub_requires(python, environment, artifacts)
    python = _as_linked(python, environment, artifacts)
    decided += [python.step, _settings_step(config, settings)]
    _check_python_supported(config.name, python, artifacts)
    return Resolution(
        model=config.name,
        version=version,
        model_dir=model_dir,
        backend=config.backend,
        backend_dir=backend.directory,
        runtime=backend.runtime,
        model_file=backend.model_file,
        stub=artifacts.stub,
        utils_dir=artifacts.utils_dir,
        guest=settings.guest,
        stub_requires=artifacts.requires_python,
        environment=environment.source,
        environment_origin=environment.origin,
        has_default_environment=bool(environment.origin) and environment.origin == defaults.environment_origin,
        python=python.required,
        python_origin=python.origin,
        backend_config=MappingProxyType(
            _cmdline(settings, None if backend.directory is None else backend.directory.parent, PYTHON)
        ),
        settings=MappingProxyType(effective_settings(settings.backend_configs, config.backend)),
        steps=tuple(decided),
        notices=(*backend.notices, *artifacts.notices, *filter(None, [environment.skipped, environment.notice])),
        skipped_environment=environment.skipped,
    )


def _as_linked(python: PythonChoice, environment: EnvironmentChoice, artifacts: Artifacts) -> PythonChoice:
    """The choice, or the version that a compiled stub is linked to if nothing else asks for one.

    The reference would run the model under that version. Another one has other packages, or fails later.
    """
    linked = artifacts.linked
    if linked is None or python.required is not None or environment.source is not None:
        return python
    origin = f"the compiled stub {linked.path}"
    required = SpecifierSet(f"=={linked.python}.*")
    return PythonChoice(required=required, origin=origin, reason=f"{origin} is linked to it", shown=linked.python)


def _as_stub_requires(python: PythonChoice, environment: EnvironmentChoice, artifacts: Artifacts) -> PythonChoice:
    """The choice, or the versions that the model's own stub supports if nothing else asks for one."""
    if python.required is not None or environment.source is not None or not artifacts.requires_origin:
        return python
    required, origin = artifacts.requires_python, artifacts.requires_origin
    why = f"requires-python of {origin}: what the stub supports"
    return PythonChoice(required=required, origin=origin, reason=why)


def _default_manifest(directories: tuple[Path, ...], files: Files) -> BackendManifest | None:
    """The first `backend.toml` of backend `python`, which is the default of all models."""
    found = (read_backend_manifest(directory / PYTHON, files) for directory in directories)
    return next(filter(None, found), None)


def _resolve_native(
    config: ModelConfig,
    model_dir: Path,
    version: int,
    settings: ResolutionSettings,
    backend: Backend,
    decided: list[Decision],
) -> Resolution:
    """The same for a native backend: its guest needs no Python of the model's, so it runs on the host's."""
    assert backend.library is not None, "the backend is native"
    given = effective_settings(settings.backend_configs, config.backend)
    decided += [
        Decision("environment", "the host's interpreter", "a native backend needs no Python of its own"),
        Decision("settings", _joined(given), f"settings for all backends, then those of '{config.backend}'"),
    ]
    guest = settings.guest
    library_dir = backend.library.path.parent
    directory = next((each for each in settings.backend_directories if each == library_dir.parent), None)
    return Resolution(
        model=config.name,
        version=version,
        model_dir=model_dir,
        backend=config.backend,
        backend_dir=None,
        library=backend.library,
        runtime=config.runtime,
        model_file=backend.model_file,
        stub=guest.artifacts_dir / STUB_FILENAME,
        utils_dir=guest.artifacts_dir,
        guest=guest,
        stub_requires=guest.requires_python,
        environment=None,
        environment_origin="",
        python=None,
        python_origin="",
        backend_config=MappingProxyType(_cmdline(settings, directory, config.backend)),
        steps=tuple(decided),
        notices=backend.notices,
    )


def _check_python_supported(model: str, python: PythonChoice, artifacts: Artifacts) -> None:
    """Check that some version satisfies both the model and its stub.

    Otherwise the search for an interpreter would fail with an error that misses the cause.
    """
    wanted, supported = python.required, artifacts.requires_python
    if wanted is None or not (wanted & supported).is_unsatisfiable():
        return
    raise ResolutionError(
        f"models run under Python {supported} here, which is what the stub '{artifacts.stub}' supports, but "
        f"{python.origin} asks for Python {wanted}; ask for a version that is supported, or give model '{model}' a "
        "stub of its own"
    )


def _cmdline(settings: ResolutionSettings, directory: Path | None, backend: str) -> dict[str, str]:
    """The settings that a backend reads as `cmdline`, in the reference's order; *directory* is None for none."""
    cmdline = {
        "auto-complete-config": "true" if settings.auto_complete else "false",
        "backend-directory": str(directory or settings.backend_directories[0]),
        "min-compute-capability": _MIN_COMPUTE_CAPABILITY,
        **effective_settings(settings.backend_configs, backend),
    }
    cmdline.setdefault("default-max-batch-size", _DEFAULT_MAX_BATCH_SIZE)
    return cmdline


def _settings_step(config: ModelConfig, settings: ResolutionSettings) -> Decision:
    given = effective_settings(settings.backend_configs, PYTHON)
    why = "settings for all backends, then those of 'python', which also runs shared backends"
    own = settings.backend_configs.get(config.backend) if config.backend != PYTHON else None
    if own:
        why += f"; the code of '{config.backend}' reads its own: {_joined(own)}"
    return Decision("settings", _joined(given), why)


def _joined(given: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in given.items()) or "none given"
