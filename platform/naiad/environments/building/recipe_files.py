"""What of a recipe lies in its environment: its files, its variables, and a copy of the recipe itself."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

from naiad.environments.building.recipe import RECIPE_FILE, Recipe

__all__ = ["RECIPE_FOLDER", "STATE_FILE", "copy_recipe"]

RECIPE_FOLDER = "share/naiad/recipe"
"""Where in an environment a copy of its recipe lies, in a folder of the recipe's name."""

STATE_FILE = "conda-meta/state"
"""Where conda keeps the variables of an environment."""


def copy_recipe(recipe: Recipe, prefix: Path) -> None:
    """Put files, variables and the recipe itself into an environment.

    Raises:
        OSError: A file cannot be copied.
    """
    for source in recipe.files:
        _copy(source, prefix / "share" / recipe.name / source.relative_to(recipe.folder))
    for source in (recipe.folder / RECIPE_FILE, *recipe.sources):
        _copy(source, prefix / RECIPE_FOLDER / recipe.name / source.relative_to(recipe.folder))
    if recipe.variables:
        _set_variables(recipe, prefix)


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copy2(source, target)


def _set_variables(recipe: Recipe, prefix: Path) -> None:
    """Twice: for naiad and conda, and for what only runs `activate`, such as the reference."""
    state = prefix / STATE_FILE
    state.parent.mkdir(exist_ok=True)
    state.write_text(json.dumps({"env_vars": dict(recipe.variables)}, indent=1, sort_keys=True), encoding="utf-8")
    script = prefix / "etc" / "conda" / "activate.d" / "naiad_variables.sh"
    script.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"export {name}={shlex.quote(value)}\n" for name, value in sorted(recipe.variables.items())]
    script.write_text("".join(lines), encoding="utf-8")
