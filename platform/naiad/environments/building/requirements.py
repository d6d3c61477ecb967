"""What a recipe wants installed, as a requirements file that pip and uv read alike."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement

from naiad.environments.building.lockfiles import Pin, read_foreign_lock, require_current
from naiad.environments.building.recipe import LOCK_FILE, Recipe
from naiad.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["Requirements", "declared", "wanted"]


@dataclass(frozen=True, slots=True)
class Requirements:
    """Requirements to install.

    Attributes:
        text: The requirements file.
        named_in: The file of the recipe that they come from.
        complete: Whether they name everything, so that nothing is to be added to them.
        hashed: Whether each has a digest that has to match.
    """

    text: str
    named_in: Path
    complete: bool
    hashed: bool


def wanted(recipe: Recipe, python: str) -> Requirements | None:
    """What is to be installed under a Python, from the lock where there is one; None if nothing is.

    Raises:
        ConfigError: A file is wrong, or the lock is not for this.
    """
    if recipe.lock is None:
        return declared(recipe)
    if recipe.lock.name == LOCK_FILE:
        require_current(recipe, recipe.lock, ".".join(python.split(".")[:2]))
        text = recipe.lock.read_text(encoding="utf-8")
    else:
        pins = read_foreign_lock(recipe.lock, python, recipe.extras)
        text = "".join(map(_line, pins))
    return Requirements(text, recipe.lock, complete=True, hashed=True)


def declared(recipe: Recipe) -> Requirements | None:
    """What the recipe says itself, without any lock.

    Raises:
        ConfigError: A file is wrong.
    """
    if recipe.requirements is not None:
        # By its path, so that files it includes are found beside it.
        text = f"-r {recipe.requirements.resolve()}\n"
        return Requirements(text, recipe.requirements, complete=recipe.locked, hashed=False)
    if recipe.project is not None:
        return Requirements(
            "\n".join(_dependencies(recipe, recipe.project)) + "\n", recipe.project, recipe.locked, hashed=False
        )
    return None


def _line(pin: Pin) -> str:
    hashes = "".join(f" \\\n    --hash=sha256:{digest}" for digest in sorted(pin.digests))
    return f"{pin.name}=={pin.version}{hashes}\n"


def _dependencies(recipe: Recipe, file: Path) -> list[str]:
    try:
        table: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
        optional = table.get("optional-dependencies", {})
        unknown = [extra for extra in recipe.extras if extra not in optional]
        if unknown:
            raise ConfigError(f"{file} has no extra '{unknown[0]}'; it has {', '.join(sorted(optional)) or 'none'}")
        lines = [*table.get("dependencies", ()), *(line for extra in recipe.extras for line in optional[extra])]
        # An extra that consists of other extras names the project itself.
        return [line for line in lines if Requirement(line).name.lower() != str(table.get("name", "")).lower()]
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"cannot read {file}: {error}") from error
    except (AttributeError, KeyError, TypeError, InvalidRequirement) as error:
        raise ConfigError(f"{file} is not as its format wants it: {error!r}") from error
