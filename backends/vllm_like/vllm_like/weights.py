"""Resolves names of files in `model.json`: in the version directory, the environment, a package, or absolute."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

PACKAGE = "pkg:"
ENVIRONMENT = "env:"


def locate(name: str, version_dir: str, key: str, file: str = "model.json") -> str:
    """The path for *name*, the value of *key* in *file*, which need not exist; `ValueError` without the package.

    The name is `pkg:<package>/<file>`, `env:<path below the environment>`, or a path.
    """
    if name.startswith(PACKAGE):
        return _in_package(name, key, file)
    if name.startswith(ENVIRONMENT):
        return str(Path(sys.prefix, name[len(ENVIRONMENT) :]))
    return str(Path(version_dir, Path(name).expanduser()))


def find(name: str, version_dir: str, key: str, file: str = "model.json") -> str:
    """The path of an existing file or directory; `ValueError` with the path that was tried."""
    path = locate(name, version_dir, key, file)
    if not Path(path).exists():
        raise ValueError(
            f"'{key}' in {file} is '{name}', but there is no '{path}'; relative paths start in the version's "
            f"directory, and '{PACKAGE}<package>/<file>' names a file in a package of the model's environment"
        )
    return path


def file_or_name(name: str, version_dir: str, key: str, file: str = "model.json") -> str:
    """The path of *name* if it exists, else *name* itself, which vLLM may find in a model hub."""
    path = locate(name, version_dir, key, file)
    return path if name.startswith((PACKAGE, ENVIRONMENT)) or Path(path).exists() else name


def _in_package(name: str, key: str, file: str) -> str:
    package, _, rest = name[len(PACKAGE) :].partition("/")
    try:
        # `find_spec` does not import the package: packages of weights may import what is not installed.
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        spec = None
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    if not folders or not rest:
        raise ValueError(
            f"'{key}' in {file} is '{name}', but there is no package '{package}' in '{sys.prefix}', the model's "
            "environment; install it there, or give a path"
            if rest
            else f"'{key}' in {file} is '{name}': write '{PACKAGE}<package>/<file>'"
        )
    paths = [Path(folder, rest) for folder in folders]
    return str(next((path for path in paths if path.exists()), paths[0]))
