"""The guest's API under every Python on this machine that a model may bring along."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import triton_python_backend_utils

STUBS = Path(triton_python_backend_utils.__file__).parent
SELFCHECK = Path(__file__).with_name("selfcheck.py")
# The oldest numpy we promise to work with, where it can be installed; elsewhere the newest there is.
NUMPY = {(3, 8): "numpy==1.17.3"}


def interpreters():
    """Pythons of 3.8 and newer by their version: ours, those on PATH, and pyenv's. By name: collecting starts nothing."""
    found = {sys.version_info[:2]: sys.executable}
    for minor in range(8, 20):
        on_path = shutil.which(f"python3.{minor}")
        if on_path and ".pyenv/shims" not in on_path:
            found.setdefault((3, minor), on_path)
    for python in sorted((Path.home() / ".pyenv/versions").glob("3.*/bin/python3")):
        major, minor = python.parts[-3].split(".")[:2]
        if minor.isdigit() and int(minor) >= 8:
            found.setdefault((int(major), int(minor)), str(python))
    return sorted(found.items())


def environment_with_numpy(version, python, folder):
    """Environment variables under which *python* finds a numpy; skips if none can be had."""
    environ = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONNOUSERSITE": "1"}
    environ.pop("PYTHONPATH", None)
    if subprocess.run([python, "-c", "import numpy"], env=environ, capture_output=True, check=False).returncode == 0:
        return environ
    install = [
        python,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-cache-dir",
        "--only-binary=:all:",
    ]
    done = subprocess.run(
        [*install, "--target", str(folder), NUMPY.get(version, "numpy")],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"no numpy for {python}: {done.stderr.strip()[-300:]}")
    return {**environ, "PYTHONPATH": str(folder)}


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("version", "python"), interpreters(), ids=[f"{a}.{b}" for (a, b), _ in interpreters()])
def test_the_api_works_alike_under_every_interpreter(version, python, tmp_path):
    environ = environment_with_numpy(version, python, tmp_path)

    done = subprocess.run(
        [python, str(SELFCHECK), str(STUBS)], env=environ, capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("ok " + ".".join(map(str, version)))


@pytest.mark.parametrize("version", [(3, 8)], ids=["3.8"])
def test_every_file_of_the_guest_compiles_under_the_oldest_python(version):
    python = dict(interpreters()).get(version)
    if python is None:
        pytest.skip("there is no Python 3.8 on this machine")
    code = (
        "import sys\n"
        "for name in sys.argv[1:]:\n"
        "    with open(name, 'rb') as file: compile(file.read(), name, 'exec', dont_inherit=True)"
    )
    files = [*STUBS.glob("naiad_stub/**/*.py"), *STUBS.glob("triton_python_backend_*")]
    names = [str(path) for path in files if path.is_file()]

    done = subprocess.run([python, "-W", "error", "-c", code, *names], capture_output=True, text=True, check=False)

    assert len(names) > 10
    assert (done.returncode, done.stderr) == (0, "")


def test_nothing_dear_is_imported_before_it_is_needed():
    """Every guest pays for these at its start."""
    code = (
        "import sys, numpy, socket, mmap, threading; before = set(sys.modules)\n"  # what the guest needs to be one
        "from naiad_stub import api, loader\n"
        "import triton_python_backend_utils\n"
        "print(*sorted(name for name in set(sys.modules) - before if not name.startswith(('naiad_stub', 'triton_', 'c_python'))))"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.split() in ([], ["__future__"])
