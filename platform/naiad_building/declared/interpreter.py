"""Choosing the interpreter of a declared environment, and fetching one that the machine lacks."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from packaging.specifiers import SpecifierSet

from naiad.core.errors import InterpreterNotFoundError
from naiad.sources.interpreters.discovery import find_interpreter, first_minor
from naiad.sources.interpreters.versions import OWN_ABI, matches, version_text


@dataclass(frozen=True, slots=True)
class ChosenPython:
    """The interpreter that an environment is built on."""

    executable: Path  # not that of a virtual environment
    prefix: Path
    version: str
    abi: str  # tag in names of its extension modules, which names the machine and the C library as well


def require_agreement(file: Path, asked: Mapping[str, SpecifierSet]) -> SpecifierSet:
    """The versions of Python that all places accept; *asked* has them by the subject of a sentence, for the error.

    Raises InterpreterNotFoundError if no version is in two of them; names these two.
    """
    for (place, versions), (other, others) in combinations(asked.items(), 2):
        if (versions & others).is_unsatisfiable() and not first_minor(versions & others):
            raise InterpreterNotFoundError(
                f"cannot choose a Python for {file}: {place} asks for Python {versions}, and {other} for {others}; "
                "change one of the two"
            )
    return functools.reduce(SpecifierSet.__and__, asked.values(), SpecifierSet())


def choose_python(required: SpecifierSet, cache: Path, fetch: Callable[[str], None] | None = None) -> ChosenPython:
    """The interpreter of a required version: the server's own, else the newest on this machine.

    uv downloads one if the machine has none, and *fetch* gets the steps; None to download nothing.
    """
    try:
        return _installed_python(required, cache)
    except InterpreterNotFoundError:
        if fetch is None or not _fetch_python(required, fetch):
            raise
        return _installed_python(required, cache)


def _installed_python(required: SpecifierSet, cache: Path) -> ChosenPython:
    own = sys.version_info[:3]
    if matches(required, own):
        # Of a virtual environment, the interpreter that it was made from.
        executable = getattr(sys, "_base_executable", None) or sys.executable
        return ChosenPython(Path(os.path.realpath(executable)), Path(sys.base_prefix), version_text(own), OWN_ABI)
    found = find_interpreter(required, cache, need_numpy=False)
    return ChosenPython(found.python, found.base_prefix, version_text(found.version), found.abi)


def _fetch_python(required: SpecifierSet, progress: Callable[[str], None]) -> bool:
    """Let uv download an interpreter of a required version into its own folder; False if it has none."""
    from naiad_building.uv_program import find_uv, run_to_end

    minor = first_minor(required)
    if not minor:
        return False
    progress(f"downloading Python {minor} with uv")
    run = run_to_end([find_uv(), "python", "install", "--no-config", "--no-bin", ",".join(map(str, required)) or minor])
    if run.returncode:
        progress(f"uv has not installed Python {minor}: {run.stdout.strip()[-500:]}")
    return run.returncode == 0
