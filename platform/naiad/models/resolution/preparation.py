"""Preparing the environment that a resolution chose, and checking that the model can run in it.

A server, `naiad explain --prepare` and the doctor do this alike.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, TypeVar

from packaging.specifiers import SpecifierSet

from naiad.config.model.environment_source import EnvironmentSource
from naiad.core.errors import ExecutionEnvironmentError, InterpreterNotFoundError
from naiad.models.resolution.decision import Resolution

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
        label: str = "",
    ) -> _Environment_co:
        """The environment of *source*, unpacked if necessary; blocks, and may be called on any thread."""


def prepare_environment(
    resolution: Resolution, environments: EnvironmentProvider[_Environment], label: str
) -> _Environment:
    """The environment that a resolution chose. Blocks."""
    try:
        return environments.prepare(
            resolution.environment,
            python=resolution.python,
            python_origin=resolution.python_origin,
            label=label,
        )
    except InterpreterNotFoundError as error:
        if not resolution.skipped_environment:
            raise
        raise InterpreterNotFoundError(f"{error.message}. {resolution.skipped_environment}") from error


def check_interpreter(resolution: Resolution, version: tuple[int, int, int]) -> None:
    """Check that a model can run under its environment's version of Python, before a guest is started."""
    python = ".".join(map(str, version))
    if not resolution.stub_requires.contains(python, prereleases=True):
        raise ExecutionEnvironmentError(
            f"model '{resolution.model}' would run under Python {python}, but the stub '{resolution.stub}' needs "
            f"Python {resolution.stub_requires}; give the model another environment or a stub of its own"
        )
