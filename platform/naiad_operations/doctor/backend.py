"""Examines a model by the rules of its shared backend, which knows files that the server does not read.

A shared backend may have a module `examine_model.py` with `examine(directory, parameters)`, which reads the version's
directory and returns problems. It runs with the model's interpreter, as the backend itself does. It is code of the
backend: nothing of the model is imported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from naiad.environments.ready_environment import ReadyEnvironment
from naiad.models.resolution.decision import Resolution
from naiad_operations.doctor.findings import Finding, Severity
from naiad_operations.doctor.in_environment import run_in_environment

__all__ = ["examine_by_backend"]

_MODULE = "examine_model.py"


def examine_by_backend(
    resolution: Resolution, environment: ReadyEnvironment, parameters: Mapping[str, str]
) -> Iterator[Finding]:
    """Findings of the model's backend; none if it has no rules."""
    folder = resolution.model_file.parent
    if not resolution.is_shared or not (folder / _MODULE).is_file():
        return
    request = {"folder": str(folder), "directory": str(resolution.version_dir), "parameters": dict(parameters)}
    for problem in run_in_environment(environment, "_backend_script.py", request)["problems"]:
        yield Finding(
            severity=Severity(problem["severity"]),
            code="model-files",
            message=problem["message"],
            advice=problem["advice"],
            where=problem["where"],
        )
