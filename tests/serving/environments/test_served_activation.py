"""Models in conda environments whose packages need variables and libraries: what `conda activate` would give them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from environments import makers
from support.model_files import write_files
from support.server import ServerProcess
from support.system_packages import require

MODEL = """
import ctypes
import json
import os
import subprocess

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        try:
            answer = ctypes.CDLL("libwithoutrpath.so").answer()
        except OSError as error:
            answer = str(error)
        child = subprocess.run(["/usr/bin/env"], capture_output=True, text=True, check=True).stdout
        told = {
            "answer": answer,
            "child": [line for line in child.splitlines() if line.startswith(("LD_LIBRARY_PATH", "NAIAD_CHILD"))],
            "gdal": os.environ.get("GDAL_DATA"),
            "kept": os.environ.get("SSL_CERT_FILE"),
            "state": os.environ.get("OF_STATE"),
            "prefix": os.environ.get("CONDA_PREFIX"),
        }
        text = pb_utils.Tensor("TOLD", np.array([json.dumps(told)], dtype=object))
        return [pb_utils.InferenceResponse([text]) for _ in requests]
"""
CONFIG = """
backend: "python"
input [ { name: "ASKED" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "TOLD" data_type: TYPE_STRING dims: [ 1 ] } ]
parameters { key: "EXECUTION_ENV_PATH" value { string_value: "%s" } }
"""
ASK = {"inputs": [{"name": "ASKED", "shape": [1], "datatype": "INT32", "data": [1]}]}
NAIAD = Path(sys.executable).with_name("naiad")


@pytest.fixture(scope="module")
def conda(serving, work) -> Path:
    """A conda environment with an activation script and a library that nothing has an rpath for."""
    prefix = work / "env"
    with tarfile.open(serving[0]) as archive:
        archive.extractall(prefix, filter="fully_trusted")
    unpack = prefix / "bin/conda-unpack"
    subprocess.run([prefix / "bin/python", "-E", "-s", "-B", unpack], check=True, capture_output=True)
    hooks = prefix / "etc/conda/activate.d"
    hooks.mkdir(parents=True)
    (hooks / "gdal.sh").write_text("export GDAL_DATA=$CONDA_PREFIX/share/gdal SSL_CERT_FILE=${SSL_CERT_FILE:-own}\n")
    (hooks / "licence.sh").write_text("echo no licence server >&2; return 3\n")
    (prefix / "conda-meta/state").write_text('{"env_vars": {"OF_STATE": "1"}}')
    source = prefix.parent / "answer.c"
    source.write_text("int answer(void) { return 42; }\n")
    compiler = require("cc")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", prefix / "lib/libwithoutrpath.so", source], check=True)
    return prefix


def add_model(repository: Path, name: str, environment: Path) -> None:
    write_files(repository, name, CONFIG % environment, MODEL)


def told(server: ServerProcess, model: str) -> dict[str, object]:
    reply = server.post(f"/v2/models/{model}/infer", ASK)
    assert reply.status == 200, reply.body
    return dict(json.loads(reply.json()["outputs"][0]["data"][0]))


def test_activation_scripts_and_libraries_reach_models_of_archives_and_folders(conda, tmp_path):
    archive = makers.pack_plainly(conda, tmp_path / "env.tar")
    repository, store = tmp_path / "models", tmp_path / "store"
    add_model(repository, "packed", archive)
    add_model(repository, "shares", archive)
    add_model(repository, "folder", conda)
    environ = {"SSL_CERT_FILE": "/mine.pem", "LD_LIBRARY_PATH": "/opt/of-the-machine"}

    with ServerProcess(repository, f"--env-store={store}", work=tmp_path, timeout=120, environ=environ) as server:
        found = {name: told(server, name) for name in ("packed", "shares", "folder")}
        log = server.log

    unpacked = next(store.glob("*/env"))
    for name, prefix in (("packed", unpacked), ("shares", unpacked), ("folder", conda)):
        assert found[name] == {
            "answer": 42,
            "child": ["LD_LIBRARY_PATH=/opt/of-the-machine"],
            "gdal": f"{prefix}/share/gdal",
            "kept": "/mine.pem",
            "state": "1",
            "prefix": str(prefix),
        }
    warning = "the activation script etc/conda/activate.d/licence.sh failed, exit status 3: no licence server; "
    assert log.count(f"the execution environment {archive}: {warning}") == 1
    assert log.count(f"the environment {conda}: {warning}") == 1


@pytest.mark.endurance
def test_explain_inspect_and_doctor_show_what_activation_does(conda, tmp_path):
    archive = makers.pack_plainly(conda, tmp_path / "env.tar")
    add_model(tmp_path / "models", "m", archive)

    def run(*arguments: str) -> str:
        command = [NAIAD, *arguments]
        environ = {name: value for name, value in os.environ.items() if name != "SSL_CERT_FILE"}
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path, env=environ
        )
        return done.stdout

    given = (f"--model-repository={tmp_path}/models", f"--env-store={tmp_path}/store")
    explained = run("explain", "m", "--prepare", *given)
    assert "  activation  GDAL_DATA, OF_STATE, SSL_CERT_FILE\n" in explained, explained
    assert "set by gdal.sh, licence.sh\n" in explained
    assert "  note        the activation script etc/conda/activate.d/licence.sh failed" in explained
    for inspected in (archive, conda):
        assert "activation    gdal.sh, licence.sh\n" in run("env", "inspect", str(inspected), given[1])
    doctor = run("doctor", *given)
    assert "the activation script etc/conda/activate.d/licence.sh failed" in doctor, doctor
    assert "correct the script, or the package that it is from, in the environment" in doctor.replace("\n", " ")


def test_a_venv_needs_no_library_path(tmp_path):
    site = Path(__import__("numpy").__file__).parents[1]
    subprocess.run([sys.executable, "-I", "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    (next((tmp_path / "venv").glob("lib/python3*/site-packages")) / "numpy.pth").write_text(str(site))
    add_model(tmp_path / "models", "m", tmp_path / "venv")

    with ServerProcess(
        tmp_path / "models",
        f"--env-store={tmp_path}/store",
        work=tmp_path,
        timeout=120,
        environ={"LD_LIBRARY_PATH": None},
    ) as server:
        found = told(server, "m")
        (guest,) = [process.environ() for process in server.processes() if "--model" in process.cmdline()]

    assert found["child"] == []
    assert "libwithoutrpath" in str(found["answer"])
    assert "LD_LIBRARY_PATH" not in guest
