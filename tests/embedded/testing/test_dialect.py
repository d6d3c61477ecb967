"""The older tutorial dialect under every Python on this machine that a model may bring along."""

import subprocess
import sys
from pathlib import Path

import pytest
from guest.test_interpreters import STUBS
from support.interpreters import each_interpreter, numpy_environment

CHECK = Path(__file__).with_name("dialect_check.py")


@pytest.mark.builds
@pytest.mark.parametrize(("version", "python"), each_interpreter())
def test_the_dialect_works_alike_under_every_interpreter(version, python, tmp_path_factory):
    environment = numpy_environment(tmp_path_factory, version, python)

    done = subprocess.run(
        [environment / "bin" / "python", "-B", CHECK, STUBS], capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("ok " + ".".join(map(str, version)))


@pytest.mark.server
def test_a_models_own_package_of_that_name_goes_first(tmp_path):
    version = tmp_path / "m" / "1"
    (version / "triton_python_backend").mkdir(parents=True)
    (version / "triton_python_backend" / "api.py").write_text("mine = 1\n")
    (version / "model.py").write_text(
        "from triton_python_backend.api import mine\nclass TritonPythonModel:\n    mine = mine\n"
    )
    code = (
        "import sys; from naiad_stub import loader\n"
        "model = loader.load_model_class(sys.argv[1] + '/model.py', sys.argv[1], sys.argv[1] + '/..', sys.argv[2], False)\n"
        "print(model.mine, 'naiad_stub.dialect_api' in sys.modules)"
    )

    done = subprocess.run(
        [sys.executable, "-c", code, str(version), str(STUBS)], capture_output=True, text=True, check=False
    )

    assert (done.stdout, done.stderr) == ("1 False\n", "")
