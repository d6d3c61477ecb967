"""The requirements of a recipe, as a requirements file for pip and uv: from its lock, else from its own files."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement

from naiad.core.errors import ConfigError
from naiad_building.indexes import parse_options
from naiad_building.lockfiles import open_foreign_lock, pin_lines, require_current
from naiad_building.recipe import LOCK_FILE, Recipe

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_EDITABLE = ("-e", "--editable")
_INCLUDED = ("-r", "--requirement")

__all__ = ["Requirements", "declared_requirements", "requirements_to_install"]


@dataclass(frozen=True, slots=True)
class Requirements:
    """Requirements to install.

    Attributes:
        text: Content of the requirements file.
        named_in: File of the recipe that they come from.
        complete: Whether they list all dependencies, so that none are added (`--no-deps`).
        hashed: Whether each has a digest (`--require-hashes`).
    """

    text: str
    named_in: Path
    complete: bool
    hashed: bool


def requirements_to_install(recipe: Recipe, python: str) -> Requirements | None:
    """The requirements for a version of Python: from the lock if the recipe has one; None without any.

    Raises:
        ConfigError: If a file is invalid, or the lock does not match.
    """
    if recipe.lock is None:
        return declared_requirements(recipe)
    if recipe.lock.name == LOCK_FILE:
        require_current(recipe, recipe.lock, ".".join(python.split(".")[:2]))
        text = recipe.lock.read_text(encoding="utf-8")
    else:
        text = pin_lines(open_foreign_lock(recipe.lock).pins(python, recipe.extras))
    return Requirements(text, recipe.lock, complete=True, hashed=True)


def declared_requirements(recipe: Recipe) -> Requirements | None:
    """The requirements in the recipe's own files, without a lock.

    Raises:
        ConfigError: If a file is invalid.
    """
    if recipe.requirements is not None:
        _reject_editable(recipe.requirements, set())
        # By path, because included files are relative to it.
        text = f"-r {recipe.requirements.resolve()}\n"
        return Requirements(text, recipe.requirements, complete=recipe.locked, hashed=False)
    if recipe.project is not None:
        return Requirements(
            "\n".join(_dependencies(recipe, recipe.project)) + "\n", recipe.project, recipe.locked, hashed=False
        )
    return None


def _reject_editable(file: Path, seen: set[Path]) -> None:
    """Reject requirements with `--editable`, also in included files: their code would stay outside the environment."""
    seen.add(file)
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError):
        return  # the installer reports it
    for number, line in enumerate(lines, 1):
        for name, value in parse_options(line):
            if name in _EDITABLE:
                raise ConfigError(
                    f"{file}:{number} requires '{line.strip()}': the code of an editable package stays outside the "
                    f"environment, so that it cannot be packed; write {value} without --editable, which copies it"
                )
            included = file.parent / value
            if name in _INCLUDED and included not in seen:
                _reject_editable(included, seen)


def _dependencies(recipe: Recipe, file: Path) -> list[str]:
    try:
        table: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
        optional = table.get("optional-dependencies", {})
        unknown = [extra for extra in recipe.extras if extra not in optional]
        if unknown:
            raise ConfigError(f"{file} has no extra '{unknown[0]}'; it has {', '.join(sorted(optional)) or 'none'}")
        lines = [*table.get("dependencies", ()), *(line for extra in recipe.extras for line in optional[extra])]
        # An extra that includes other extras requires the project itself.
        return [line for line in lines if Requirement(line).name.lower() != str(table.get("name", "")).lower()]
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"cannot read {file}: {error}") from error
    except (AttributeError, KeyError, TypeError, InvalidRequirement) as error:
        raise ConfigError(f"{file} is invalid: {error!r}") from error
