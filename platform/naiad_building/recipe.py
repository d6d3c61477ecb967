"""Recipes: folders from which environments are built.

A recipe is a folder with an `env.toml`; docs/reference/environments.md lists its keys:

    name = "text_pipeline"
    python = ">=3.10,<3.14"              # default: any version
    requirements = "requirements.txt"    # for pip; or `project`, `conda`, or only a `lock`
"""

from __future__ import annotations

import difflib
import enum
import json
import re
import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TypeVar

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from naiad.core.errors import ConfigError
from naiad.environments.archives.manifest import RECIPE_FOLDER

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = [
    "LOCK_FILE",
    "RECIPE_FILE",
    "STATE_FILE",
    "Preference",
    "Recipe",
    "copy_recipe",
    "read_recipe",
    "set_variables",
]

RECIPE_FILE = "env.toml"
LOCK_FILE = "requirements.lock"
"""The lock file that `naiad env lock` writes into the recipe's folder."""

_T = TypeVar("_T", str, bool, list[str], dict[str, str])

_KEYS = (
    *("name", "description", "python", "prefer", "requirements", "project", "extras", "conda", "lock", "locked"),
    *("files", "variables", "platform", "glibc"),
)
_SOURCES = ("requirements", "project", "conda")
_FOREIGN_LOCK = re.compile(r"(pylock(\.[^.]+)?\.toml|uv\.lock)")
_PLATFORM = re.compile(r"[a-z0-9]+-[a-z0-9_]+")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_KINDS: Mapping[type, str] = {str: "a string", bool: "true or false", list: "a list of strings", dict: "a table"}


class Preference(enum.Enum):
    """Which of several suitable interpreters is used."""

    NEWEST = "newest"
    HOST = "host"
    OTHER_THAN_HOST = "other-than-host"


@dataclass(frozen=True)
class Recipe:
    """A validated recipe.

    Attributes:
        folder: Folder of the recipe.
        name: Name of the environment; its files are copied to `share/<name>/`.
        python: Supported versions of Python.
        prefer: Which of these is used if the machine has several.
        requirements: Requirements file for pip.
        project: A `pyproject.toml` whose dependencies are installed.
        extras: Optional dependencies of the project to install.
        conda: An `environment.yml` with conda packages.
        lock: Lock of the above, or a lock without them: `requirements.lock`, `pylock.toml` or `uv.lock`.
        locked: Whether the requirements file lists all packages, so that pip must not add dependencies.
        files: Files and folders to copy into the environment.
        description: Purpose, in one line.
        variables: Environment variables for guests.
        platform: Required platform, `linux-x86_64`; empty for any.
        glibc: Oldest glibc that the environment must run with; empty for any.
    """

    folder: Path
    name: str
    python: SpecifierSet
    prefer: Preference = Preference.NEWEST
    requirements: Path | None = None
    locked: bool = False
    files: tuple[Path, ...] = ()
    description: str = ""
    project: Path | None = None
    extras: tuple[str, ...] = ()
    conda: Path | None = None
    lock: Path | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    platform: str = ""
    glibc: str = ""

    @property
    def sources(self) -> tuple[Path, ...]:
        """The files that determine what is installed."""
        return tuple(path for path in (self.requirements, self.project, self.conda, self.lock) if path is not None)


