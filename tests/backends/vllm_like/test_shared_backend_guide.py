"""The guide to writing a shared backend, followed literally."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from support.server import ServerProcess

from naiad.cli.main import main

from .conftest import ROOT

GUIDE = ROOT / "docs" / "how-to" / "shared-backend.md"


def commands() -> str:
    """The guide's indented blocks up to the start of the server."""
    text = GUIDE.read_text(encoding="utf-8")
    lines = text[: text.index("    tritonserver ")].splitlines()
    # Python's blocks are within shell's: four blanks are the guide's, the rest is the file's.
    return "\n".join(line[4:] for line in lines if line.startswith("    ") or not line)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a reader of the guide has typed its commands."""
    made = tmp_path_factory.mktemp("guide")
    subprocess.run(["bash", "-euc", commands()], cwd=made, check=True, timeout=110)
    return made


def test_the_files_of_the_guide_make_two_models_that_answer_as_the_guide_says(folder: Path, tmp_path: Path):
    (tmp_path / "more" / "empty" / "1").mkdir(parents=True)
    (tmp_path / "more" / "empty" / "config.pbtxt").write_text('backend: "find_words"')
    options = (f"--backend-directory={folder / 'backends'}", "--exit-on-error=false")
    with ServerProcess([folder / "models", tmp_path / "more"], *options, work=tmp_path, wait="loaded") as server:
        server.wait_for(lambda: server.get("/v2/models/animals/ready").status == 200, "a model of the guide")
        server.wait_for(lambda: server.get("/v2/models/colours/ready").status == 200, "a model of the guide")
        reply = server.post("/v2/models/colours/generate", {"TEXT": "the red cat"})
        assert reply.body.decode() in GUIDE.read_text(encoding="utf-8")
        assert server.post("/v2/models/animals/generate", {"TEXT": "the red cat"}).json()["FOUND"] == "cat"
        server.wait_log("a model of find_words needs '")


def test_explain_names_the_shared_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    command = next(line.strip() for line in GUIDE.read_text().splitlines() if line.startswith("`naiad explain "))
    arguments = command.split("`")[1].split()
    assert arguments.pop(0) == "naiad"
    monkeypatch.chdir(folder)
    assert main(arguments) == 0
    assert "find_words/model.py" in capsys.readouterr().out
