"""pip is unpacked once into the user's cache, and runs from its wheel where that is not possible."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from naiad_building import pip_program
from naiad_building.pip_program import unpacked_pip


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "naiad" / "pip"


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """A wheel whose program prints its file."""
    path = tmp_path / "pip-9.9-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("pip/__init__.py", "")
        archive.writestr("pip/__main__.py", "print(__file__)")
    return path


def run(pip: Path) -> str:
    command = [sys.executable, "-I", str(pip / "pip")]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_pip_is_unpacked_once(cache: Path, wheel: Path) -> None:
    folder = unpacked_pip(wheel)
    program = folder / "pip" / "__main__.py"
    written = program.stat().st_ino

    assert folder.parent == cache
    assert run(folder) == str(program)
    assert unpacked_pip(wheel) == folder
    assert program.stat().st_ino == written


def test_files_of_a_killed_process_are_written_again(cache: Path, wheel: Path) -> None:
    folder = unpacked_pip(wheel)
    (folder / "UNPACKED").unlink()
    (folder / "pip" / "__main__.py").write_text("raise SystemExit('half a file')")

    assert run(unpacked_pip(wheel)) == str(folder / "pip" / "__main__.py")


def test_another_build_of_the_same_version_is_another_pip(cache: Path, wheel: Path, tmp_path: Path) -> None:
    other = tmp_path / "other" / wheel.name
    other.parent.mkdir()
    shutil.copy(wheel, other)
    with zipfile.ZipFile(other, "a") as archive:
        archive.writestr("pip/more.py", "")

    assert unpacked_pip(other) != unpacked_pip(wheel)


def test_without_a_cache_the_wheel_is_run(cache: Path, wheel: Path) -> None:
    cache.parent.parent.write_text("a file in its place")

    assert unpacked_pip(wheel) == wheel


def test_files_that_another_thread_writes_meanwhile_are_not_written_again(
    cache: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pip runs already: models that build together would fail at half a module."""
    folder = unpacked_pip(wheel)
    program = folder / "pip" / "__main__.py"
    written = program.stat().st_mtime_ns
    marker = folder / "UNPACKED"
    marker.unlink()

    class OtherHolder:
        """A lock that is free once its other holder has unpacked."""

        def __init__(self, _: Path) -> None:
            pass

        def __enter__(self) -> None:
            marker.touch()

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(pip_program, "FileLock", OtherHolder)

    assert unpacked_pip(wheel) == folder
    assert program.stat().st_mtime_ns == written
