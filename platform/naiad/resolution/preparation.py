"""Preparing the environment that a resolution chose, and checking that the model can run in it.

A server, `naiad explain --prepare` and the doctor do this alike.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, TypeVar

from packaging.specifiers import SpecifierSet

from naiad.config.model.environment_source import EnvironmentSource
from naiad.errors import ExecutionEnvironmentError, InterpreterNotFoundError
from naiad.resolution.decision import Resolution

__all__ = ["EnvironmentProvider", "check_interpreter", "prepare_environment"]

_Environment_co = TypeVar("_Environment_co", covariant=True)
_Environment = TypeVar("_Environment")


class EnvironmentProvider(Protocol[_Environment_co]):
    """Provides environments."""

    def prepare(
        self,
        source: Path | EnvironmentSource | None,
        *,
        python: SpecifierSet | None = None,
        python_origin: str = "",
        preferred: SpecifierSet | None = None,
        label: str = "",
    ) -> _Environment_co:
        """The environment of *source*, unpacked if necessary; blocks, and may be called on any thread."""


def prepare_environment(
    resolution: Resolution, environments: EnvironmentProvider[_Environment], label: str
) -> _Environment:
    """The environment that a resolution chose. Blocks.

    Args:
        resolution: The resolution.
        environments: Provides it.
        label: Name of the model, for the log.

    Raises:
        ExecutionEnvironmentError: If it does not exist or cannot be used here.
    """
    try:
        return environments.prepare(
            resolution.environment,
            python=resolution.python,
            python_origin=resolution.python_origin,
            preferred=resolution.preferred_python,
            label=label,
        )
    except InterpreterNotFoundError as error:
        if not resolution.skipped_environment:
            raise
        raise InterpreterNotFoundError(f"{error.message}. {resolution.skipped_environment}") from error


def check_interpreter(resolution: Resolution, version: tuple[int, int, int]) -> str:
    """Check that a model can run under its environment's version of Python; returns a warning, or an empty text.

    Raises:
        ExecutionEnvironmentError: If its stub does not support the version.
    """
    python = ".".join(map(str, version))
    _require_stub_support(resolution, python)
    return _explain_unmet_preference(resolution, python)


def _explain_unmet_preference(resolution: Resolution, version: str) -> str:
    """A warning if the model runs under another Python than a compiled stub is linked to; empty otherwise."""
    linked, preferred = resolution.linked, resolution.preferred_python
    if linked is None or preferred is None or preferred.contains(version, prereleases=True):
        return ""
    return (
        f"model '{resolution.model}' runs under Python {version}, but the stub '{linked.path}' was compiled for Python "
        f"{linked.python}, and no supported interpreter of that version with numpy is installed; install one, name an "
        "environment in EXECUTION_ENV_PATH, or set PYTHON_VERSION to the version that the model is to have"
    )


def _require_stub_support(resolution: Resolution, version: str) -> None:
    """Check that the stub supports the interpreter's version, before a guest is started.

    Raises:
        ExecutionEnvironmentError: If it does not, with both versions.
    """
    if not resolution.stub_requires.contains(version, prereleases=True):
        raise ExecutionEnvironmentError(
            f"model '{resolution.model}' would run under Python {version}, but the stub '{resolution.stub}' needs "
            f"Python {resolution.stub_requires}; give the model another environment or a stub of its own"
        )
