"""Advice for a model that cannot be loaded: the package to add, with which command or where, or what to define."""

from __future__ import annotations

import os
import re
from pathlib import Path

from naiad.config.model.declared_environment import is_declaration, lock_candidates
from naiad.config.model.environment_source import EnvironmentSource
from naiad.models.resolution.decision import Resolution
from naiad.sources.interpreters.distributions import folder_with_module, package_of, server_search_path

# Modules that later releases of their packages leave out, and requirements that have them.
_LEFT_OUT = {"pkg_resources": "setuptools<82"}
_MISSING = re.compile(r"(^|, message: )ModuleNotFoundError: No module named '(?P<module>[\w.]+)'")

# Errors of code that lacks what a model has, and what to define.
_UNLIKE = {
    re.compile(r"AttributeError: module '[\w.]+' has no attribute 'TritonPythonModel'"): (
        "class TritonPythonModel, with a method execute(self, requests)"
    ),
    re.compile(r"TypeError: (\w+\.)?initialize\(\) (takes|missing) "): "it as initialize(self, args)",
}


def load_advice(message: str, resolution: Resolution) -> str:
    """How to add the package of a module that could not be imported, or what to define; empty for other errors."""
    line = message.partition("\n")[0]
    for error, wanted in _UNLIKE.items():
        if error.match(line):
            return f"define {wanted}, in {resolution.model_file}"
    found = _MISSING.search(line)
    if found is None or resolution.library is not None:
        return ""
    module = found["module"].partition(".")[0]
    if (folder := folder_with_module(module, server_search_path(os.environ))) is not None:
        return (
            f"'{module}' is in {folder}, which the server's PYTHONPATH or working directory names and only models "
            "under the server's own interpreter import from: name that folder in a .pth file of the model's "
            "environment, put the module beside model.py, or leave the environment out"
        )
    if module in _LEFT_OUT:
        return f"only {_LEFT_OUT[module]} has '{module}': {_advice(resolution, repr(_LEFT_OUT[module]))}"
    package = package_of(module)
    if not package:
        return (
            f"if it is from a package, {_advice(resolution, 'PACKAGE')}, with the package's name, which need not be "
            f"the module's; if '{module}' is code of your own, put it beside model.py, or into a folder of PYTHONPATH "
            "for models under the server's own interpreter"
        )
    return f"if '{module}' is a package, {_advice(resolution, package)}"


def _advice(resolution: Resolution, package: str) -> str:
    source = resolution.environment
    path = source.path if isinstance(source, EnvironmentSource) else source
    if source is None or source == resolution.model_file:
        target = resolution.backend_dir or resolution.model_dir
        return f"add it with `naiad add {target} {package}`"
    if isinstance(source, EnvironmentSource) and source.is_interpreter:
        return f"install it for that interpreter: `{path} -m pip install {package}`"
    if path is None or not is_declaration(path):
        return f"add {package} to {_origin_of(path or str(source))}"
    if path.suffix == ".py":
        return f"add it with `naiad add {path} {package}`"
    if lock_candidates(path) == (path,):
        return f"add {package} to the file that {path} was locked from, and lock that again"
    return f"add {package} to {path}, and run `naiad lock {path}`"


def _origin_of(environment: Path | str) -> str:
    if isinstance(environment, Path) and environment.is_dir():
        return f"the environment {environment}"
    return f"the environment that {environment} was packed from, and pack that again"
