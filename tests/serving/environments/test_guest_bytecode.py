"""Our own modules are compiled by the first guest of each Python, and nothing else is by any guest."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.server

STUBS = Path(__file__).parents[3] / "stubs"


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """The guest's package without bytecode, and beside it a package of somebody else."""
    shutil.copytree(STUBS / "naiad_stub", tmp_path / "lib" / "naiad_stub", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "others").mkdir()
    (tmp_path / "others" / "sitecustomize.py").write_text("")
    return tmp_path / "lib"


def start(library: Path) -> None:
    """Run the stub until it has imported what it needs, and complains of its arguments."""
    environ = {"PATH": os.defpath, "NAIAD_STUB_LIBRARY": str(library), "PYTHONDONTWRITEBYTECODE": "1"}
    # The packages of this interpreter, as it may be a venv's or not.
    environ["PYTHONPATH"] = os.pathsep.join([str(library.parent / "others"), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, STUBS / "naiad_stub" / "artifacts" / "triton_python_backend_stub"],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "--host" in done.stderr


def compiled(folder: Path) -> dict[str, int]:
    return {path.name.split(".")[0]: path.stat().st_mtime_ns for path in folder.rglob("*.pyc")}


def test_the_first_guest_leaves_only_naiads_modules_compiled(tmp_path, library):
    start(library)

    assert {"__init__", "main", "wire", "loader"} <= compiled(library).keys()
    assert compiled(tmp_path / "others") == {}


def test_the_next_guest_uses_the_bytecode_of_the_first_one(library):
    start(library)
    before = compiled(library)

    start(library)

    assert compiled(library) == before


def test_a_folder_that_cannot_be_written_is_no_reason_not_to_start(library):
    (library / "naiad_stub" / "__pycache__").write_text("in the way")

    start(library)

    assert compiled(library) == {}
