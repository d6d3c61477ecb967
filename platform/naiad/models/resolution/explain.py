"""The decisions of a resolution as text, for `naiad explain` and the debug log."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from naiad.models.resolution.decision import Decision, Resolution

if TYPE_CHECKING:
    from naiad.environments.ready_environment import ReadyEnvironment

_INDENT = " " * 14


def explain_plainly(resolution: Resolution, environment: ReadyEnvironment | None = None) -> str:
    """All decisions as plain text, one block each."""
    title = f"model '{resolution.model}' version {resolution.version}, in {resolution.model_dir}"
    lines = [title, explain_steps(_steps(resolution, environment))]
    problems = () if environment is None else environment.activation.problems
    lines.extend(f"  note        {notice}" for notice in (*resolution.notices, *problems))
    return "\n".join(lines) + "\n"


def explain_steps(steps: Iterable[Decision]) -> str:
    """Decisions as plain text, also those before the failure of a resolution."""
    lines = []
    for step in steps:
        lines.append(f"  {step.subject:<11} {step.choice}")
        lines.append(f"{_INDENT}{step.reason}")
        lines.extend(f"{_INDENT}{'+' if look.found else '-'} {look}" for look in step.searched)
    return "\n".join(lines)


def resolution_as_json(resolution: Resolution, environment: ReadyEnvironment | None = None) -> dict[str, Any]:
    """All decisions as plain values for JSON."""
    prepared = environment and {
        "prefix": str(environment.prefix),
        "python": str(environment.python),
        "version": ".".join(map(str, environment.version)),
        "numpy": environment.numpy_version,
        "activation": {
            "scripts": list(environment.activation.scripts),
            "variables": environment.activation.names,
            "problems": list(environment.activation.problems),
        },
    }
    return {
        "version": resolution.version,
        "directory": str(resolution.model_dir),
        "decisions": steps_as_json(resolution.steps),
        "notices": list(resolution.notices),
        "environment": prepared,
    }


def steps_as_json(steps: Iterable[Decision]) -> list[dict[str, Any]]:
    """Decisions as plain values for JSON, also those before the failure of a resolution."""
    return [
        {
            "subject": step.subject,
            "choice": step.choice,
            "reason": step.reason,
            "searched": [{"path": str(look.path), "found": look.found} for look in step.searched],
        }
        for step in steps
    ]


def prepared_step(environment: ReadyEnvironment) -> Decision:
    """The interpreter and numpy of a prepared environment, as one more decision."""
    version = ".".join(map(str, environment.version))
    numpy = f"numpy {environment.numpy_version}" if environment.numpy_version else "no numpy"
    return Decision("interpreter", f"Python {version}: {environment.python}", f"in {environment.prefix}, with {numpy}")


def _steps(resolution: Resolution, environment: ReadyEnvironment | None) -> tuple[Decision, ...]:
    if environment is None:
        return resolution.steps
    activation = environment.activation
    steps = (*resolution.steps, prepared_step(environment))
    if not activation.names and not activation.scripts:
        return steps
    by = ", ".join(activation.scripts) or "conda-meta/state and env_vars.d"
    return (*steps, Decision("activation", ", ".join(activation.names) or "no variables", f"set by {by}"))
