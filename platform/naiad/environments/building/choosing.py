"""Choosing the interpreter that an environment is built from."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from naiad.config.server.store_location import find_store
from naiad.environments.building.lockfile import read_head
from naiad.environments.building.recipe import LOCK_FILE, Preference, Recipe
from naiad.errors import InterpreterNotFoundError, OptionError
from naiad.interpreters.discovery import find_interpreter, found_interpreters
from naiad.interpreters.versions import matches

__all__ = ["choose", "find_base", "installed_minors", "wishes"]


def choose(recipe: Recipe, python: str | None) -> Path:
    """The interpreter to copy: the one asked for, or the newest of those the recipe takes, by its preference.

    Raises:
        InterpreterNotFoundError: There is none.
        OptionError: What is asked for is no version.
    """
    if python is not None and "/" in python:
        return Path(python)
    return find_base(recipe, *wishes(recipe, python, sys.version_info[:2]))


def find_base(recipe: Recipe, *wanted: SpecifierSet) -> Path:
    """The newest interpreter of the first of several sets of versions that the machine has one of.

    Raises:
        InterpreterNotFoundError: There is none of any.
    """
    last = InterpreterNotFoundError("no version is left to look for")
    for versions in wanted:
        try:
            return find_interpreter(versions, _cache(), need_numpy=False).python
        except InterpreterNotFoundError as error:
            last = error
    raise InterpreterNotFoundError(f"cannot build '{recipe.name}' of {recipe.folder}: {last.message}") from last


def installed_minors(versions: SpecifierSet) -> list[str]:
    """Which of these versions are on the machine, `3.12`; one at least.

    Raises:
        InterpreterNotFoundError: There is none.
    """
    found = {one.version for one in found_interpreters(_cache()) if matches(versions, one.version)}
    if not found:
        find_interpreter(versions, _cache(), need_numpy=False)  # says what was looked at
    return [f"{major}.{minor}" for major, minor in sorted({version[:2] for version in found})]


def wishes(recipe: Recipe, python: str | None, host: tuple[int, int]) -> list[SpecifierSet]:
    """Sets of versions to look for, the dearest first."""
    if python is not None:
        return [_exactly(python)]
    known = _locked(recipe)
    if recipe.prefer is Preference.NEWEST:
        return known or [recipe.python]
    own = SpecifierSet(f"=={host[0]}.{host[1]}.*")
    if known:
        first = [one for one in known if (one == own) == (recipe.prefer is Preference.HOST)]
        return [*first, *(one for one in known if one not in first)]
    sign = "==" if recipe.prefer is Preference.HOST else "!="
    return [recipe.python & SpecifierSet(f"{sign}{host[0]}.{host[1]}.*"), recipe.python]


def _locked(recipe: Recipe) -> list[SpecifierSet]:
    """Each version that our lock holds for, the newest first: others would only be refused."""
    if recipe.lock is None or recipe.lock.name != LOCK_FILE:
        return []
    minors = [tuple(map(int, minor.split("."))) for minor in read_head(recipe.lock).pythons]
    return [SpecifierSet("==" + ".".join(map(str, minor)) + ".*") for minor in sorted(minors, reverse=True)]


def _exactly(version: str) -> SpecifierSet:
    try:
        return SpecifierSet(f"=={version}" if re.fullmatch(r"\d+\.\d+\.\d+.*", version) else f"=={version}.*")
    except InvalidSpecifier:
        raise OptionError(
            f"'{version}' is no version of Python; give one such as 3.12 or 3.12.1, or the path of an interpreter"
        ) from None


def _cache() -> Path:
    # The default store's own, so that what serving has asked is known here.
    return find_store("", os.environ).path / "interpreters"
