"""The base interpreter of a built environment: choosing an installed Python, and copying it into a prefix.

The copy contains the executable, the standard library without tests and GUI, C headers, and the libraries of the
interpreter's own prefix that these need. Installed packages are not copied: an environment has its own.

Any CPython on the machine can be copied: those of pyenv, uv, conda and Debian. `uv python install` would make copying
simpler, because its builds are relocatable, but it downloads from GitHub; builds must also work offline.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from naiad.config.server.store_location import find_store
from naiad.core.errors import ExecutionEnvironmentError, InterpreterNotFoundError, OptionError, without_frames
from naiad.core.foreign_json import read_json
from naiad.environments.elf import read_dynamic_section
from naiad.environments.store.opening import open_store
from naiad.sources.interpreters.discovery import find_interpreter
from naiad_building.recipe import Preference, Recipe
from naiad_building.relocation import relocate_binaries, relocate_texts

# Run by the interpreter itself, because distributions put their standard library in different places. In a venv it
# reports the paths of the interpreter that the venv was created from.
_QUERY = """
import json, os, platform, sys, sysconfig
executable = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
scheme = {"installed_base": sys.base_prefix, "base": sys.base_prefix,
          "installed_platbase": sys.base_exec_prefix, "platbase": sys.base_exec_prefix}
