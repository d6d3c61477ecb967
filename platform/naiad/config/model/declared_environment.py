"""Files that declare an environment by its requirements: a script with a block (PEP 723), and files of projects.

    # /// script
    # requires-python = ">=3.12"
    # dependencies = ["scikit-learn==1.5.*", "numpy"]
    # ///

The functions here only parse and edit texts; `environments.declared` locks and builds.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from naiad.core.errors import ConfigError
from naiad.core.toml import explain_toml_error, tomllib

# PEP 723 has this expression.
_BLOCK = re.compile(r"(?m)^# /// (?P<type>[a-zA-Z0-9-]+)$\s(?P<content>(^#(| .*)$\s)+)^# ///$")
# The specification ignores a block without an end; an empty line without `#` inside it would discard its packages.
_BEGIN = re.compile(r"(?m)^# /// script$\s^#")
_SCRIPT = "script"
_KEYS = ("dependencies", "requires-python")
_REQUIREMENTS = re.compile(r"requirements([._-][A-Za-z0-9._-]+)?\.(txt|in)")
_PYLOCK = re.compile(r"pylock(\.[^.]+)?\.toml")
_CONDA = re.compile(r"(environment([._-][A-Za-z0-9._-]+)?|conda)\.ya?ml|pixi\.(toml|lock)")
_CONDA_LOCK = "pixi.lock"
_PROJECT = "pyproject.toml"
PYTHON_ENV = "python_env.yaml"  # MLflow's file with a version of Python and requirements, beside a model
_INDENT = "    "


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptBlock:
    """The block of a script."""

    dependencies: tuple[str, ...]
    requires_python: SpecifierSet
    content: str


def is_declaration(path: Path) -> bool:
    """Whether a file, by its name, declares an environment by its requirements."""
    name = path.name
    if name.endswith(".py") or name in {_PROJECT, PYTHON_ENV} or is_conda_declaration(path):
        return True
    return bool(_REQUIREMENTS.fullmatch(name) or _PYLOCK.fullmatch(name))


def is_conda_declaration(path: Path) -> bool:
    """Whether a file, by its name, declares an environment of conda packages."""
    return bool(_CONDA.fullmatch(path.name))


def lock_candidates(path: Path) -> tuple[Path, ...]:
    """Paths at which the lock of a declaration may be, in order; the first is the one that uv writes."""
    if is_conda_declaration(path):
        return (path.with_name(_CONDA_LOCK),)
    if _PYLOCK.fullmatch(path.name):
        return (path,)
    shared = path.with_name("pylock.toml")
    if path.name.endswith(".py"):
        return path.with_name(f"{path.name}.lock"), shared
    if path.name == _PROJECT:
        return path.with_name("uv.lock"), shared
    return (shared,)


def read_script_block(text: str, where: str) -> ScriptBlock | None:
    """The block of a script; None without one. *where* names it in errors, as below."""
    found = [match for match in _BLOCK.finditer(_with_newlines(text)) if match["type"] == _SCRIPT]
    if not found:
        if begin := _BEGIN.search(_with_newlines(text)):
            line = text.count("\n", 0, begin.start()) + 1
            raise ConfigError(
                f"the script block of {where} begins in line {line} and has no end; begin each of its lines with '#', "
                "the empty ones too, and end it with '# ///'"
            )
        return None
    if len(found) > 1:
        raise ConfigError(f"{where} has {len(found)} script blocks ('# /// script'); keep one")
    content = "".join(
        line[2:] if line.startswith("# ") else line[1:] for line in found[0]["content"].splitlines(keepends=True)
    )
    try:
        table: Mapping[str, Any] = tomllib.loads(content)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            f"the script block of {where} is not valid TOML: {explain_toml_error(error, content)}"
        ) from error
    for key in table:
        if key not in _KEYS and (near := difflib.get_close_matches(key, _KEYS, n=1, cutoff=0.8)):
            raise ConfigError(f"the script block of {where} has the unknown key '{key}'; did you mean '{near[0]}'?")
    dependencies = table.get("dependencies", [])
    if not isinstance(dependencies, list) or not all(isinstance(line, str) for line in dependencies):
        raise ConfigError(f"the script block of {where}: 'dependencies' must be a list of strings")
    for line in dependencies:
        try:
            Requirement(line)
        except InvalidRequirement as error:
            raise ConfigError(f"the script block of {where}: '{line}' is not a requirement: {error}") from error
    python = table.get("requires-python", "")
    try:
        specifiers = SpecifierSet(python)
    except (InvalidSpecifier, TypeError, AttributeError):
        raise ConfigError(
            f"the script block of {where}: requires-python is {python!r}, which is not a range of versions; write for "
            'example ">=3.12"'
        ) from None
    return ScriptBlock(dependencies=tuple(dependencies), requires_python=specifiers, content=content)


def add_dependencies(text: str, requirements: Iterable[str], where: str, *, requires_python: str = "") -> str:
    """The script with requirements added to its block, which is created if it has none.

    A requirement replaces an earlier one of the same package.

    Args:
        requires_python: Versions of Python to write if the block names none; empty to leave it so.
    """
    block = read_script_block(text, where)
    chosen = {_key(line, where): line for line in (block.dependencies if block else ())}
    chosen.update({_key(line, where): line for line in requirements})
    lines = _list_of(chosen.values())
    python = [f"requires-python = {_toml_string(requires_python)}"] if requires_python else []
    if block is None:
        return _insert_block(text, [*python, *lines])
    content = _replace_dependencies(block.content, lines)
    if python and "requires-python" not in tomllib.loads(block.content):
        content = "\n".join((*python, content))
    return _with_content(text, content)


def remove_dependencies(text: str, packages: Iterable[str], where: str) -> str:
    """The script without these packages in its block; ConfigError if it does not require one, or no other."""
    block = read_script_block(text, where)
    names = [(_key(line, where).partition(";")[0], line) for line in (block.dependencies if block else ())]
    removed = {canonicalize_name(name): name for name in packages}
    unknown = [name for key, name in removed.items() if key not in dict(names)]
    if block is None or unknown:
        required = ", ".join(sorted(dict(names))) or "none"
        raise ConfigError(f"cannot remove {', '.join(unknown)} from {where}: the packages of its block are: {required}")
    kept = [line for name, line in names if name not in removed]
    if not kept:
        raise ConfigError(
            f"cannot remove {', '.join(removed.values())} from {where}: its block would require nothing; delete the "
            "block and the lock for a model that runs in the server's own Python"
        )
    return _with_content(text, _replace_dependencies(block.content, _list_of(kept)))


def _list_of(requirements: Iterable[str]) -> list[str]:
    return ["dependencies = [", *(f"{_INDENT}{_toml_string(line)}," for line in requirements), "]"]


def _with_content(text: str, content: str) -> str:
    match = next(each for each in _BLOCK.finditer(_with_newlines(text)) if each["type"] == _SCRIPT)
    commented = "".join(f"# {line}\n" if line else "#\n" for line in content.splitlines())
    changed = _with_newlines(text)
    return changed[: match.start("content")] + commented + changed[match.end("content") :]


def _insert_block(text: str, lines: list[str]) -> str:
    block = "".join(f"# {line}\n" for line in ("/// script", *lines, "///"))
    start = re.match(r"(#!.*\n)?(#.*coding[:=].*\n)?", text)
    position = start.end() if start is not None else 0
    return f"{text[:position]}{block}{text[position:]}"


def _replace_dependencies(content: str, lines: list[str]) -> str:
    """The TOML with these lines in place of its key `dependencies`; the other lines, comments included, stay."""
    rows = content.splitlines()
    first = next((number for number, row in enumerate(rows) if re.match(r"dependencies\s*=", row)), None)
    if first is None:
        # Keys of the block itself come before its tables.
        table = next((number for number, row in enumerate(rows) if row.lstrip().startswith("[")), len(rows))
        return "\n".join((*rows[:table], *lines, *rows[table:]))
    for last in range(first, len(rows)):
        try:
            tomllib.loads("\n".join(rows[first : last + 1]))
        except tomllib.TOMLDecodeError:
            continue  # the list ends in a later line
        break
    return "\n".join((*rows[:first], *lines, *rows[last + 1 :]))


def _key(line: str, where: str) -> str:
    try:
        requirement = Requirement(line)
    except InvalidRequirement as error:
        raise ConfigError(f"cannot add '{line}' to {where}: it is not a requirement: {error}") from error
    # One package may be required several times, under different conditions.
    return f"{canonicalize_name(requirement.name)};{requirement.marker or ''}"


def _toml_string(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _with_newlines(text: str) -> str:
    return text.replace("\r\n", "\n")
