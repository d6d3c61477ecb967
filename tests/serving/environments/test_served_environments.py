"""Environments as a server's users meet them: models answer under the Python they brought."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
from environments.served import OWN_MINOR, add_model, index, told
from support.server import ServerProcess

from naiad.environments.archives.manifest import Manifest, host_platform


def test_models_that_share_an_archive_unpack_it_once_and_answer_under_its_python(serving, tmp_path):
    """By an absolute path, and by one that begins at the model's own folder; a second start unpacks nothing."""
    archive, minor = serving
    repository = tmp_path / "models"
    add_model(repository, "host")
    add_model(repository, "first", EXECUTION_ENV_PATH=str(archive))
    add_model(repository, "second", EXECUTION_ENV_PATH="$$TRITON_MODEL_DIRECTORY/environment.tar.gz")
    shutil.copy(archive, repository / "second" / "environment.tar.gz")
    (tmp_path / "extra").mkdir()
    (tmp_path / "extra" / "of_the_host.py").write_text("")
    settings = {"work": tmp_path, "timeout": 120, "environ": {"PYTHONPATH": str(tmp_path / "extra")}}

    with ServerProcess(repository, f"--env-store={tmp_path / 'store'}", **settings) as server:
        answers = {name: told(server, name) for name in ("host", "first", "second")}
        log = server.log

    assert answers["host"] == [sys.prefix, OWN_MINOR, np.__version__, "leaks"]
    assert answers["first"] == answers["second"]
    assert answers["first"][1] == minor
    assert answers["first"][3] == "clean"
    assert Path(answers["first"][0]).is_relative_to(tmp_path / "store")
    assert log.count("unpacking the environment") == 1
    assert log.count(f"PYTHONPATH={tmp_path / 'extra'} reaches only models that run under the server's own ") == 1
    assert not list(repository.rglob("__pycache__"))

    with ServerProcess(repository, f"--env-store={tmp_path / 'store'}", **settings) as server:
        assert told(server, "first") == answers["first"]
        assert "unpacking the environment" not in server.log


def test_interpreters_and_folders_are_named_by_their_paths(tmp_path):
    """By the setting for all models and by a model's own parameter, as the commands before a server see them."""
    site = Path(np.__file__).parents[1]
    for name in ("default", "own"):
        subprocess.run([sys.executable, "-I", "-m", "venv", "--without-pip", tmp_path / name], check=True)
        folder = next((tmp_path / name).glob("lib/python3*/site-packages"))
        (folder / "numpy.pth").write_text(str(site))
    python = tmp_path / "default" / "bin" / "python3"
    repository = tmp_path / "models"
    add_model(repository, "plain")
    add_model(repository, "own", PYTHON_VERSION=str(tmp_path / "own"))
    add_model(repository, "lost", PYTHON_VERSION=str(tmp_path / "own" / "bin" / "pyton3"))
    setting = f"--backend-config=python,default-python={python}"
    flags = (f"--env-store={tmp_path / 'store'}", setting, "--exit-on-error=false")

    with ServerProcess(repository, *flags, work=tmp_path, timeout=120, wait="loaded") as server:
        server.wait_for(lambda: "state" in index(server).get("lost", {}), "the start")
        server.wait_for(lambda: index(server)["plain"]["state"] == "READY", "the models")
        answers = {name: told(server, name) for name in ("plain", "own")}
        reason = index(server)["lost"]["reason"]

    assert answers["plain"] == [str(tmp_path / "default"), OWN_MINOR, np.__version__, "clean"]
    assert answers["own"] == [str(tmp_path / "own"), OWN_MINOR, np.__version__, "clean"]
    assert f"pyton3' does not exist; did you mean '{tmp_path}/own/bin/python3'?" in reason

    stored = f"--env-store={tmp_path / 'store'}"
    naiad = Path(sys.executable).with_name("naiad")
    given = [f"--model-repository={repository}", stored, setting]

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [naiad, *arguments, *given]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path)

    explained = run("explain", "plain", "--prepare")
    assert f"environment {python}\n" in explained.stdout, explained.stdout
    assert "--backend-config=python,default-python" in explained.stdout
    assert f"in {tmp_path}/default, with numpy {np.__version__}" in explained.stdout
    shutil.rmtree(repository / "lost")
    verified = run("doctor")
    assert verified.returncode == 0, verified.stdout + verified.stderr


def manifest(**changes: object) -> bytes:
    """What an archive would say of itself."""
    made = Manifest(
        name="e",
        made_from="recipe",
        platform=host_platform(),
        glibc="",
        python="3.12.1",
        abi="",
        packages=(),
        files=1,
        size=1,
        recipe={},
    )
    return dataclasses.replace(made, **changes).as_bytes()
