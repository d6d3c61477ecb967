"""Decide what runs a model: backend, code, stub, environment and Python version, each with its reason.

`naiad explain` prints the decisions; errors carry those that were made before the failure.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from naiad.config.model.model_config import ModelConfig
from naiad.config.server.backend_settings import BackendConfigs, effective_settings
from naiad.config.server.options import ServerOptions
from naiad.errors import ExecutionEnvironmentError, ResolutionError
from naiad.resolution.artifacts import Artifacts, choose_artifacts
from naiad.resolution.backend import PYTHON, find_backend
from naiad.resolution.decision import Decision, GuestLayout, Resolution
from naiad.resolution.environment import EnvironmentSearch, PythonChoice, choose_environment, choose_python
from naiad.resolution.files import Files, RealFiles
from naiad.resolution.layout import lay_out_guest
from naiad.resolution.manifest import read_backend_manifest

__all__ = ["ResolutionSettings", "check_stub_supports", "resolution_settings", "resolve"]

_MIN_COMPUTE_CAPABILITY = "6.000000"
_DEFAULT_MAX_BATCH_SIZE = "4"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolutionSettings:
    """The server's options that resolution depends on.

    Attributes:
        backend_directories: Directories in which backends are searched for, in order.
        guest: The default guest.
        backend_configs: Settings of backends as given on the command line.
        auto_complete: Whether models may complete their configuration.
        environment_directories: Directories in which environments are searched for by name, in order.
    """

    backend_directories: tuple[Path, ...]
    guest: GuestLayout
    backend_configs: BackendConfigs = field(default_factory=lambda: MappingProxyType({}))
    auto_complete: bool = True
    environment_directories: tuple[Path, ...] = ()


def resolution_settings(options: ServerOptions) -> ResolutionSettings:
    """The settings of a server's options; installs the default guest if it is missing.

    Raises:
        ResolutionError: If the guest cannot be installed.
    """
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
        config: The model's configuration.
        model_dir: The model's directory.
        version: The version.
        settings: The server's settings.
        files: The file system; the disk by default.
        model_uri: URI from which the model's directory was copied; empty for a directory of this machine.

    Raises:
        ResolutionError: If a file is missing. The message lists the searched paths, `decided` the earlier decisions.
    """
    decided: list[Decision] = []
    try:
        files = RealFiles() if files is None else files
        return _resolve(config, model_dir, version, settings, files, decided, model_uri)
    except ResolutionError as error:
        error.decided = tuple(decided)
        raise


def _resolve(
    config: ModelConfig,
    model_dir: Path,
    version: int,
    settings: ResolutionSettings,
    files: Files,
    decided: list[Decision],
    model_uri: str,
) -> Resolution:
    backend = find_backend(
        config,
        model_dir=model_dir,
        version_dir=model_dir / str(version),
        directories=settings.backend_directories,
        files=files,
    )
    decided += backend.steps
    artifacts = choose_artifacts(
        model_dir=model_dir,
        backend_dir=backend.directory,
        python_dirs=tuple(directory / PYTHON for directory in settings.backend_directories),
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
    )
    environment = choose_environment(
        config, search=search, backend_dir=backend.directory, manifest=manifest, files=files
    )
    decided.append(environment.step)
    python = choose_python(config, manifest)
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
        python=python.required,
        python_origin=python.origin,
        backend_config=MappingProxyType(_cmdline(settings, backend.directory)),
        steps=tuple(decided),
        notices=(*backend.notices, *artifacts.notices),
    )


def check_stub_supports(resolution: Resolution, version: str) -> None:
    """Check that the stub supports the interpreter's version, before a guest is started.

    Raises:
        ExecutionEnvironmentError: If it does not, with both versions.
    """
    if not resolution.stub_requires.contains(version, prereleases=True):
        raise ExecutionEnvironmentError(
            f"model '{resolution.model}' would run under Python {version}, but the stub '{resolution.stub}' needs "
            f"Python {resolution.stub_requires}; give the model another environment or a stub of its own"
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


def _cmdline(settings: ResolutionSettings, backend_dir: Path | None) -> dict[str, str]:
    """The settings that a backend reads as `cmdline`, in the order in which the reference prints them."""
    directory = settings.backend_directories[0] if backend_dir is None else backend_dir.parent
    cmdline = {
        "auto-complete-config": "true" if settings.auto_complete else "false",
        "backend-directory": str(directory),
        "min-compute-capability": _MIN_COMPUTE_CAPABILITY,
        # Backend `python` runs shared backends, too: they read its settings, not those under their own names.
        **effective_settings(settings.backend_configs, PYTHON),
    }
    cmdline.setdefault("default-max-batch-size", _DEFAULT_MAX_BATCH_SIZE)
    return cmdline


def _settings_step(config: ModelConfig, settings: ResolutionSettings) -> Decision:
    given = effective_settings(settings.backend_configs, PYTHON)
    why = "settings for all backends, then those of 'python', which also runs shared backends"
    ignored = settings.backend_configs.get(config.backend) if config.backend != PYTHON else None
    if ignored:
        why += f"; those of '{config.backend}' have no effect on a shared backend"
    return Decision("settings", ", ".join(f"{key}={value}" for key, value in given.items()) or "none given", why)
