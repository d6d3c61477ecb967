"""From a model's configuration to everything needed to start it, in decisions that can be explained."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType

from naiad.config.model.model_config import ModelConfig
from naiad.config.server.backend_settings import effective_settings
from naiad.errors import ExecutionEnvironmentError, ResolutionError
from naiad.resolution.artifacts import Artifacts, choose_artifacts
from naiad.resolution.backend import PYTHON, find_backend
from naiad.resolution.decision import Resolution, ResolutionSettings, Step
from naiad.resolution.environment import PythonChoice, choose_environment, choose_python
from naiad.resolution.environment_names import Places
from naiad.resolution.files import Files, RealFiles
from naiad.resolution.manifest import read_backend_manifest

__all__ = ["check_stub_supports", "resolve"]

_MIN_COMPUTE_CAPABILITY = "6.000000"
_DEFAULT_MAX_BATCH_SIZE = "4"
_MINORS = _PATCHES = 40
"""More than there are of one Python, to see whether two ranges of versions meet."""


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
        version: The version, a directory below it.
        settings: What the server says.
        files: The file system; the disk unless given.
        model_uri: Where the model's directory was copied from, empty if it lies here.

    Raises:
        ResolutionError: If something that is named is not there, with every place that was looked at, and what had
            been decided until then.
    """
    decided: list[Step] = []
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
    decided: list[Step],
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
    places = Places(
        base=model_dir,
        model_dir=model_dir,
        version=version,
        model_uri=model_uri,
        directories=settings.environment_directories,
    )
    environment = choose_environment(
        config, places=places, backend_dir=backend.directory, manifest=manifest, files=files
    )
    decided.append(environment.step)
    python = choose_python(config, manifest)
    decided += [python.step, _settings_step(config, settings)]
    _check_wish(config.name, python, artifacts)
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
    """Refuse an interpreter that the stub does not run under, before anything is started.

    Raises:
        ExecutionEnvironmentError: With both versions.
    """
    if not resolution.stub_requires.contains(version, prereleases=True):
        raise ExecutionEnvironmentError(
            f"model '{resolution.model}' would run under Python {version}, but the stub '{resolution.stub}' needs "
            f"Python {resolution.stub_requires}; give the model another environment or a stub of its own"
        )


def _check_wish(model: str, python: PythonChoice, artifacts: Artifacts) -> None:
    """Refuse a wish for a Python that no stub of the model runs under: to look for one would mislead."""
    wanted, supported = python.required, artifacts.requires_python
    if wanted is None or any(
        supported.contains(version) and any(wanted.contains(text, prereleases=True) for text in (minor, version))
        for minor in (f"3.{number}" for number in range(_MINORS))
        for version in (f"{minor}.{number}" for number in range(_PATCHES))
    ):
        return
    raise ResolutionError(
        f"models run under Python {supported} here, which is what the stub '{artifacts.stub}' supports, but "
        f"{python.origin} asks for Python {wanted}; ask for a version that is supported, or give model '{model}' a "
        "stub of its own"
    )


def _cmdline(settings: ResolutionSettings, backend_dir: Path | None) -> dict[str, str]:
    """What a backend reads as its command line: text alone, in the order in which the reference prints it."""
    directory = settings.backend_directories[0] if backend_dir is None else backend_dir.parent
    cmdline = {
        "auto-complete-config": "true" if settings.auto_complete else "false",
        "backend-directory": str(directory),
        "min-compute-capability": _MIN_COMPUTE_CAPABILITY,
        # A shared backend is run by `python` and reads its settings, not those under its own name.
        **effective_settings(settings.backend_configs, PYTHON),
    }
    cmdline.setdefault("default-max-batch-size", _DEFAULT_MAX_BATCH_SIZE)
    return cmdline


def _settings_step(config: ModelConfig, settings: ResolutionSettings) -> Step:
    given = effective_settings(settings.backend_configs, PYTHON)
    why = "settings for all backends, then those of 'python', which also runs shared backends"
    ignored = settings.backend_configs.get(config.backend) if config.backend != PYTHON else None
    if ignored:
        why += f"; those of '{config.backend}' have no effect on a shared backend"
    return Step("settings", ", ".join(f"{key}={value}" for key, value in given.items()) or "none given", why)
