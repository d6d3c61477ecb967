"""Building a virtual environment with locked packages, for the store.

Everything that depends on the time of the build is removed: modification times are fixed, and bytecode is compiled with
paths relative to the environment. Files of the same packages are then the same in every environment, so that the store
can share them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from naiad.core.errors import ExecutionEnvironmentError
from naiad.environments.bytecode import compile_environment
from naiad_building.base_interpreter import BaseInterpreter
from naiad_building.indexes import PackageIndexes
from naiad_building.lockfiles import Pin, pin_lines
from naiad_building.relocation import relocate_texts
from naiad_building.uv_program import InstallOptions, Requirements, install, run_to_end

__all__ = ["build_venv", "by_indexes", "compile_with_fixed_times"]

# 1 January 1980 in UTC, the earliest time that a zip archive can express.
_FIXED_TIME = 315_532_800
_LEFT_OUT = frozenset({"test", "tests"})
"""Folders whose sources are not compiled."""


def build_venv(
    prefix: Path,
    final: Path,
    base: BaseInterpreter,
    pins: list[Pin],
    file: Path,
    label: str,
    options: InstallOptions,
    progress: Callable[[str], None],
) -> None:
    """Build a virtual environment of *base* in the empty folder *prefix*, which will be moved to *final*."""
    _create(prefix, base)
    python = prefix / "bin" / "python"
    progress(f"installing {len(pins)} packages for Python {base.version}")
    for indexes, group in by_indexes(pins, options.indexes):
        requirements = Requirements(pin_lines(group), file, is_locked=True)
        install(label, requirements, python, replace(options, indexes=indexes), progress)
    # Scripts name their interpreter by its path.
    relocate_texts((path for path in (prefix / "bin").iterdir() if path.is_file()), prefix, final)
    compile_with_fixed_times(python, prefix, base, progress)


def by_indexes(pins: Iterable[Pin], indexes: PackageIndexes) -> list[tuple[PackageIndexes, list[Pin]]]:
    """The packages in groups that come from the same indexes, each with these."""
    groups: dict[str, tuple[PackageIndexes, list[Pin]]] = {}
    for pin in pins:
        chosen = indexes.for_package(pin.name)
        groups.setdefault(repr(chosen), (chosen, []))[1].append(pin)
    return list(groups.values())


def _create(prefix: Path, base: BaseInterpreter) -> None:
    # Without pip, and in a process of its own: it keeps facts of interpreters, and reads settings, for one use.
    command = [sys.executable, "-I", "-m", "virtualenv", "--quiet", "--no-periodic-update", "--no-vcs-ignore"]
    run = run_to_end([*command, "--without-pip", "--python", base.executable, prefix])
    if run.returncode:
        raise ExecutionEnvironmentError(
            f"cannot create a virtual environment of {base.executable} in {prefix}: {run.stdout.strip()[-1000:]}"
        )


def compile_with_fixed_times(
    python: Path, prefix: Path, base: BaseInterpreter, progress: Callable[[str], None]
) -> None:
    """Compile the modules of an environment so that equal files give equal bytecode."""
    progress("compiling")
    _fix_times(prefix)
    compile_environment(python, prefix, base.cache_tag, left_out=_LEFT_OUT)
    _fix_times(prefix)  # of the bytecode; that it has in itself is its source's


def _fix_times(prefix: Path) -> None:
    """Give the files in `lib` a fixed time, but those that a cache of packages shares by hard links."""
    for folder, _, names in os.walk(prefix / "lib"):
        for name in names:
            path = os.path.join(folder, name)  # noqa: PTH118 - plain strings: called for each of 10,000 files
            if os.lstat(path).st_nlink == 1:
                os.utime(path, (_FIXED_TIME, _FIXED_TIME), follow_symlinks=False)
