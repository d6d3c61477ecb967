"""Advice for a model whose import failed: the package to add, and the command that adds it."""

from __future__ import annotations

import re

from naiad.interpreters.distributions import package_of
from naiad.resolution.decision import Resolution

__all__ = ["missing_package"]

_MISSING = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")


def missing_package(message: str, resolution: Resolution) -> str:
    """Which command adds the package of a module that could not be imported; empty if the cause is another one.

    Environments that are named by a parameter or a manifest are built elsewhere, so no command of ours changes them.
    """
    found = _MISSING.match(message)
    if found is None or (resolution.environment is not None and resolution.environment != resolution.model_file):
        return ""
    module = found[1].partition(".")[0]
    target = resolution.backend_dir or resolution.model_dir
    return f"if '{module}' is a package, add it with `naiad add {target} {package_of(module)}`"
