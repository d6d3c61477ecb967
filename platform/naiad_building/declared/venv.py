"""Building a virtual environment with locked packages, for the store.

Everything that depends on the time of the build is removed: modification times are fixed, and bytecode is compiled with
paths relative to the environment. Files of the same packages are then the same in every environment, so that the store
can share them.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from naiad.core.errors import ExecutionEnvironmentError
from naiad.environments.bytecode import compile_environment
from naiad_building.base_interpreter import BaseInterpreter
from naiad_building.lockfiles import Pin
from naiad_building.relocation import relocate_scripts
from naiad_building.uv_program import InstallOptions, install, locked_requirements, run_to_end

# 1 January 1980 in UTC, the earliest time that a zip archive can express.
_FIXED_TIME = 315_532_800
_LEFT_OUT = frozenset({"test", "tests"})
"""Folders whose sources are not compiled."""


def build_venv(
    prefix: Path, final: Path, base: BaseInterpreter, pins: list[Pin], file: Path, label: str, options: InstallOptions
) -> None:
    """Build a virtual environment of *base* in the empty folder *prefix*, which will be moved to *final*."""
    _create(prefix, base)
    python = prefix / "bin" / "python"
    options.progress(f"installing {len(pins)} packages for Python {base.version}")
    for requirements, chosen in locked_requirements(pins, file, options):
        install(label, requirements, python, chosen)
    relocate_scripts(prefix, prefix, final)
    compile_with_fixed_times(python, prefix, base, options)


def _create(prefix: Path, base: BaseInterpreter) -> None:
    # Without pip, and in a process of its own: it keeps facts of interpreters, and reads settings, for one use.
    command = [sys.executable, "-I", "-m", "virtualenv", "--quiet", "--no-periodic-update", "--no-vcs-ignore"]
    run = run_to_end([*command, "--without-pip", "--python", base.executable, prefix])
    if run.returncode:
        raise ExecutionEnvironmentError(
            f"cannot create a virtual environment of {base.executable} in {prefix}: {run.stdout.strip()[-1000:]}"
        )


def compile_with_fixed_times(python: Path, prefix: Path, base: BaseInterpreter, options: InstallOptions) -> None:
    """Compile the modules of an environment so that equal files give equal bytecode."""
    options.progress("compiling")
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
