"""A compiled stub of the reference names the Python that it was linked to, which models beside it then run under."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.interpreters import interpreters, numpy_environment
from support.server import ServerProcess

MODEL = """
import sys
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        version = pb_utils.Tensor("OUT", np.array(["%d.%d" % sys.version_info[:2]], dtype=object))
        return [pb_utils.InferenceResponse([version]) for _ in requests]
"""
CONFIG = 'backend: "python"\noutput [ { name: "OUT" data_type: TYPE_STRING dims: [ 1 ] } ]\n'
STUB = "triton_python_backend_stub"


def model_with_stub(models: Path, name: str, version: str) -> None:
    """Write a model beside a program that is linked to the libpython of that version."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler on this machine")
    (models / name / "1").mkdir(parents=True)
    (models / name / "1" / "model.py").write_text(MODEL)
    (models / name / "config.pbtxt").write_text(CONFIG)
    source, library = models.parent / "stub.c", models.parent / f"libpython{version}.so.1.0"
    source.write_text("int main(void) { return 0; }\n")
    soname = f"-Wl,-soname,{library.name}"
    subprocess.run([compiler, "-shared", soname, "-o", library, "-x", "c", "/dev/null"], check=True, timeout=60)
    command = [compiler, "-o", models / name / STUB, source, "-Wl,--no-as-needed", library]
    subprocess.run(command, check=True, timeout=60)


@pytest.fixture(scope="module")
def other(tmp_path_factory) -> tuple[str, Path]:
    """A Python version that is not the server's, and an environment of it with numpy."""
    for version, python in interpreters():
        if version != sys.version_info[:2]:
            return f"{version[0]}.{version[1]}", numpy_environment(tmp_path_factory, version, python)
    pytest.skip("no other Python is installed")


@pytest.mark.slow
def test_the_python_of_the_stub_is_used_if_it_is_installed_and_else_missed(tmp_path, other):
    models = tmp_path / "models"
    version, environment = other
    model_with_stub(models, "installed", version)
    model_with_stub(models, "missing", "3.7")
    ours = f"{sys.version_info.major}.{sys.version_info.minor}"
    with ServerProcess(models, work=tmp_path, environ={"VIRTUAL_ENV": str(environment)}) as server:
        for model, expected in (("installed", version), ("missing", ours)):
            reply = server.post(f"/v2/models/{model}/infer", {"inputs": []})
            assert reply.status == 200, reply.error
            assert reply.json()["outputs"][0]["data"] == [expected]
        warning = f"model 'missing' runs under Python {ours}."
        assert warning in server.log
        assert (
            "was compiled for Python 3.7, and no supported interpreter of that version with numpy is installed"
            in server.log
        )
        assert "model 'installed' runs under" not in server.log
    command = [sys.executable, "-m", "naiad", "explain", f"--model-repository={models}", "--prepare", "missing"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert warning in done.stderr
    assert "Python 3.7 if it is installed" in done.stdout
    command = [sys.executable, "-m", "naiad", "doctor", f"--model-repository={models}", "--model", "missing"]
    assert warning in subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout
