"""The example of Python models around an ONNX file: exported, served and asked as its README says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from backends.builds import declared_environment
from examples.running import EXAMPLES
from support.server import ServerProcess

FOLDER = EXAMPLES / "onnx_pipeline"

pytestmark = [pytest.mark.builds, pytest.mark.endurance]


def run(file: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, str(file), *arguments], env=environ, capture_output=True, text=True, timeout=110, check=False
    )


def test_the_ensemble_around_an_onnx_file_answers_as_its_readme_shows(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
):
    copy = tmp_path / "onnx_pipeline"
    shutil.copytree(FOLDER, copy, ignore=shutil.ignore_patterns("model.onnx", "embeddings.npy"))
    exported = run(copy / "export.py")
    assert exported.returncode == 0, exported.stderr
    assert exported.stdout.startswith("wrote models/encoder/1/model.onnx (")
    store = declared_environment(tmp_path_factory, "onnxruntime")
    (shown,) = re.findall(
        r"^```text\n(.*?)^```$", (FOLDER / "README.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )

    with ServerProcess(copy / "models", f"--env-store={store}", work=tmp_path, timeout=120) as server:
        asked = run(copy / "client.py", f"--url={server.http_url}")
        ready = server.get("/v2/models/encoder/config").json()

    assert (asked.returncode, asked.stdout) == (0, shown), asked.stderr
    assert ready["backend"] == "onnxruntime"


def test_its_client_fails_where_there_is_no_answer(tmp_path: Path):
    nobody = ServerProcess(None, work=tmp_path)  # never started: nobody listens on its ports
    assert run(FOLDER / "client.py", f"--url={nobody.http_url}").returncode != 0