def read_recipe(folder: Path) -> Recipe:
    """Read the recipe in a folder.

    Raises:
        ConfigError: If it is missing or cannot be read, or a key is invalid; names file and key.
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
    return _RecipeReader(file, table).read()


class _RecipeReader:
    """Validates the keys of one recipe."""

    def __init__(self, file: Path, table: Mapping[str, object]) -> None:
        self._file = file
        self._table = table

    def read(self) -> Recipe:
        self._reject_unknown_keys()
        self._reject_two_sources()
        return Recipe(
            folder=self._file.parent,
            name=self._name(),
            python=self._python(),
            prefer=self._prefer(),
            requirements=self._file_named("requirements"),
            locked=self._get("locked", bool) or False,
            files=self._files(),
            description=self._get("description", str) or "",
            project=self._file_named("project"),
            extras=tuple(self._strings("extras")),
            conda=self._file_named("conda"),
            lock=self._lock(),
            variables=self._variables(),
            platform=self._matching("platform", _PLATFORM, "linux-x86_64"),
            glibc=self._matching("glibc", re.compile(r"\d+\.\d+"), "2.28"),
        )

    def _name(self) -> str:
        name = self._get("name", str)
        if name is None:
            raise self._key_error("name", 'is missing; write for example name = "text_pipeline"')
        if not _NAME.fullmatch(name):
            raise self._key_error("name", f"is '{name}'; use letters, digits, '_', '-' and '.' only")
        return name

    def _python(self) -> SpecifierSet:
        text = self._get("python", str) or ""
        try:
            return SpecifierSet(text)
        except InvalidSpecifier:
            raise self._key_error(
                "python", f"is '{text}', which is not a version specifier; write for example \">=3.9,<3.13\""
            ) from None

    def _prefer(self) -> Preference:
        text = self._get("prefer", str)
        if text is None:
            return Preference.NEWEST
        choices = [choice.value for choice in Preference]
        if text not in choices:
            raise self._key_error("prefer", f"is '{text}'; choose one of {', '.join(map(repr, choices))}")
        return Preference(text)

    def _file_named(self, key: str) -> Path | None:
        text = self._get(key, str)
        return None if text is None else self._inside(key, text, "file")

    def _lock(self) -> Path | None:
        """The lock file in the recipe, else the one that `naiad env lock` wrote."""
        named = self._file_named("lock")
        if named is None:
            written = self._file.parent / LOCK_FILE
            return written if written.is_file() else None
        if named.name != LOCK_FILE and not _FOREIGN_LOCK.fullmatch(named.name):
            raise self._key_error("lock", f"names '{named.name}'; it is {LOCK_FILE}, pylock.toml or uv.lock")
        if named.name != LOCK_FILE and any(key in self._table for key in ("requirements", "conda")):
            raise self._key_error(
                "lock", f"names '{named.name}', which determines everything that is installed; remove the other sources"
            )
        return named

    def _variables(self) -> dict[str, str]:
        variables = self._get("variables", dict) or {}
        for name, value in variables.items():
            if not _VARIABLE.fullmatch(name) or not isinstance(value, str):
                raise self._key_error("variables", f"has {name} = {value!r}; it must map names of variables to strings")
        return variables

    def _matching(self, key: str, pattern: re.Pattern[str], example: str) -> str:
        text = self._get(key, str) or ""
        if text and not pattern.fullmatch(text):
            raise self._key_error(key, f"is '{text}'; write for example \"{example}\"")
        return text

    def _files(self) -> tuple[Path, ...]:
        return tuple(self._inside("files", text, "file or folder") for text in self._strings("files"))

    def _strings(self, key: str) -> list[str]:
        values = self._get(key, list) or []
        if not all(isinstance(value, str) for value in values):
            raise self._key_error(key, "must be a list of strings")
        return values

    def _get(self, key: str, kind: type[_T]) -> _T | None:
        value = self._table.get(key)
        if value is not None and not isinstance(value, kind):
            raise self._key_error(key, f"must be {_KINDS[kind]}, not {value!r}")
        return value

    def _inside(self, key: str, text: str, kind: str) -> Path:
        relative = PurePosixPath(text)
        if relative.is_absolute() or ".." in relative.parts:
            raise self._key_error(key, f"names '{text}'; the path must be inside the recipe's folder")
        path = self._file.parent / relative
        if not (path.is_file() or (kind != "file" and path.is_dir())):
            raise self._key_error(key, f"names '{text}', but there is no such {kind} in {self._file.parent}")
        return path

    def _reject_two_sources(self) -> None:
        given = [key for key in _SOURCES if key in self._table]
        if len(given) > 1:
            raise self._key_error(given[1], f"conflicts with '{given[0]}'; a recipe has one of {', '.join(_SOURCES)}")
        if "extras" in self._table and "project" not in self._table and "lock" not in self._table:
            raise self._key_error("extras", "needs the key 'project' or 'lock'")

    def _reject_unknown_keys(self) -> None:
        for key in self._table:
            if key not in _KEYS:
                near = difflib.get_close_matches(key, _KEYS, n=1)
                hint = f"did you mean '{near[0]}'?" if near else f"known keys are {', '.join(_KEYS)}"
                raise self._key_error(key, f"is unknown; {hint}")

    def _key_error(self, key: str, what: str) -> ConfigError:
        return ConfigError(f"{self._file}: key '{key}' {what}")


STATE_FILE = "conda-meta/state"
"""File in which conda stores the variables of an environment."""


def copy_recipe(recipe: Recipe, prefix: Path) -> None:
    """Copy the recipe's files, its variables and the recipe itself into an environment.

    Raises:
        OSError: If a file cannot be copied.
    """
    for source in recipe.files:
        _copy(source, prefix / "share" / recipe.name / source.relative_to(recipe.folder))
    for source in (recipe.folder / RECIPE_FILE, *recipe.sources):
        _copy(source, prefix / RECIPE_FOLDER / recipe.name / source.relative_to(recipe.folder))
    set_variables(recipe.variables, prefix)


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copy2(source, target)


def set_variables(variables: Mapping[str, str], prefix: Path) -> None:
    """Write variables to conda's state file, and to an activation script: Triton only runs `activate`.

    Raises:
        OSError: If a file cannot be written.
    """
    if not variables:
        return
    state = prefix / STATE_FILE
    state.parent.mkdir(exist_ok=True)
    state.write_text(json.dumps({"env_vars": dict(variables)}, indent=1, sort_keys=True), encoding="utf-8")
    script = prefix / "etc" / "conda" / "activate.d" / "naiad_variables.sh"
    script.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"export {name}={shlex.quote(value)}\n" for name, value in sorted(variables.items())]
    script.write_text("".join(lines), encoding="utf-8")
