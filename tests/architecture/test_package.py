"""What comes with the package, built as whoever publishes it does."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path, PurePosixPath

import pytest
from architecture.sources import ROOT, tracked_files

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=100,
    )
    return folder


def test_the_wheel_has_host_guest_and_backends_whole(built: Path) -> None:
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        packed = set(wheel.namelist())

    places = {"platform": "", "stubs": "", "backends": "naiad/_backends"}
    tracked = [PurePosixPath(path.relative_to(ROOT).as_posix()) for path in tracked_files()]
    expected = {
        str(PurePosixPath(places[path.parts[0]], *path.parts[1:])) for path in tracked if path.parts[0] in places
    }
    assert sorted(expected - packed) == []
    assert sorted(name for name in packed if "__pycache__" in name) == []


def test_the_source_distribution_has_what_the_wheel_is_made_from_and_no_more(built: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        top = {PurePosixPath(name).parts[1] for name in archive.getnames()}

    expected = {"platform", "stubs", "backends", "pyproject.toml", "README.md", "LICENSE", "PKG-INFO", ".gitignore"}
    assert top == {*expected, "docs"}


def test_the_handwritten_document_of_the_api_is_in_the_wheel_and_in_what_it_is_made_from(built: Path) -> None:
    handwritten = (ROOT / "docs" / "reference" / "openapi.yaml").read_bytes()

    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        assert wheel.read("naiad/frontends/api_page/openapi.yaml") == handwritten
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        (packed,) = (name for name in archive.getnames() if "/docs/" in name and PurePosixPath(name).suffix)
        assert archive.extractfile(packed).read() == handwritten
