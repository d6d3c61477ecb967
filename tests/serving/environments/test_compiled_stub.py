"""A compiled stub of the reference names the Python that it was linked to, which models beside it then run under."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.interpreters import interpreters, numpy_environment
from support.model_files import python_config, write_files
from support.server import ServerProcess
from support.system_packages import require

MODEL = """
def execute(self, requests):
    version = pb_utils.Tensor("OUT", np.array(["%d.%d" % sys.version_info[:2]], dtype=object))
    return [pb_utils.InferenceResponse([version]) for _ in requests]
"""
STUB = "triton_python_backend_stub"


def model_with_stub(models: Path, name: str, version: str) -> None:
    """Write a model beside a program that is linked to the libpython of that version."""
    compiler = require("cc")
    write_files(models, name, python_config("", "OUT STRING 1"), MODEL)
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


def test_the_python_of_the_stub_runs_the_model_and_a_missing_one_is_refused_as_with_python_version(tmp_path, other):
    """Before, the model ran under the server's Python, with a warning."""
    models = tmp_path / "models"
    version, environment = other
    installed = {minor for (_, minor), _ in interpreters()}
    absent = next((f"3.{minor}" for minor in range(14, 7, -1) if minor not in installed), "")
    if not absent:
        pytest.skip("every supported Python is installed")
    model_with_stub(models, "installed", version)
    model_with_stub(models, "missing", absent)
    model_with_stub(models, "named", absent)
    ours = f"{sys.version_info.major}.{sys.version_info.minor}"
    with (models / "named" / "config.pbtxt").open("a") as file:
        file.write(f'parameters {{ key: "PYTHON_VERSION" value {{ string_value: "{ours}" }} }}\n')
    variables = {"VIRTUAL_ENV": str(environment)}
    options = ("--exit-on-error=false", "--strict-readiness=false")
    with ServerProcess(models, *options, work=tmp_path, environ=variables) as server:
        for model, expected in (("installed", version), ("named", ours)):
            reply = server.post(f"/v2/models/{model}/infer", {"inputs": []})
            assert reply.status == 200, reply.error
            assert reply.json()["outputs"][0]["data"] == [expected]
        (entry,) = [each for each in server.post("/v2/repository/index").json() if each["name"] == "missing"]
    refusal = (
        f"no Python =={absent}.* on this machine (required by the compiled stub {models}/missing/{STUB}): there are "
    )
    assert refusal in entry["reason"]
    assert "install one with numpy, or give the model an EXECUTION_ENV_PATH" in entry["reason"]
    command = [sys.executable, "-m", "naiad", "doctor", f"--model-repository={models}", "--model", "missing"]
    assert refusal in subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout
