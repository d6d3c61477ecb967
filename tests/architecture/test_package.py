"""What comes with the package, built as whoever publishes it does."""

from __future__ import annotations

import email
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from pathlib import Path, PurePosixPath

import pytest
from architecture.sources import ROOT, tracked_files

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NAIAD_SITE_URL": ""},
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


def test_the_wheel_puts_only_packages_and_modules_of_python_into_site_packages(built: Path) -> None:
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        top = {PurePosixPath(name).parts for name in wheel.namelist()}
    files = {parts[0] for parts in top if len(parts) == 1}
    assert files == {
        *("c_python_backend_utils.py", "triton_python_backend_utils.py", "tritonfrontend.py", "tritonserver.py")
    }


def test_the_source_distribution_has_what_the_wheel_is_made_from_and_no_more(built: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        top = {PurePosixPath(name).parts[1] for name in archive.getnames()}

    expected = {"platform", "stubs", "backends", "pyproject.toml", "README.md", "LICENSE", "PKG-INFO", ".gitignore"}
    assert top == {*expected, "docs", "hatch_build.py"}


def test_the_handwritten_document_of_the_api_is_in_the_wheel_and_in_what_it_is_made_from(built: Path) -> None:
    handwritten = (ROOT / "docs" / "reference" / "openapi.yaml").read_bytes()

    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        assert wheel.read("naiad/frontends/api_page/openapi.yaml") == handwritten
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        (packed,) = (name for name in archive.getnames() if "/docs/" in name and PurePosixPath(name).suffix)
        assert archive.extractfile(packed).read() == handwritten


def metadata_of(folder: Path) -> Message:
    """The metadata of the wheel in a folder."""
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(wheel.read(name))


def links(page: str) -> list[str]:
    return re.findall(r"\]\(([^()\s]+)\)", page)


def test_the_page_of_a_package_index_has_links_to_the_site_and_the_addresses_of_the_project(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "NAIAD_SITE_URL": "https://docs.example/naiad/"},
        check=True,
        capture_output=True,
        timeout=100,
    )

    metadata = metadata_of(tmp_path)
    found = links(metadata.get_payload())
    assert "https://docs.example/naiad/docs/benchmarks.html#requests" in found
    assert "https://docs.example/naiad/backends/vllm_like/index.html" in found
    assert [link for link in found if not link.startswith("https://")] == []
    assert len(found) == len(links((ROOT / "README.md").read_text(encoding="utf-8")))
    assert metadata.get_all("Project-URL") == [
        "Homepage, https://docs.example/naiad/index.html",
        "Documentation, https://docs.example/naiad/docs/index.html",
        "Changelog, https://docs.example/naiad/CHANGELOG.html",
    ]


def test_the_page_of_a_package_index_has_no_dead_links_where_there_is_no_site(built: Path) -> None:
    metadata = metadata_of(built)

    page = metadata.get_payload()
    assert links(page) == []
    assert "| median latency of a small Python model, one client, HTTP | 151 us | 356 us | requests |" in page
    assert metadata.get_all("Project-URL") is None


def test_classifiers_name_the_pythons_that_the_tests_run_under(built: Path) -> None:
    """`.ci/run` runs the fast tests under one of the others of its machine."""
    named = metadata_of(built).get_all("Classifier")
    versions = [name.rpartition(" ")[2] for name in named if re.search(r":: 3\.\d+$", name)]
    assert versions == ["3.10", "3.11", "3.12", "3.13"]
