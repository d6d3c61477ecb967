"""Advice for a model that could not import a module: the package to add, and where or with which command."""

from __future__ import annotations

import re
from pathlib import Path

from naiad.config.model.declared_environment import is_declaration, lock_candidates
from naiad.config.model.environment_source import EnvironmentSource
from naiad.models.resolution.decision import Resolution
from naiad.sources.interpreters.distributions import package_of

__all__ = ["missing_package"]

_MISSING = re.compile(r"(^|, message: )ModuleNotFoundError: No module named '(?P<module>[\w.]+)'")


def missing_package(message: str, resolution: Resolution) -> str:
    """How to add the package of a module that could not be imported; empty if the error has another cause.

    Args:
        message: The error of a load, or of a request as the guest logs it.
        resolution: What runs the model.
    """
    found = _MISSING.search(message.partition("\n")[0])
    if found is None or resolution.library is not None:
        return ""
    module, source = found["module"].partition(".")[0], resolution.environment
    package = package_of(module)
    path = source.path if isinstance(source, EnvironmentSource) else source
    if source is None or source == resolution.model_file:
        target = resolution.backend_dir or resolution.model_dir
        return f"if '{module}' is a package, add it with `naiad add {target} {package}`"
    if isinstance(source, EnvironmentSource) and source.is_interpreter:
        return f"if '{module}' is a package, install it for that interpreter: `{path} -m pip install {package}`"
    if path is None or not is_declaration(path):
        return f"if '{module}' is a package, add {package} to {_origin_of(path or str(source))}"
    if path.suffix == ".py":
        return f"if '{module}' is a package, add it with `naiad add {path} {package}`"
    if lock_candidates(path) == (path,):
        return f"if '{module}' is a package, add {package} to the file that {path} was locked from, and lock that again"
    return f"if '{module}' is a package, add {package} to {path}, and run `naiad lock {path}`"


def _origin_of(environment: Path | str) -> str:
    if isinstance(environment, Path) and environment.is_dir():
        return f"the environment {environment}"
    return f"the environment that {environment} was packed from, and pack that again"
