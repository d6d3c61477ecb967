"""The interpreter in the folder of an environment: finding, checking and probing it."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable
from pathlib import Path

from naiad.core.errors import ExecutionEnvironmentError
from naiad.sources.interpreters.executables import read_header, require_runs_here
from naiad.sources.interpreters.probe import Interpreter, probe_interpreter
from naiad.sources.interpreters.versions import version_text

_NAMES = ("python", "python3")
_VERSIONED = re.compile(r"python3\.\d+")
_DEEPEST, _WIDEST = 5, 2000  # how far environments are searched below a folder, and in how many folders
_SHOWN = 5
_FREE_THREADED = re.compile(r"cpython-\d+d?td?\b|cpython-\d+d?td?-")
_log = logging.getLogger("naiad.environments")
_WINDOWS = ("python.exe", "Scripts/python.exe")


def find_interpreter_in(folder: Path) -> Path | None:
    """The interpreter in an environment's folder, None without one. Returns dangling links too, for error messages."""
    for name in _NAMES:
        if os.path.lexists(folder / "bin" / name):
            return folder / "bin" / name
    found = sorted(path for path in (folder / "bin").glob("python3.*") if _VERSIONED.fullmatch(path.name))
    return found[-1] if found else None


def environments_below(folder: Path) -> list[Path]:
    """The folders that have an interpreter: the folder itself, else those that are nearest to it."""
    level = [folder]
    for depth in range(_DEEPEST + 1):
        # Deeper down, packages have folders `bin` of their own.
        found = [each for each in level if find_interpreter_in(each) and (depth <= 1 or (each / "lib").is_dir())]
        if found:
            return found
        level = [child for each in level for child in _folders_in(each)]
        if len(level) > _WIDEST:
            break
    return []


def _folders_in(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            # `__MACOSX` has the attributes of files that macOS's zip has packed.
            names = [each.name for each in entries if each.is_dir(follow_symlinks=False) and each.name != "__MACOSX"]
    except OSError:
        return []
    return [folder / name for name in sorted(names)]


def require_interpreter(folder: Path, *, where: str) -> Path:
    """The interpreter in an environment's folder, checked to exist and to be built for this machine."""
    python = find_interpreter_in(folder)
    if python is None:
        windows = next((name for name in _WINDOWS if (folder / name).exists()), None)
        if windows:
            raise ExecutionEnvironmentError(f"{where} is for another platform: it holds {windows}, made for Windows")
        raise ExecutionEnvironmentError(
            f"{where} has no interpreter: looked for bin/python, bin/python3 and bin/python3.* in {folder}; "
            f"{_advice_without_interpreter(folder)}"
        )
    if not python.exists():
        raise ExecutionEnvironmentError(
            f"{where} has no interpreter: {python} is a link to {os.path.realpath(python)}, which does not exist "
            "(a venv needs the Python it was made from on the same machine)"
        )
    require_runs_here(python, where=where)
    return python


def _advice_without_interpreter(folder: Path) -> str:
    if folder.name == "bin" and find_interpreter_in(folder.parent) is not None:
        return f"name the folder above it, {folder.parent}, or an interpreter in it"
    found = environments_below(folder)[:_SHOWN]
    if found:
        places = ", ".join(str(path.relative_to(folder)) for path in found)
        return f"environments are in {places}: name or pack one of them alone"
    return "an environment is a conda environment, a venv, a conda-pack archive or anything else with bin/python"


def require_program(python: Path, *, where: str) -> None:
    """Check that a file that is named as an interpreter is a program of this machine."""
    if not python.exists():
        real = os.path.realpath(python)
        link = f"it is a link to {real}, which does not exist" if python.is_symlink() else "it does not exist"
        raise ExecutionEnvironmentError(f"{where} cannot be used: {link}; name an interpreter, or the folder above bin")
    require_runs_here(python, where=where)
    if not python.is_file() or read_header(python).system == "unknown":
        raise ExecutionEnvironmentError(
            f"{where} cannot be used: it is not a program; name a file such as /opt/conda/bin/python, or the folder "
            "above bin"
        )
    if not os.access(python, os.X_OK):
        raise ExecutionEnvironmentError(
            f"{where} cannot be used: it is not executable by this user (mode {python.stat().st_mode & 0o7777:o}); "
            f"run `chmod +x {python}`, or name another one"
        )


def probe_with_libraries(
    python: Path, folder: Path, probe: Callable[[Path], Interpreter]
) -> tuple[Interpreter, Path | None]:
    """Probe the interpreter of an environment; returns also the folder for LD_LIBRARY_PATH, None if it needs none.

    A copied interpreter searches libpython in its original folder. Then it either does not start, or runs with the
    libpython of another Python and its own standard library, which fails later. Setting LD_LIBRARY_PATH to the
    environment's `lib` solves both.
    """
    own = folder / "lib"
    has_own = any(own.glob("libpython3*.so*"))
    try:
        found = probe(python)
    except ExecutionEnvironmentError:
        if not has_own:
            raise
    else:
        mapped = found.libpython
        if not has_own or mapped is None or Path(mapped).resolve().is_relative_to(folder.resolve()):
            return found, None
    return probe_interpreter(python, library_path=own), own


def require_cpython(found: Interpreter, *, where: str) -> None:
    """Reject other implementations than CPython, such as PyPy; *where* names the environment in the error."""
    if found.implementation != "cpython":
        raise ExecutionEnvironmentError(
            f"{where} cannot be used: its interpreter is {found.implementation} {version_text(found.version)}, and "
            "models run under CPython only, which frees the memory of tensors when their last reference is dropped; "
            "make the environment with CPython"
        )


def is_free_threaded(found: Interpreter) -> bool:
    """Whether it is a build of CPython without the global lock, as python3.13t."""
    return _FREE_THREADED.match(found.abi) is not None


def is_numpy_broken(found: Interpreter) -> bool:
    """Whether an interpreter has numpy and cannot import it."""
    return found.numpy is None and "No module named 'numpy'" not in (found.numpy_error or "No module named 'numpy'")


def require_numpy(found: Interpreter, *, where: str, advice: str) -> None:
    """Reject an interpreter without numpy, by which the stub passes tensors; *advice* is how to add it."""
    require_cpython(found, where=where)
    if is_free_threaded(found):
        _log.warning(
            "%s has a free-threaded Python %s, with which models are not tested: use a build with the global lock if "
            "one fails, or start the server with PYTHON_GIL=1",
            where,
            version_text(found.version),
        )
    if found.numpy is None:
        if is_numpy_broken(found):
            advice = (
                "it is installed there and does not work: install it again, in a version for this Python and this "
                "machine (`python -m pip install --force-reinstall numpy`), and pack the environment again if this is "
                "an archive"
            )
        raise ExecutionEnvironmentError(
            f"{where} cannot be used: its Python {version_text(found.version)} cannot import numpy "
            f"({found.numpy_error}); {advice}"
        )
