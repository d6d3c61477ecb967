"""Recipes: folders from which environments are built.

A recipe is a folder with an `env.toml`; docs/reference/environments.md lists its keys:

    name = "text_pipeline"
    python = ">=3.10,<3.14"              # default: any version
    requirements = "requirements.txt"    # or pyproject.toml, or pylock.toml; `conda` for conda packages
"""

from __future__ import annotations

import difflib
import enum
import json
import re
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TypeVar

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from naiad.config.model.declared_environment import is_conda_declaration, lock_candidates
from naiad.core.errors import ConfigError
from naiad.core.toml import explain_toml_error, tomllib
from naiad.environments.archives.manifest import RECIPE_FOLDER

RECIPE_FILE = "env.toml"
_FORMER_LOCK = "requirements.lock"
"""What naiad 0.2 locked a recipe with."""

_T = TypeVar("_T", str, list[str], dict[str, str])

_KEYS = ("name", "description", "python", "prefer", "requirements", "conda", "files", "variables", "platform", "glibc")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_KINDS: Mapping[type, str] = {str: "a string", list: "a list of strings", dict: "a table"}


class Preference(enum.Enum):
    """Which of several suitable interpreters is used."""

    NEWEST = "newest"
    HOST = "host"
    OTHER_THAN_HOST = "other-than-host"


@dataclass(frozen=True)
class Recipe:
    """A validated recipe."""

    folder: Path
    name: str  # of the environment; its files are copied to `share/<name>/`
    python: SpecifierSet
    prefer: Preference = Preference.NEWEST
    requirements: Path | None = None  # a requirements file, a `pyproject.toml`, or a `pylock.toml`
    files: tuple[Path, ...] = ()
    description: str = ""
    conda: Path | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    platform: str = ""  # required, `linux-x86_64`; empty for any
    glibc: str = ""  # the oldest that the environment must run with; empty for any

    @property
    def declaration(self) -> Path | None:
        """The file that declares what is installed; None if nothing is."""
        return self.requirements or self.conda

    @property
    def sources(self) -> tuple[Path, ...]:
        """The files that determine what is installed: the declaration, and its lock if there is one."""
        if self.declaration is None:
            return ()
        locks = [path for path in lock_candidates(self.declaration) if path.is_file()]
        return tuple(dict.fromkeys([self.declaration, *locks[:1]]))


def read_recipe(folder: Path) -> Recipe:
    """Read the recipe in a folder."""
    file = folder / RECIPE_FILE
    try:
        text = file.read_text(encoding="utf-8")
        table = tomllib.loads(text)
    except FileNotFoundError:
        raise ConfigError(f"no recipe in {folder}: it has no {RECIPE_FILE}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {file}: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file} is not valid TOML: {explain_toml_error(error, text)}") from error
    return _RecipeReader(file, table).read()


@dataclass(frozen=True)
class _RecipeReader:
    """Validates the keys of one recipe."""

    _file: Path
    _table: Mapping[str, object]

    def read(self) -> Recipe:
        for key in (each for each in self._table if each not in _KEYS):
            near = difflib.get_close_matches(key, _KEYS, n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"known keys are {', '.join(_KEYS)}"
            raise self._key_error(key, f"is unknown; {hint}")
        if "requirements" in self._table and "conda" in self._table:
            raise self._key_error("conda", "conflicts with 'requirements'; a recipe has one of them")
        former = self._file.with_name(_FORMER_LOCK)
        if former.is_file():
            raise ConfigError(
                f"cannot use {former}: a recipe is locked by a pylock.toml now; remove it and run `naiad lock "
                f"{self._file.parent}`, or rename it to requirements.txt, which is then its own lock"
            )
        conda, files = self._file_named("conda"), self._get("files", list) or []
        if conda is not None and not is_conda_declaration(conda):
            raise self._key_error("conda", f"names '{conda.name}'; it is environment.yml or pixi.lock")
        if not all(isinstance(text, str) for text in files):
            raise self._key_error("files", "must be a list of strings")
        return Recipe(
            folder=self._file.parent,
            name=self._name(),
            python=self._python(),
            prefer=self._prefer(),
            requirements=self._file_named("requirements"),
            files=tuple(self._inside("files", text, "file or folder") for text in files),
            description=self._get("description", str) or "",
            conda=conda,
            variables=self._variables(),
            platform=self._matching("platform", r"[a-z0-9]+-[a-z0-9_]+", "linux-x86_64"),
            glibc=self._matching("glibc", r"\d+\.\d+", "2.28"),
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
            what = f"is '{text}', which is not a version specifier; write for example \">=3.9,<3.13\""
            raise self._key_error("python", what) from None

    def _prefer(self) -> Preference:
        text = self._get("prefer", str) or Preference.NEWEST.value
        choices = [choice.value for choice in Preference]
        if text not in choices:
            raise self._key_error("prefer", f"is '{text}'; choose one of {', '.join(map(repr, choices))}")
        return Preference(text)

    def _variables(self) -> dict[str, str]:
        variables = self._get("variables", dict) or {}
        for name, value in variables.items():
            if not _VARIABLE.fullmatch(name) or not isinstance(value, str):
                raise self._key_error("variables", f"has {name} = {value!r}; it must map names of variables to strings")
        return variables

    def _matching(self, key: str, pattern: str, example: str) -> str:
        text = self._get(key, str) or ""
        if text and not re.fullmatch(pattern, text):
            raise self._key_error(key, f"is '{text}'; write for example \"{example}\"")
        return text

    def _file_named(self, key: str) -> Path | None:
        text = self._get(key, str)
        return None if text is None else self._inside(key, text, "file")

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

    def _key_error(self, key: str, what: str) -> ConfigError:
        return ConfigError(f"{self._file}: key '{key}' {what}")


STATE_FILE = "conda-meta/state"
"""File in which conda stores the variables of an environment."""


def copy_recipe(recipe: Recipe, prefix: Path) -> None:
    """Copy the recipe's files, its variables and the recipe itself into an environment."""
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
    """Write variables to conda's state file, and to an activation script: Triton only runs `activate`."""
    if not variables:
        return
    state = prefix / STATE_FILE
    state.parent.mkdir(exist_ok=True)
    state.write_text(json.dumps({"env_vars": dict(variables)}, indent=1, sort_keys=True), encoding="utf-8")
    script = prefix / "etc" / "conda" / "activate.d" / "naiad_variables.sh"
    script.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"export {name}={shlex.quote(value)}\n" for name, value in sorted(variables.items())]
    script.write_text("".join(lines), encoding="utf-8")
