"""The guest's API under every Python on this machine that a model may bring along."""

import subprocess
import sys
from pathlib import Path

import pytest
import triton_python_backend_utils
from support.interpreters import each_interpreter, interpreters, numpy_environment

STUBS = Path(triton_python_backend_utils.__file__).parent
SELFCHECK = Path(__file__).with_name("selfcheck.py")


@pytest.mark.server
@pytest.mark.parametrize(("version", "python"), each_interpreter())
def test_the_api_works_alike_under_every_interpreter(version, python, tmp_path_factory):
    environment = numpy_environment(tmp_path_factory, version, python)

    done = subprocess.run(
        [environment / "bin" / "python", "-B", SELFCHECK, STUBS], capture_output=True, text=True, check=False
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
    files = [*STUBS.glob("naiad_stub/**/*.py"), *STUBS.glob("*.py"), *STUBS.glob("naiad_stub/artifacts/triton_*")]
    names = [str(path) for path in files if path.is_file()]

    done = subprocess.run([python, "-W", "error", "-c", code, *names], capture_output=True, text=True, check=False)

    assert len(names) > 10
    assert (done.returncode, done.stderr) == (0, "")


def test_expensive_modules_are_imported_only_when_needed():
    """Every guest pays for these at its start."""
    code = (
        # What the guest needs to be one; the last of them is imported by every Python of 3.11 and newer at its start.
        "import sys, numpy, signal, socket, mmap, threading, importlib.machinery; before = set(sys.modules)\n"
        "from naiad_stub import api, loader\n"
        "import triton_python_backend_utils\n"
        "print(*sorted(name for name in set(sys.modules) - before if not name.startswith(('naiad_stub', 'triton_', 'c_python'))))"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.split() in ([], ["__future__"])
