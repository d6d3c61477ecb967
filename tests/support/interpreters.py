"""The Pythons of this machine that a model may bring along, and an environment with numpy of each."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet
from support.once import once
from support.packages import install_packages

Version = tuple[int, int]

# The oldest numpy we promise to work with, where it can be installed; elsewhere the newest there is.
_NUMPY = {(3, 8): "numpy==1.17.3"}
_OLDEST = 8


def interpreters() -> list[tuple[Version, str]]:
    """Pythons of 3.8 and newer by their version: ours, those on PATH, uv's and pyenv's. Found by name, without starting them."""
    found: dict[Version, str] = {(sys.version_info[0], sys.version_info[1]): sys.executable}
    for minor in range(_OLDEST, 20):
        on_path = shutil.which(f"python3.{minor}")
        if on_path and ".pyenv/shims" not in on_path:
            found.setdefault((3, minor), on_path)
    # Those of uv, which has Pythons that nothing else on a machine has: `uv python install 3.15`.
    for python in sorted((Path.home() / ".local/share/uv/python").glob("cpython-3.*/bin/python3")):
        minor_text = python.parts[-3].removeprefix("cpython-3.").partition(".")[0]
        if minor_text.isdigit() and int(minor_text) >= _OLDEST and "freethreaded" not in python.parts[-3]:
            found.setdefault((3, int(minor_text)), str(python))
    for python in sorted((Path.home() / ".pyenv/versions").glob("3.*/bin/python3")):
        major, minor_text = python.parts[-3].partition("-")[0].split(".")[:2]
        # Of "3.14.0t" and "3.15-dev" only the second is a usual build.
        is_usual = not python.parts[-3].endswith("t")
        if is_usual and minor_text.isdigit() and int(minor_text) >= _OLDEST:
            found.setdefault((int(major), int(minor_text)), str(python))
    return sorted(found.items())


def each_interpreter() -> list[ParameterSet]:
    """Parameters `version` and `python`: the oldest interpreter for `make test`, all others for `make endurance`."""
    return [
        pytest.param(version, python, id=f"{version[0]}.{version[1]}", marks=pytest.mark.endurance if place else ())
        for place, (version, python) in enumerate(interpreters())
    ]


def numpy_environment(factory: pytest.TempPathFactory, version: Version, python: str) -> Path:
    """A virtual environment of *python* with numpy, made once for a run of tests; skips if it cannot be installed."""

    def make(folder: Path) -> None:
        make_environment(folder, version, python, _NUMPY.get(version, "numpy"))
        # Guests write no bytecode of packages: without this each of them would compile numpy, for a second.
        environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        subprocess.run([folder / "bin" / "python", "-c", "import numpy"], env=environ, check=True)

    return once(factory, f"python{version[0]}.{version[1]}-with-numpy", make)


def make_environment(folder: Path, version: Version, python: str, *packages: str) -> None:
    """A virtual environment of *python* with packages that need no compiling; skips if they cannot be installed."""
    subprocess.run([python, "-m", "venv", "--without-pip", folder], check=True)
    site_packages = next(folder.glob("lib/python3*/site-packages"))
    failure = install_packages(folder / "bin" / "python", site_packages, *packages)
    if failure:
        pytest.skip(f"{' and '.join(packages)} cannot be installed for {python}: {failure}")
