"""The guide to writing a shared backend, followed literally."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support.server import ServerProcess

from .conftest import ROOT

GUIDE = ROOT / "docs" / "how-to" / "shared-backend.md"


def commands() -> str:
    """The guide's indented blocks up to the start of the server."""
    text = GUIDE.read_text(encoding="utf-8")
    lines = text[: text.index("    tritonserver ")].splitlines()
    # Python's blocks are within shell's: four blanks are the guide's, the rest is the file's.
    return "\n".join(line[4:] for line in lines if line.startswith("    ") or not line)


def test_the_files_of_the_guide_make_two_models_that_answer_as_the_guide_says(tmp_path: Path):
    subprocess.run(["bash", "-euc", commands()], cwd=tmp_path, check=True, timeout=110)
    (tmp_path / "models" / "empty" / "1").mkdir(parents=True)
    (tmp_path / "models" / "empty" / "config.pbtxt").write_text('backend: "find_words"')
    options = (f"--backend-directory={tmp_path / 'backends'}", "--exit-on-error=false")
    with ServerProcess(tmp_path / "models", *options, work=tmp_path, wait="live") as server:
        server.wait_for(lambda: server.get("/v2/models/animals/ready").status == 200, "a model of the guide")
        server.wait_for(lambda: server.get("/v2/models/colours/ready").status == 200, "a model of the guide")
        reply = server.post("/v2/models/colours/generate", {"TEXT": "the red cat"})
        assert reply.body.decode() in GUIDE.read_text(encoding="utf-8")
        assert server.post("/v2/models/animals/generate", {"TEXT": "the red cat"}).json()["FOUND"] == "cat"
        server.wait_log("a model of find_words needs '")


def test_explain_names_the_shared_file(tmp_path: Path):
    subprocess.run(["bash", "-euc", commands()], cwd=tmp_path, check=True, timeout=110)
    command = next(line.strip() for line in GUIDE.read_text().splitlines() if line.startswith("`naiad explain "))
    arguments = command.split("`")[1].split()
    naiad = str(Path(sys.executable).with_name(arguments[0]))
    done = subprocess.run(
        [naiad, *arguments[1:]], cwd=tmp_path, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "find_words/model.py" in done.stdout
