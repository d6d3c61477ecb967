"""The how-to "One file, its own Python", followed literally, with wheels of packages that are installed here."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from environments.wheels import wheel_of_installed
from support.once import once
from support.server import ServerProcess

pytestmark = [pytest.mark.builds, pytest.mark.endurance]

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "how-to" / "one-file.md").read_text(encoding="utf-8")
BIN = Path(sys.executable).parent
REQUEST = {"inputs": [{"name": "TEXT", "shape": [1], "datatype": "BYTES", "data": ["4 July 2026"]}]}


def blocks(language: str) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    return [text for name, text in found if name == language]


def make_wheels(folder: Path) -> None:
    for package in ("numpy", "python-dateutil", "six"):
        wheel_of_installed(folder, package)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return once(tmp_path_factory, "wheels-of-dateutil", make_wheels)


def run(command: str, folder: Path, **environ: str) -> str:
    arguments = shlex.split(command)
    done = subprocess.run(
        [BIN / arguments[0], *arguments[1:]],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        env={**os.environ, "NAIAD_STORE": str(folder / "store"), **environ},
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def answer(command: str, folder: Path, repository: Path) -> str:
    """What the model answers when the page's command serves it, on free ports."""
    naiad, serve, *flags = shlex.split(command)
    assert (naiad, serve, flags.pop(0)) == ("naiad", "serve", "--model-repository=models")
    flags = [flag.replace("=wheels", f"={repository.parent / 'wheels'}") for flag in flags]
    environ = {"NAIAD_STORE": str(folder / "store"), "PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": "/dev/null"}
    program = (BIN / naiad, serve)
    with ServerProcess(repository, *flags, work=folder, command=program, environ=environ, timeout=200) as server:
        reply = server.post("/v2/models/when/infer", REQUEST)
        assert reply.status == 200, reply.body
        return str(reply.json()["outputs"][0]["data"][0])


def test_the_page_is_followed_literally(tmp_path: Path, index: Path) -> None:
    init, add, first_run, printed, serve, lock, offline = blocks("")
    code, block = blocks("python")
    (config,) = blocks("protobuf")
    packages = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index), "PIP_CONFIG_FILE": "/dev/null"}
    model = tmp_path / "models" / "when"

    run(init, tmp_path)
    assert (model / "1" / "model.py").read_text().startswith("# /// script\n")
    (model / "1" / "model.py").write_text(code)
    (model / "config.pbtxt").write_text(config)
    run(add, tmp_path, **packages)
    own = f">={sys.version_info.major}.{sys.version_info.minor}"
    assert (model / "1" / "model.py").read_text() == block.replace(">=3.12", own) + code
    assert (model / "1" / "model.py.lock").is_file()
    assert run(first_run, tmp_path, **packages).splitlines()[1] == printed.rstrip("\n")
    assert answer(serve, tmp_path, tmp_path / "models") == "2026-07-04"

    # Without a network, on a machine with another store.
    run(lock, tmp_path, **packages)
    other = tmp_path / "other"
    other.mkdir()
    for name in ("models", "wheels"):
        shutil.copytree(tmp_path / name, other / name)
    assert answer(offline, other, other / "models") == "2026-07-04"
