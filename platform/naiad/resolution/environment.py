"""Where a model's environment comes from and which Python it asks for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from packaging.specifiers import SpecifierSet

from naiad.config.model.environment_source import EnvironmentSource
from naiad.config.model.model_config import ModelConfig
from naiad.resolution.decision import MODEL_FILENAME, Look, Step
from naiad.resolution.environment_names import Places, locate
from naiad.resolution.files import Files
from naiad.resolution.manifest import BACKEND_MANIFEST, BackendManifest, parse_python_version

__all__ = ["EnvironmentChoice", "PythonChoice", "choose_environment", "choose_python"]

ENVIRONMENT_PARAMETER = "EXECUTION_ENV_PATH"
PYTHON_PARAMETER = "PYTHON_VERSION"
DEFAULT_ENVIRONMENT = f"pb_exec_env_{MODEL_FILENAME}.tar.gz"
"""An archive of this name in the directory of a shared backend is the default of its models."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentChoice:
    """The environment of a model: where it is, None for the host's or one found by version, and who named it."""

    source: Path | EnvironmentSource | None
    origin: str
    step: Step


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonChoice:
    """The version of Python a model asks for, None for any, and who asks."""

    required: SpecifierSet | None
    origin: str
    step: Step


def choose_environment(
    config: ModelConfig,
    *,
    places: Places,
    backend_dir: Path | None,
    manifest: BackendManifest | None,
    files: Files,
) -> EnvironmentChoice:
    """The version's own parameter, else the model's, else the shared backend's manifest, else its archive.

    Raises:
        ResolutionError: If what is named is not there.
    """
    for parameter in (f"{ENVIRONMENT_PARAMETER}.{places.version}", ENVIRONMENT_PARAMETER):
        text = config.parameters.get(parameter, "")
        if text:
            return _named(text, f"parameter {parameter} of model '{config.name}'", places, files)
    if manifest is not None and manifest.environment:
        beside = Places(base=manifest.path.parent, directories=places.directories)
        return _named(manifest.environment, str(manifest.path), beside, files)
    if backend_dir is None:
        return _none("the model names none", ())
    look = Look(backend_dir / DEFAULT_ENVIRONMENT, files.exists(backend_dir / DEFAULT_ENVIRONMENT))
    if not look.found:
        return _none("neither the model nor its backend names one", (look,))
    origin = f"default of backend '{config.backend}'"
    why = f"{origin}: an archive of that name in its directory"
    return EnvironmentChoice(source=look.path, origin=origin, step=Step("environment", str(look.path), why, (look,)))


def choose_python(config: ModelConfig, manifest: BackendManifest | None) -> PythonChoice:
    """The version the model's own parameter requires, else its backend's manifest.

    Raises:
        ResolutionError: If the parameter is no version.
    """
    text = config.parameters.get(PYTHON_PARAMETER, "")
    if text:
        origin = f"parameter {PYTHON_PARAMETER} of model '{config.name}'"
        required = parse_python_version(text, origin)
        return PythonChoice(required=required, origin=origin, step=Step("python", f"Python {required}", origin))
    if manifest is not None and manifest.requires_python is not None:
        origin = str(manifest.path)
        step = Step("python", f"Python {manifest.requires_python}", f"requires-python of {origin}")
        return PythonChoice(required=manifest.requires_python, origin=origin, step=step)
    why = f"neither parameter {PYTHON_PARAMETER} nor a {BACKEND_MANIFEST} asks for a version"
    return PythonChoice(required=None, origin="", step=Step("python", "any", why))


def _none(why: str, looks: tuple[Look, ...]) -> EnvironmentChoice:
    return EnvironmentChoice(source=None, origin="", step=Step("environment", "none", why, looks))


def _named(text: str, origin: str, places: Places, files: Files) -> EnvironmentChoice:
    source, looks = locate(text, origin, places, files)
    return EnvironmentChoice(source=source, origin=origin, step=Step("environment", str(source), origin, looks))
