"""Where a model's files are: in its version directory, its environment, a package, or anywhere by absolute path."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

PACKAGE = "pkg:"
ENVIRONMENT = "env:"


def locate(name: str, version_dir: str, key: str, file: str = "model.json") -> str:
    """The path that *name*, the value of *key* in *file*, means; whether it is there is not looked at.

    Args:
        name: `pkg:<package>/<file>`, `env:<path below the environment>`, or a path.
        version_dir: What relative paths are relative to.
        key: For errors.
        file: Where *key* is, for errors.

    Raises:
        ValueError: If there is no such package.
    """
    if name.startswith(PACKAGE):
        return _in_package(name, key, file)
    if name.startswith(ENVIRONMENT):
        return str(Path(sys.prefix, name[len(ENVIRONMENT) :]))
    return str(Path(version_dir, Path(name).expanduser()))


def find(name: str, version_dir: str, key: str, file: str = "model.json") -> str:
    """The path of a file or folder that is there.

    Raises:
        ValueError: If it is not; the text says where it was looked for.
    """
    path = locate(name, version_dir, key, file)
    if not Path(path).exists():
        raise ValueError(
            f"'{key}' in {file} is '{name}', but there is no '{path}'. A relative path is relative to the "
            f"version's directory; '{PACKAGE}<package>/<file>' names a file of a package of the model's environment"
        )
    return path


def file_or_name(name: str, version_dir: str, key: str, file: str = "model.json") -> str:
    """The path of *name* if there is such a file or folder, else *name*: that of a hub, which is vLLM's matter.

    Raises:
        ValueError: If there is no such package.
    """
    path = locate(name, version_dir, key, file)
    return path if name.startswith((PACKAGE, ENVIRONMENT)) or Path(path).exists() else name


def _in_package(name: str, key: str, file: str) -> str:
    package, _, rest = name[len(PACKAGE) :].partition("/")
    try:
        # Without importing it: packages of weights may name much that is not installed.
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
