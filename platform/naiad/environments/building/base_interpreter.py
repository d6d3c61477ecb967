"""What of an interpreter travels: finding its parts and copying them into a prefix of their own.

Copied are the executable, the standard library without tests and GUI, C headers, and the libraries out of the
interpreter's own prefix that any of these need. Never its installed packages: an environment has its own.
"""

from __future__ import annotations

import json
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
from naiad.environments.building.elf import read_dynamic_section
from naiad.environments.building.lockfiles import read_head
from naiad.environments.building.recipe import LOCK_FILE, Preference, Recipe
from naiad.environments.building.relocation import relocate_binaries, relocate_texts
from naiad.errors import ExecutionEnvironmentError, InterpreterNotFoundError, OptionError
from naiad.interpreters.discovery import find_interpreter, list_interpreters
from naiad.interpreters.versions import matches

__all__ = ["BaseInterpreter", "choose", "copy_base", "find_base", "inspect_base", "installed_minors", "wishes"]

# Asked of the interpreter itself: where a distribution puts its standard library is its own affair. In a venv these
# are the paths of the interpreter behind it.
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

# Prefixes that the system's other programs share: libraries there belong to the machine, not to the interpreter.
_SYSTEM_PREFIXES = (Path("/"), Path("/usr"))
# Tests, GUI and installers: half of an installation, of no use to a model.
_LEFT_OUT_FOLDERS = frozenset(
    {"__pycache__", "site-packages", "dist-packages", "test", "idlelib", "tkinter", "turtledemo", "ensurepip"}
)
_NESTED_TESTS = frozenset({"tests", "test", "idle_test"})
_LEFT_OUT_MODULES = ("_test", "_ctypes_test", "_xxtest", "xxlimited", "_tkinter")
# EXTERNALLY-MANAGED forbids pip; the other two run a distribution's own code in every interpreter.
_LEFT_OUT_FILES = frozenset({"EXTERNALLY-MANAGED", "sitecustomize.py", "usercustomize.py", "turtle.py"})


@dataclass(frozen=True)
class BaseInterpreter:
    """An installed interpreter whose parts can be copied.

    Attributes:
        executable: The real file, links resolved.
        version: Full version, `3.12.1`.
        prefix: Where it is installed.
        stdlib: Folder of the standard library, inside `prefix`.
        include: Folder of the C headers; it need not exist.
        cache_tag: Tag of its bytecode files, `cpython-312`.
    """

    executable: Path
    version: str
    prefix: Path
    stdlib: Path
    include: Path
    cache_tag: str

    @property
    def minor(self) -> str:
        """The version's first two numbers, `3.12`."""
        return ".".join(self.version.split(".")[:2])

    @property
    def is_system(self) -> bool:
        """Whether its prefix is shared with the rest of the system."""
        return self.prefix in _SYSTEM_PREFIXES


def inspect_base(python: Path) -> BaseInterpreter:
    """Ask an interpreter for its parts; a venv answers for the interpreter behind it.

    Raises:
        ExecutionEnvironmentError: It does not run, or it cannot be copied; says why.
    """
    try:
        answer = subprocess.run(
            [python, "-I", "-S", "-c", _QUERY], capture_output=True, text=True, check=True, timeout=30
        ).stdout
        facts: dict[str, Any] = json.loads(answer)
    except subprocess.CalledProcessError as error:
        raise ExecutionEnvironmentError(f"{python} does not work: {error.stderr.strip()[-500:]}") from error
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        raise ExecutionEnvironmentError(f"{python} does not work: {error}") from error
    base = BaseInterpreter(
        executable=Path(facts["executable"]),
        version=facts["version"],
        prefix=Path(facts["prefix"]).resolve(),
        stdlib=Path(facts["stdlib"]).resolve(),
        include=Path(facts["include"]).resolve(),
        cache_tag=facts["cache_tag"],
    )
    _require_copyable(base, facts)
    return base


def copy_base(base: BaseInterpreter, prefix: Path) -> None:
    """Copy an interpreter into the existing folder `prefix`, where it runs without the original.

    Raises:
        ExecutionEnvironmentError: A file's library path has no room for a relative one.
        OSError: A file cannot be copied.
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
        raise ExecutionEnvironmentError(f"{where}: its standard library {base.stdlib} lies outside {base.prefix}")
    for extensions in facts["extensions"]:
        if not Path(extensions).resolve().is_relative_to(base.stdlib):
            raise ExecutionEnvironmentError(
                f"{where}: its extension modules {extensions} lie outside its standard library {base.stdlib}"
            )


def _copy_stdlib(base: BaseInterpreter, target: Path) -> None:
    def left_out(folder: str, names: list[str]) -> set[str]:
        return {name for name in names if _is_left_out(Path(folder), name, top=Path(folder) == base.stdlib)}

    # Links are followed: a distribution's links into /etc or /usr/share lead nowhere on another machine.
    shutil.copytree(base.stdlib, target, ignore=left_out, ignore_dangling_symlinks=True)
    _copy_bytecode(base, target)


def _is_left_out(folder: Path, name: str, *, top: bool) -> bool:
    if top:
        return name in _LEFT_OUT_FOLDERS or name in _LEFT_OUT_FILES
    if folder.name == "lib-dynload":
        return name.startswith(_LEFT_OUT_MODULES)
    if folder.name.startswith("config-"):
        return name.endswith((".a", ".o"))  # 60 MB of static library
    return name == "__pycache__" or (name in _NESTED_TESTS and (folder / name).is_dir())


def _copy_bytecode(base: BaseInterpreter, target: Path) -> None:
    """Bring along what the original has compiled, so that only the rest needs compiling.

    Copies keep their times, so bytecode stays valid. Optimised variants (-O, -OO) double the size for nothing.
    """
    for folder, _, names in os.walk(target):  # the copy: the original may hold thousands of packages besides
        bytecode = base.stdlib / os.path.relpath(folder, target) / "__pycache__"
        present = {path.name for path in bytecode.iterdir()} if bytecode.is_dir() else set()
        found = present & {f"{name[:-3]}.{base.cache_tag}.pyc" for name in names if name.endswith(".py")}
        if found:
            copies = Path(folder, "__pycache__")
            copies.mkdir(exist_ok=True)
            for name in found:
                shutil.copy2(bytecode / name, copies / name)


def _copy_libraries(base: BaseInterpreter, prefix: Path) -> None:
    """Copy the libraries of the interpreter's own prefix that it and its modules need, and what those need."""
    if base.is_system:
        return
    waiting = [path for path in prefix.rglob("*") if path.is_file() and not path.is_symlink()]
    seen: set[str] = set()
    while waiting:
        section = read_dynamic_section(waiting.pop())
        for name in section.needed if section else ():
            source = base.prefix / "lib" / name
            if name not in seen and source.is_file():
                (prefix / "lib").mkdir(exist_ok=True)
                shutil.copy2(source, prefix / "lib" / name)
                waiting.append(prefix / "lib" / name)
            seen.add(name)


def _build_settings(prefix: Path) -> Iterator[Path]:
    """The files by which `sysconfig` and compilers of packages learn where Python lies."""
    for pattern in ("_sysconfigdata*.py", "_sysconfig_vars*.json", "config-*/Makefile", "config-*/python-config.py"):
        yield from prefix.glob(f"lib*/python*/{pattern}")


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
    found = {one.version for one in list_interpreters(_cache()) if matches(versions, one.version)}
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
