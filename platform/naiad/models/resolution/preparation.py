"""Preparing the environment that a resolution chose, and checking that the model can run in it.

A server, `naiad explain --prepare` and the doctor do this alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from naiad.core.errors import ExecutionEnvironmentError, InterpreterNotFoundError
from naiad.models.resolution.decision import Resolution

if TYPE_CHECKING:
    from naiad.environments.manager import EnvironmentManager
    from naiad.environments.ready_environment import ReadyEnvironment


def prepare_environment(resolution: Resolution, environments: EnvironmentManager, label: str) -> ReadyEnvironment:
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