print(json.dumps({
    "executable": executable,
    "version": platform.python_version(),
    "prefix": sys.base_prefix,
    "stdlib": sysconfig.get_path("stdlib", vars=scheme),
    "extensions": [path for path in sys.path if path.endswith("lib-dynload") and os.path.isdir(path)],
    "include": sysconfig.get_path("include", vars=scheme),
    "cache_tag": sys.implementation.cache_tag,
    "implementation": sys.implementation.name,
    "system": sys.platform,
}))
"""

# Prefixes shared with other programs: libraries there belong to the system and are not copied.
_SYSTEM_PREFIXES = (Path("/"), Path("/usr"))
# Tests, GUI and installers: half of the size of an installation, and unused by models.
_LEFT_OUT_FOLDERS = frozenset(
    {"__pycache__", "site-packages", "dist-packages", "test", "idlelib", "tkinter", "turtledemo", "ensurepip"}
)
_NESTED_TESTS = frozenset({"tests", "test", "idle_test"})
_LEFT_OUT_MODULES = ("_test", "_ctypes_test", "_xxtest", "xxlimited", "_tkinter")
# EXTERNALLY-MANAGED makes pip refuse to install; the customize modules run a distribution's code at every start.
_LEFT_OUT_FILES = frozenset({"EXTERNALLY-MANAGED", "sitecustomize.py", "usercustomize.py", "turtle.py"})


@dataclass(frozen=True)
class BaseInterpreter:
    """An installed interpreter that can be copied; *include*, the folder of the C headers, may be missing."""

    executable: Path
    version: str
    prefix: Path
    stdlib: Path
    include: Path
    cache_tag: str

    @property
    def minor(self) -> str:
        """Major and minor version, `3.12`."""
        return ".".join(self.version.split(".")[:2])

    @property
    def is_system(self) -> bool:
        """Whether its prefix is shared with other programs of the system."""
        return self.prefix in _SYSTEM_PREFIXES


def inspect_base(python: Path) -> BaseInterpreter:
    """The parts of an interpreter; for a venv, those of the interpreter it was created from."""
    try:
        output = subprocess.run(
            [python, "-I", "-S", "-c", _QUERY], capture_output=True, text=True, check=True, timeout=30
        ).stdout
        facts: dict[str, Any] = read_json(output)
    except subprocess.CalledProcessError as error:
        raise ExecutionEnvironmentError(f"{python} does not work: {error.stderr.strip()[-500:]}") from error
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        raise ExecutionEnvironmentError(f"{python} does not work: {error}") from error
    prefix, stdlib, include = (Path(facts[name]).resolve() for name in ("prefix", "stdlib", "include"))
    base = BaseInterpreter(Path(facts["executable"]), facts["version"], prefix, stdlib, include, facts["cache_tag"])
    _require_copyable(base, facts)
    return base


def copy_base(base: BaseInterpreter, prefix: Path) -> None:
    """Copy an interpreter into the existing folder *prefix*; the copy runs without the original, and has no bytecode.

    Raises ExecutionEnvironmentError if the library path in a file has no room for a relative one.
    """
    executables = prefix / "bin"
    executables.mkdir()
    shutil.copy2(base.executable, executables / f"python{base.minor}")
    for name in ("python3", "python"):
        (executables / name).symlink_to(f"python{base.minor}")
    _copy_stdlib(base, prefix / base.stdlib.relative_to(base.prefix))
    if base.include.is_dir() and base.include.is_relative_to(base.prefix):
        shutil.copytree(base.include, prefix / base.include.relative_to(base.prefix))
    _copy_libraries(base, prefix)
    if not base.is_system:
        relocate_binaries(prefix, (base.prefix,))
        relocate_texts(_build_settings(prefix), base.prefix, prefix)


def _require_copyable(base: BaseInterpreter, facts: dict[str, Any]) -> None:
    where = f"cannot build from {base.executable} (Python {base.version})"
    if facts["system"] != "linux":
        raise ExecutionEnvironmentError(f"{where}: environments can be built on Linux only, this is {facts['system']}")
    if facts["implementation"] != "cpython":
        raise ExecutionEnvironmentError(f"{where}: it is {facts['implementation']}; only CPython can be copied")
    if not (base.stdlib / "os.py").is_file():
        raise ExecutionEnvironmentError(f"{where}: its standard library is not in {base.stdlib} as files")
    if not base.stdlib.is_relative_to(base.prefix):
        raise ExecutionEnvironmentError(f"{where}: its standard library {base.stdlib} is outside {base.prefix}")
    for extensions in facts["extensions"]:
        if not Path(extensions).resolve().is_relative_to(base.stdlib):
            raise ExecutionEnvironmentError(
                f"{where}: its extension modules {extensions} are outside its standard library {base.stdlib}"
            )


def _copy_stdlib(base: BaseInterpreter, target: Path) -> None:
    def left_out(folder: str, names: list[str]) -> set[str]:
        return {name for name in names if _is_left_out(Path(folder), name, top=Path(folder) == base.stdlib)}

    # Links are followed: a distribution's links into /etc or /usr/share would dangle on another machine.
    shutil.copytree(base.stdlib, target, ignore=left_out, ignore_dangling_symlinks=True)


def _is_left_out(folder: Path, name: str, *, top: bool) -> bool:
    if top:
        return name in _LEFT_OUT_FOLDERS or name in _LEFT_OUT_FILES
    if folder.name == "lib-dynload":
        return name.startswith(_LEFT_OUT_MODULES)
    if folder.name.startswith("config-"):
        return name.endswith((".a", ".o"))  # 60 MB of static library
    return name == "__pycache__" or (name in _NESTED_TESTS and (folder / name).is_dir())


def _copy_libraries(base: BaseInterpreter, prefix: Path) -> None:
    """Copy the libraries that the interpreter and its modules need from its own prefix, with their dependencies."""
    if base.is_system:
        return
    waiting = [path for path in prefix.rglob("*") if path.is_file() and not path.is_symlink()]
    while waiting:
        section = read_dynamic_section(waiting.pop())
        for name in section.needed if section else ():
            source, copy = base.prefix / "lib" / name, prefix / "lib" / name
            if source.is_file() and not copy.exists():
                copy.parent.mkdir(exist_ok=True)
                shutil.copy2(source, copy)
                waiting.append(copy)


def _build_settings(prefix: Path) -> Iterator[Path]:
    """The files that tell `sysconfig` and builds of packages where Python is installed."""
    for pattern in ("_sysconfigdata*.py", "_sysconfig_vars*.json", "config-*/Makefile", "config-*/python-config.py"):
        yield from prefix.glob(f"lib*/python*/{pattern}")


def choose_base(recipe: Recipe, accepted: SpecifierSet, python: str | None) -> Path:
    """The interpreter to copy: the requested one, or the newest of the accepted versions, by the recipe's preference.

    Raises:
        InterpreterNotFoundError: If the machine has no suitable one.
        OptionError: If *python* is neither a version nor a path.
    """
    if python is not None and "/" in python:
        return Path(python)
    last = InterpreterNotFoundError("no version is left to look for")
    cache = open_store(find_store("", os.environ).path) / "interpreters"  # of the default store, as the server's
    for versions in version_preferences(recipe.prefer, accepted, python, sys.version_info[:2]):
        try:
            return find_interpreter(versions, cache, need_numpy=False).python
        except InterpreterNotFoundError as error:
            last = without_frames(error)
    raise InterpreterNotFoundError(f"cannot build '{recipe.name}' of {recipe.folder}: {last.message}") from last


def version_preferences(
    prefer: Preference, accepted: SpecifierSet, python: str | None, host: tuple[int, int]
) -> list[SpecifierSet]:
    """Sets of versions to search for, most preferred first."""
    if python is not None:
        try:
            return [SpecifierSet(f"=={python}" if re.fullmatch(r"\d+\.\d+\.\d+.*", python) else f"=={python}.*")]
        except InvalidSpecifier:
            raise OptionError(
                f"'{python}' is not a version of Python; give one such as 3.12 or 3.12.1, or the path of an interpreter"
            ) from None
    if prefer is Preference.NEWEST:
        return [accepted]
    sign = "==" if prefer is Preference.HOST else "!="
    return [accepted & SpecifierSet(f"{sign}{host[0]}.{host[1]}.*"), accepted]
