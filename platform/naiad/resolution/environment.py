"""Where a model's environment comes from and which Python it asks for."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from packaging.specifiers import SpecifierSet

from naiad.config.model import ModelConfig
from naiad.errors import Code, ResolutionError
from naiad.resolution.decision import MODEL_FILENAME, Look, Step
from naiad.resolution.files import Files
from naiad.resolution.manifest import BACKEND_MANIFEST, BackendManifest, parse_python_version

__all__ = ["EnvironmentChoice", "PythonChoice", "choose_environment", "choose_python"]

ENVIRONMENT_PARAMETER = "EXECUTION_ENV_PATH"
PYTHON_PARAMETER = "PYTHON_VERSION"
MODEL_DIRECTORY_KEYWORD = "$$TRITON_MODEL_DIRECTORY"
DEFAULT_ENVIRONMENT = f"pb_exec_env_{MODEL_FILENAME}.tar.gz"
"""An archive of this name in the directory of a shared backend is the default of its models."""

_URI = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)
_RULES = (
    f"a path may be absolute, relative to the model's directory, or start with {MODEL_DIRECTORY_KEYWORD}, "
    "and names an archive or a directory"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentChoice:
    """The environment of a model: where it is, None for the host's or one found by version, and who named it."""

    source: Path | None
    origin: str
    step: Step


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonChoice:
    """The version of Python a model asks for, None for any, and who asks."""

    required: SpecifierSet | None
    origin: str
    step: Step


def choose_environment(
    config: ModelConfig, *, model_dir: Path, backend_dir: Path | None, manifest: BackendManifest | None, files: Files
) -> EnvironmentChoice:
    """The model's own parameter, else the shared backend's manifest, else the shared backend's archive.

    Raises:
        ResolutionError: If what is named is not there.
    """
    text = config.parameters.get(ENVIRONMENT_PARAMETER, "")
    if text:
        origin = f"parameter {ENVIRONMENT_PARAMETER} of model '{config.name}'"
        return _named(text, _model_path(text, model_dir, origin), origin, files)
    if manifest is not None and manifest.environment:
        return _named(manifest.environment, manifest.path.parent / manifest.environment, str(manifest.path), files)
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


def _model_path(text: str, model_dir: Path, origin: str) -> Path:
    """The path a model's parameter stands for."""
    if _URI.match(text):
        raise ResolutionError(
            f"{origin}: '{text}' is not on this machine, and environments from elsewhere are not implemented in this "
            f"version of naiad; {_RULES}",
            code=Code.UNSUPPORTED,
        )
    before, keyword, rest = text.partition(MODEL_DIRECTORY_KEYWORD)
    if not keyword:
        return model_dir / text
    if before or (rest and not rest.startswith("/")):
        raise ResolutionError(
            f"{origin}: '{text}': {MODEL_DIRECTORY_KEYWORD} must stand alone or before a '/'; {_RULES}"
        )
    return model_dir / rest.lstrip("/")


def _named(text: str, path: Path, origin: str, files: Files) -> EnvironmentChoice:
    look = Look(path, files.exists(path))
    if not look.found:
        raise ResolutionError(
            f"{origin} names the execution environment '{text}', but '{path}' does not exist; {_RULES}",
            code=Code.NOT_FOUND,
        )
    return EnvironmentChoice(source=path, origin=origin, step=Step("environment", str(path), origin, (look,)))
