"""Recipes: folders from which environments are built.

A recipe is a folder with an `env.toml`:

    name = "text_pipeline"
    description = "Sentence embeddings"  # optional
    python = ">=3.10,<3.14"              # optional: any version unless given
    prefer = "other-than-host"           # optional: "newest" (the default), "host" or "other-than-host"
    requirements = "requirements.txt"    # optional: what pip installs
    locked = true                        # optional: that file names everything; pip adds nothing to it
    files = ["tokenizer.json"]           # optional: copied to share/<name>/ of the environment
"""

from __future__ import annotations

import difflib
import enum
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TypeVar

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from naiad.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["RECIPE_FILE", "Preference", "Recipe", "read_recipe"]

RECIPE_FILE = "env.toml"

_T = TypeVar("_T", str, bool, list[str])

_KEYS = ("name", "description", "python", "prefer", "requirements", "locked", "files")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_KINDS: Mapping[type, str] = {str: "a string", bool: "true or false", list: "a list of strings"}


class Preference(enum.Enum):
    """Which of several suitable interpreters is taken."""

    NEWEST = "newest"
    HOST = "host"
    OTHER_THAN_HOST = "other-than-host"


@dataclass(frozen=True)
class Recipe:
    """A recipe, read and checked.

    Attributes:
        folder: Where it lies.
        name: Name of the environment; its files come to `share/<name>/`.
        python: Versions of Python that it works with.
        prefer: Which of those is taken where the machine has several.
        requirements: The file that pip installs, None where nothing is to be installed.
        locked: Whether that file names every package, so that pip must not add dependencies.
        files: Files and folders that travel with the environment.
        description: What it is for, in a line.
    """

    folder: Path
    name: str
    python: SpecifierSet
    prefer: Preference = Preference.NEWEST
    requirements: Path | None = None
    locked: bool = False
    files: tuple[Path, ...] = ()
    description: str = ""


def read_recipe(folder: Path) -> Recipe:
    """Read the recipe in a folder.

    Raises:
        ConfigError: There is none, it cannot be read, or a key of it is wrong; names file and key.
    """
    file = folder / RECIPE_FILE
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"no recipe in {folder}: it has no {RECIPE_FILE}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {file}: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file} is not valid TOML: {error}") from error
    return _Reader(file, table).recipe()


class _Reader:
    """Takes the keys of one recipe out of its table, each with its own check."""

    def __init__(self, file: Path, table: Mapping[str, object]) -> None:
        self._file = file
        self._table = table

    def recipe(self) -> Recipe:
        self._refuse_unknown_keys()
        return Recipe(
            folder=self._file.parent,
            name=self._name(),
            python=self._python(),
            prefer=self._prefer(),
            requirements=self._requirements(),
            locked=self._get("locked", bool) or False,
            files=self._files(),
            description=self._get("description", str) or "",
        )

    def _name(self) -> str:
        name = self._get("name", str)
        if name is None:
            raise self._wrong("name", 'is missing; write for example name = "text_pipeline"')
        if not _NAME.fullmatch(name):
            raise self._wrong("name", f"is '{name}'; use letters, digits, '_', '-' and '.' only")
        return name

    def _python(self) -> SpecifierSet:
        text = self._get("python", str) or ""
        try:
            return SpecifierSet(text)
        except InvalidSpecifier:
            raise self._wrong(
                "python", f"is '{text}', which is no set of versions; write for example \">=3.9,<3.13\""
            ) from None

    def _prefer(self) -> Preference:
        text = self._get("prefer", str)
        if text is None:
            return Preference.NEWEST
        choices = [choice.value for choice in Preference]
        if text not in choices:
            raise self._wrong("prefer", f"is '{text}'; choose one of {', '.join(map(repr, choices))}")
        return Preference(text)

    def _requirements(self) -> Path | None:
        text = self._get("requirements", str)
        return None if text is None else self._inside("requirements", text, "file")

    def _files(self) -> tuple[Path, ...]:
        return tuple(self._inside("files", text, "file or folder") for text in self._strings("files"))

    def _strings(self, key: str) -> list[str]:
        values = self._get(key, list) or []
        if not all(isinstance(value, str) for value in values):
            raise self._wrong(key, "must be a list of strings")
        return values

    def _get(self, key: str, kind: type[_T]) -> _T | None:
        value = self._table.get(key)
        if value is not None and not isinstance(value, kind):
            raise self._wrong(key, f"must be {_KINDS[kind]}, not {value!r}")
        return value

    def _inside(self, key: str, text: str, kind: str) -> Path:
        relative = PurePosixPath(text)
        if relative.is_absolute() or ".." in relative.parts:
            raise self._wrong(key, f"names '{text}'; only paths inside the recipe's folder can be built elsewhere")
        path = self._file.parent / relative
        if not (path.is_file() or (kind != "file" and path.is_dir())):
            raise self._wrong(key, f"names '{text}', but there is no such {kind} in {self._file.parent}")
        return path

    def _refuse_unknown_keys(self) -> None:
        for key in self._table:
            if key not in _KEYS:
                near = difflib.get_close_matches(key, _KEYS, n=1)
                hint = f"did you mean '{near[0]}'?" if near else f"known keys are {', '.join(_KEYS)}"
                raise self._wrong(key, f"is not known; {hint}")

    def _wrong(self, key: str, what: str) -> ConfigError:
        return ConfigError(f"{self._file}: key '{key}' {what}")
