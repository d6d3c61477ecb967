"""The dialect and custom utils in real guests, through `naiad run`."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import triton_python_backend_utils as pb_utils
from embedded.testing.models import write_model

pytestmark = pytest.mark.server

NAIAD = Path(sys.executable).with_name("naiad")
STUBS = Path(pb_utils.__file__).parent
DIALECT = "import triton_python_backend.api as triton_backend\n\n\n"
CHAIN = """
    def execute(self, requests):
        results = []
        for request in requests:
            (doubled,) = triton_backend.infer("double", request.inputs)
            results.append([triton_backend.Tensor(name="OUT", data=doubled.as_numpy() + 1)])
        return results
"""
DOUBLE = """
    def execute(self, requests):
        return [[triton_backend.Tensor(name="OUT", data=request.inputs[0].as_numpy() * 2)] for request in requests]
"""


def naiad_run(*arguments):
    done = subprocess.run(
        [NAIAD, "run", *map(str, arguments)], capture_output=True, text=True, timeout=110, check=False
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("kind", ["", "async "])
def test_models_of_the_dialect_call_each_other(tmp_path, kind):
    write_model(tmp_path, "double", DOUBLE, head=DIALECT)
    chain = write_model(tmp_path, "chain", CHAIN.replace("def ", f"{kind}def "), head=DIALECT)

    code, out, err = naiad_run(chain, "--with=double", "--input=IN=[1, 4]")

    assert (code, err) == (0, "")
    assert "OUT  FP32 [2]  [3., 9.]" in out


def test_a_backends_own_utils_are_used_in_its_guests(tmp_path):
    """Whatever of the kind is installed where the server runs."""
    backend = tmp_path / "backends" / "own"
    backend.mkdir(parents=True)
    shutil.copy(STUBS / "naiad_stub" / "artifacts" / "triton_python_backend_stub", backend)
    (backend / "triton_python_backend_utils.py").write_text("MINE = 3\n")
    folder = write_model(tmp_path, "user", "pass", more='backend: "own"')
    (folder / "1" / "model.py").unlink()
    (backend / "model.py").write_text(
        "import triton_python_backend_utils as pb_utils\n\n\nclass TritonPythonModel:\n"
        "    def execute(self, requests):\n"
        "        array = requests[0].inputs()[0].as_numpy() * pb_utils.MINE\n"
        "        assert not hasattr(pb_utils, 'triton_string_to_numpy')\n"
        "        return [pb_utils.InferenceResponse([pb_utils.Tensor('OUT', array)])]\n"
    )

    code, out, err = naiad_run(folder, "--input=IN=[2]", f"--backend-directory={tmp_path / 'backends'}")

    assert (code, err) == (0, "")
    assert "OUT  FP32 [1]  [6.]" in out
