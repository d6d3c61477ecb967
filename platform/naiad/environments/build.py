"""Building an environment from a recipe: a whole interpreter with packages, which runs wherever it is put.

The order matters: the interpreter is copied and compiled, then recorded for conda-pack, then packages come in.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from naiad.environments.base import BaseInterpreter, copy_base, inspect_base
from naiad.environments.conda_meta import write_conda_meta
from naiad.environments.pip_install import find_pip, install_requirements
from naiad.environments.probe import Interpreter, ask
from naiad.environments.recipe import Preference, Recipe, read_recipe
from naiad.environments.relocate import relocate_binaries
from naiad.errors import ExecutionEnvironmentError

__all__ = ["BuiltEnvironment", "build"]


@dataclass(frozen=True)
class BuiltEnvironment:
    """A prefix that was built.

    Attributes:
        prefix: Where it lies; it may be packed, or copied to another machine as it is.
        python: Its interpreter.
        version: Full version of that interpreter.
        base: The interpreter it was copied from; no longer needed.
        packages: Name and version of everything installed in it.
    """

    prefix: Path
    python: Path
    version: str
    base: Path
    packages: tuple[tuple[str, str], ...]


def build(
    recipe_dir: Path,
    output_prefix: Path,
    *,
    python: str | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> BuiltEnvironment:
    """Build the environment of a recipe.

    Args:
        recipe_dir: Folder of the recipe.
        output_prefix: Folder to build in; must not exist yet, or be empty.
        python: A version (`3.12`, `3.12.1`) or the path of an interpreter, instead of what the recipe asks for.
        progress: Called with a line for each step.

    Raises:
        ConfigError: The recipe is wrong.
        InterpreterNotFoundError: No suitable interpreter is on this machine.
        ExecutionEnvironmentError: It could not be built; nothing is left of it.
    """
    recipe = read_recipe(recipe_dir)
    prefix = Path(os.path.abspath(output_prefix))
    _require_free(prefix)
    base = inspect_base(_choose(recipe, python))
    created = _missing_parents(prefix)
    try:
        prefix.mkdir(parents=True, exist_ok=True)
        return _build_in(recipe, base, prefix.resolve(), progress)
    except OSError as error:
        _remove(prefix, created)
        raise ExecutionEnvironmentError(f"cannot build '{recipe.name}' in {prefix}: {error}") from error
    except BaseException:
        _remove(prefix, created)
        raise
