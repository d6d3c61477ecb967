"""`naiad serve FILE` and `naiad init --from FILE`, with an ONNX file and the real ONNX Runtime."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from support.server import ServerProcess

from . import files
from .test_onnx_models import infer, row

NAIAD = Path(sys.executable).with_name("naiad")

pytestmark = [pytest.mark.builds, pytest.mark.endurance]


def serving(*paths: Path, store: Path, work: Path, **options: str) -> ServerProcess:
    """A server of files, whose temporary folders are in *work*."""
    (work / "tmp").mkdir(exist_ok=True)
    return ServerProcess(
        None,
        *map(str, paths),
        f"--env-store={store}",
        work=work,
        command=[NAIAD, "serve"],
        environ={"TMPDIR": str(work / "tmp")},
        **options,
    )


def repositories(work: Path) -> list[str]:
    return [path.name for path in (work / "tmp").glob("naiad-serve-*")]


def test_a_file_is_served_directly_and_leaves_nothing(tmp_path: Path, store: Path):
    file = files.add_sub(tmp_path / "sums" / "model.onnx")
    other = files.identity(tmp_path / "copies.onnx", files.FLOAT, ["rows", 2])
    with serving(file, other, store=store, work=tmp_path) as server:
        assert infer(server, "sums", {"A": row(1, 2, 3, 4), "B": row(1, 1, 1, 1)})["SUM"].tolist() == [[2, 3, 4, 5]]
        assert infer(server, "copies", {"X": row(5, 6)})["Y"].tolist() == [[5, 6]]
        assert len(repositories(tmp_path)) == 1
    assert repositories(tmp_path) == []
    assert file.is_file()


def test_a_server_that_cannot_start_leaves_nothing_either(tmp_path: Path, store: Path):
    file = tmp_path / "broken.onnx"
    file.write_text("nonsense")
    server = serving(file, store=store, work=tmp_path, wait="")
    with server:
        assert server.wait_exit(120) == 1
        assert "failed to load 'broken'" in server.log
    assert repositories(tmp_path) == []


def test_weights_beside_a_file_are_found(tmp_path: Path, store: Path):
    files.with_external_data(tmp_path / "made")
    model = onnx.load(str(tmp_path / "made" / "model.onnx"))
    onnx.save(
        model,
        str(tmp_path / "weighty.onnx"),
        save_as_external_data=True,
        location="weighty.onnx.data",
        size_threshold=0,
    )
    shutil.rmtree(tmp_path / "made")
    done = subprocess.run(
        [NAIAD, "init", "--from", "weighty.onnx"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "wrote models/weighty/1/weighty.onnx.data\n" in done.stdout
    for name in ("weighty.onnx", "weighty.onnx.data"):
        (tmp_path / name).unlink()
    with ServerProcess(tmp_path / "models", f"--env-store={store}", work=tmp_path) as server:
        found = infer(server, "weighty", {"X": np.eye(1, 64, dtype=np.float32)})["Y"]
    assert found.tolist() == [list(range(64))]
