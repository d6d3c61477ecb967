"""Repositories whose models declare their packages: they travel as packed environments, one for equal packages."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from building.channel import make_channel
from environments import makers, served
from environments.wheels import offer_wheels, only_wheels, wheel_of_installed, write_wheel
from models.artifacts.repositories import ASK, CODE, add_model, layers_of
from support.server import ServerProcess

from naiad.cli.main import main

BLOCK = '# /// script\n# dependencies = ["adder==1.0", "numpy"]\n# ///\n'
USER = CODE.replace("import numpy as np", "import adder\nimport numpy as np") % "%s"
LISTED = "adder==1.0\nnumpy\n"
NOTE = (
    "note: {0} has no lock, so its packages were resolved now; `naiad lock {0}` writes one, and keeps their versions the "
    "next time"
)
PROJECT = '[project]\nname = "x"\nversion = "1"\nrequires-python = ">=3.10"\ndependencies = ["adder==1.0", "numpy"]\n'


def declare(models: Path, name: str, file: str = "", text: str = BLOCK) -> Path:
    """Write a model that declares packages in a file, or in its own code; returns the declaration."""
    folder = add_model(models, name, name, environment=f"$$TRITON_MODEL_DIRECTORY/{file}" if file else "")
    code = folder / "1" / "model.py"
    code.write_text(("" if file else text) + USER % name)
    if not file:
        return code
    (folder / file).write_text(text)
    return folder / file


@pytest.fixture
def wheels(tmp_path, monkeypatch):
    folder = offer_wheels(tmp_path / "wheels")
    only_wheels(folder, monkeypatch)
    return folder


@pytest.mark.slow
def test_equal_packages_travel_once_whatever_file_declares_them(registry, naiad, wheels, tmp_path):
    models, minor = tmp_path / "models", makers.other_minor()
    declare(models, "block")
    declare(models, "listed", "requirements.txt", LISTED)
    project = declare(models, "project", "pyproject.toml", PROJECT)
    for file in (models / "block" / "1" / "model.py", project):
        assert main(["lock", str(file)]) == 0
    older = declare(models, "other", "requirements.txt", LISTED).parent / "config.pbtxt"
    parameter = f'parameters {{ key: "PYTHON_VERSION" value {{ string_value: "{minor}" }} }}\n'
    older.write_text(older.read_text() + parameter)

    out = naiad.succeed("push", registry.uri("shop", "1"), models)

    layers = layers_of(registry, "shop")
    users = {
        name: json.loads(layers[f"model/{name}"]["annotations"]["naiad.uses"])
        for name in ("block", "listed", "project", "other")
    }
    assert users["block"] == users["listed"] == users["project"]
    assert (users["other"] == users["block"]) == (minor == served.OWN_MINOR)
    assert all(re.fullmatch(r"environment/[0-9a-f]{12}-packages", part) for part in layers if "environment" in part)
    # A person pushes, so requirements are resolved; the note says how to keep the result.
    listed = [models / name / "requirements.txt" for name in ("listed", "other")]
    assert [line for line in out.splitlines() if line.startswith("note: ")] == [NOTE.format(file) for file in listed]
    # Built again, the environments are the same.
    shutil.rmtree(naiad.store)
    assert ", sent" not in naiad.succeed("push", registry.uri("shop", "2"), models)
    # What comes back names the archives, and is pushed as it is.
    naiad.succeed("pull", registry.uri("shop", "1"), f"--output={tmp_path / 'out'}")
    sbom = json.loads((tmp_path / "out" / ".naiad" / "sbom" / "sbom.cdx.json").read_text())
    (used,) = [each["name"] for each in sbom["components"] if f"environment/{each['name']}" in users["other"]]
    python = next(each for each in sbom["components"] if each["name"] == used)["properties"][0]["value"]
    assert python.startswith(f"{minor}.")
    naiad.succeed("push", registry.uri("shop", "3"), tmp_path / "out")
    again = layers_of(registry, "shop", "3")
    assert {part: again[part]["digest"] for part in users["block"]} == {
        part: layers[part]["digest"] for part in users["block"]
    }


def test_a_push_resolves_and_builds_as_its_flags_say(registry, naiad, wheels, tmp_path, monkeypatch):
    file = declare(tmp_path / "models", "listed", "requirements.txt", LISTED)

    refused = naiad.fail("push", registry.uri("shop", "1"), tmp_path / "models", "--env-build=locked")

    assert refused.startswith(f"the environment of {file} has no lock")
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    code, _, refused = naiad.run("push", registry.uri("shop", "1"), tmp_path / "models", "--offline")
    assert code == 1
    assert "\ncannot install adder==1.0 for 'requirements.txt'" in refused
    assert "shop" not in registry.tags


@pytest.mark.slow
def test_a_machine_without_an_index_serves_declared_environments(registry, tmp_path):
    wheels, models = tmp_path / "wheels", tmp_path / "models"
    wheel_of_installed(wheels, "numpy")
    write_wheel(wheels, "adder", "1.0", {"adder.py": ""})
    declare(models, "block")
    declare(models, "listed", "requirements.txt", LISTED)
    run = subprocess.run(
        [sys.executable, "-m", "naiad", "push", registry.uri("shop", "1"), str(models), "--offline",
         f"--env-wheels={wheels}", f"--env-store={tmp_path / 'pusher'}"],
        capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    for folder in (wheels, models, tmp_path / "pusher"):
        shutil.rmtree(folder)

    flags = [f"--env-store={tmp_path / 'store'}", "--env-build=never", "--offline"]
    location = f"--model-repository={registry.uri('shop', '1')}"
    environ = {**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": ""}
    with ServerProcess(None, location, *flags, work=tmp_path, environ=environ) as server:
        for name in ("block", "listed"):
            reply = server.post(f"/v2/models/{name}/infer", ASK)
            assert reply.json()["outputs"][0]["data"] == [name], reply.body
        assert len([path for path in (tmp_path / "store").iterdir() if re.fullmatch(r"[0-9a-f]{64}", path.name)]) == 1


@pytest.mark.slow
def test_conda_packages_travel_with_their_interpreter(registry, naiad, tmp_path):
    pytest.importorskip("rattler")
    channel = make_channel(tmp_path / "channel", makers.other_minor())
    file = declare(
        tmp_path / "models", "c", "environment.yml", f"channels: [{channel}]\ndependencies: [numpy, teller]\n"
    )

    naiad.succeed("push", registry.uri("shop", "1"), tmp_path / "models")
    shutil.rmtree(naiad.store)
    assert ", sent" not in naiad.succeed("push", registry.uri("shop", "2"), tmp_path / "models")

    shutil.rmtree(channel)
    naiad.succeed("pull", registry.uri("shop", "1"), f"--output={tmp_path / 'out'}")
    archive = next((tmp_path / "out").rglob("packages.tar.zst"))
    (found,) = json.loads(naiad.succeed("env", "prefetch", archive, "--json"))
    assert (Path(found["prefix"]) / "share" / "teller" / "where.txt").read_text() == f"in {found['prefix']}\n"
    assert (tmp_path / "out" / "c" / file.name).is_file()
