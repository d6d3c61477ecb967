"""Modules outside of a model: folders of PYTHONPATH and the server's working directory, as start scripts rely on them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from serving.repositories import index
from serving.written import evaluate, write_model
from support.server import ServerProcess

NAIAD = Path(sys.executable).with_name("naiad")


def with_modules(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text("")
    return folder


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A model under the server's own interpreter and one with its own environment, which both import three modules."""
    site = Path(np.__file__).parents[1]
    subprocess.run([sys.executable, "-I", "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    (next((tmp_path / "venv").glob("lib/python3*/site-packages")) / "numpy.pth").write_text(str(site))
    own = f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{tmp_path / "venv"}" }} }}'
    for name, config in (("host", ""), ("own", own)):
        write_model(tmp_path / "models", name, config=config)
        file = tmp_path / "models" / name / "1" / "model.py"
        file.write_text("import sparktts\nimport beside_the_start_script\n" + file.read_text())
    with_modules(tmp_path / "code", "sparktts")
    with_modules(tmp_path / "started", "beside_the_start_script")
    return tmp_path / "models"


def test_models_of_the_servers_interpreter_import_from_pythonpath_and_the_working_directory(repository, tmp_path):
    options = (f"--env-store={tmp_path / 'store'}", "--exit-on-error=false", "--strict-readiness=false")
    environ = {"PYTHONPATH": str(tmp_path / "code")}
    with ServerProcess(
        repository, *options, work=tmp_path, wait="loaded", environ=environ, directory=tmp_path / "started"
    ) as server:
        server.wait_for(lambda: all("state" in entry for entry in index(server).values()), "the models")
        server.wait_for(lambda: index(server)["host"]["state"] == "READY", "the model")
        places = evaluate(server, "host", "__import__('sys').path[:2]")
        reason = server.wait_for(lambda: index(server)["own"].get("reason"), "the failure")

    assert places == repr(["", str(tmp_path / "code")])
    assert f"'sparktts' is in {tmp_path}/code, which the server's PYTHONPATH or working directory names" in reason
    assert "naiad add" not in reason


def test_doctor_finds_what_the_server_would_find_and_says_what_models_with_environments_do_not(repository, tmp_path):
    environ = {"PYTHONPATH": str(tmp_path / "code"), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    command = [NAIAD, "doctor", repository, f"--env-store={tmp_path / 'store'}"]

    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environ, cwd=tmp_path / "started", timeout=100
    )

    printed = " ".join(done.stdout.split())
    assert "host version 1" not in printed, done.stdout
    assert f"it is in {tmp_path}/code, which is in PYTHONPATH or the working directory" in printed
    assert f"it is in {tmp_path}/started" in printed
    assert "name that folder in a .pth file of the environment" in printed
