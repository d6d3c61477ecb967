"""Archives are written whole, by the real conda-pack, and run where they are unpacked."""

from __future__ import annotations

import json
import os
import shutil
import stat
import tarfile
from pathlib import Path

import pytest
from environments.packages import run_alone, small_environment

from naiad.core.errors import ExecutionEnvironmentError
from naiad.environments.archives.manifest import MANIFEST_NAME
from naiad.environments.manager import EnvironmentManager
from naiad.environments.progress import LogReporter
from naiad_building.pack import pack

_MAPPED = (
    "import sys; print(sys.prefix, *{l.split()[-1] for l in open('/proc/self/maps') if 'python' in l.split()[-1]})"
)


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A built environment with one small package."""
    return small_environment(tmp_path_factory.getbasetemp()).prefix


def _conda_environment(folder: Path, *files: str) -> Path:
    """The least that conda-pack takes for a conda environment, with a Python that owns these files."""
    (folder / "conda-meta").mkdir(parents=True)
    (folder / "conda-meta" / "history").touch()
    record = {"name": "python", "version": "3.12.1", "url": "", "link": None, "files": files}
    (folder / "conda-meta" / "python-3.12.1-0.json").write_text(json.dumps(record))
    return folder


def _venv(folder: Path) -> Path:
    folder.mkdir()
    (folder / "pyvenv.cfg").write_text("home = /opt/python/bin\nversion = 3.12.1\n")
    return folder


def test_a_virtual_environment_whose_python_is_gone_is_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(ExecutionEnvironmentError) as caught:
        pack(_venv(tmp_path / "venv"), tmp_path / "out.tar.gz")
    assert "it has no interpreter that runs (looked for " in caught.value.message
    assert [path.name for path in tmp_path.iterdir()] == ["venv"]


@pytest.mark.parametrize(
    ("made", "output", "said"),
    [
        (False, "out.tar.gz", "the folder does not exist"),
        (True, "out.tar.gz", "it is neither a conda environment nor a venv nor built by `naiad env build`"),
        (True, "out.zip", "cannot infer the format of .*out.zip: its name must end with one of .tar.gz, "),
    ],
)
def test_an_unsuitable_environment_is_not_packed(tmp_path: Path, made: bool, output: str, said: str) -> None:
    folder = tmp_path / "environment"
    if made:
        folder.mkdir()
    with pytest.raises(ExecutionEnvironmentError, match=said):
        pack(folder, tmp_path / output)
    assert not (tmp_path / output).exists()


def test_an_archive_that_exists_is_kept_unless_forced(tmp_path: Path) -> None:
    environment, output = _conda_environment(tmp_path / "environment"), tmp_path / "out.tar"
    (environment / "file").write_text("kept")
    output.write_text("old")
    with pytest.raises(ExecutionEnvironmentError, match=r"out\.tar: it exists already"):
        pack(environment, output)
    assert output.read_text() == "old"
    packed = pack(environment, output, force=True)
    assert packed.size == output.stat().st_size
    with tarfile.open(output) as archive:
        assert "file" in archive.getnames()


def test_a_failed_archive_leaves_nothing_and_reports_the_error_of_conda_pack(tmp_path: Path) -> None:
    environment = _conda_environment(tmp_path / "environment", "bin/gone")
    with pytest.raises(
        ExecutionEnvironmentError, match=r"(?s)deleted/overwritten.*bin/gone.*again with `naiad env build`"
    ):
        pack(environment, tmp_path / "out.tar.gz")
    assert [path.name for path in tmp_path.iterdir()] == ["environment"]


def test_a_record_that_conda_pack_cannot_read_is_reported_as_a_failure_of_conda_pack(tmp_path: Path) -> None:
    environment = _conda_environment(tmp_path / "environment")
    (environment / "conda-meta" / "broken-1-0.json").write_text("{}")
    with pytest.raises(ExecutionEnvironmentError, match=r"conda-pack failed on it: KeyError\('link'\)"):
        pack(environment, tmp_path / "out.tar.gz")


def test_an_editable_package_is_refused(tmp_path: Path) -> None:
    environment = _conda_environment(tmp_path / "environment")
    info = environment / "lib" / "python3.12" / "site-packages" / "mine-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "direct_url.json").write_text('{"url": "file:///src", "dir_info": {"editable": true}}')
    with pytest.raises(ExecutionEnvironmentError, match=r"(?s)- mine\n?.*without --editable"):
        pack(environment, tmp_path / "out.tar.gz")


def test_an_archive_is_as_readable_as_other_files(tmp_path: Path) -> None:
    environment = _conda_environment(tmp_path / "environment")
    before = os.umask(0o022)
    try:
        packed = pack(environment, tmp_path / "new" / "out.tar.gz")
    finally:
        os.umask(before)
    assert stat.S_IMODE(packed.archive.stat().st_mode) == 0o644


@pytest.mark.builds
@pytest.mark.parametrize("suffix", ["tar.gz", "tar.zst"])
def test_a_packed_environment_runs_elsewhere_after_the_original_is_gone(
    tmp_path: Path, prefix: Path, suffix: str
) -> None:
    packed = pack(prefix, tmp_path / f"small.{suffix}")
    assert packed.format == suffix
    assert packed.warnings == ()
    unpacked = tmp_path / "unpacked"
    unpacked.mkdir()
    _unpack(packed.archive, unpacked)
    python = str(unpacked / "bin" / "python")
    for step in ("before", "after"):
        where, *mapped = run_alone([python, "-I", "-c", _MAPPED], prefix).split()
        assert where == str(unpacked), f"{step} conda-unpack"
        assert [path for path in mapped if not path.startswith(f"{unpacked}/")] == []
        assert run_alone([python, "-I", "-c", "import greeter; greeter.main()"], prefix) == "hello\n"
        run_alone([python, "-E", "-s", str(unpacked / "bin" / "conda-unpack")])
    assert os.fsencode(prefix) not in (unpacked / "bin" / "greet").read_bytes()
    assert list(unpacked.rglob("os.cpython-*.pyc"))


def test_an_unpacked_archive_is_packed_again_with_one_manifest_and_any_name(tmp_path: Path) -> None:
    environment = _conda_environment(tmp_path / "environment")
    (environment / MANIFEST_NAME).write_text("{}")
    (environment / os.fsdecode(b"a\xe9")).write_text("not UTF-8")

    packed = pack(environment, tmp_path / "out.tar")

    with tarfile.open(packed.archive, errors="surrogateescape") as opened:
        names = opened.getnames()
    assert names.count(MANIFEST_NAME) == 1
    assert names[0] == MANIFEST_NAME
    assert "damaged" not in _problem(packed.archive, tmp_path / "store")


@pytest.mark.builds
@pytest.mark.parametrize("suffix", ["tar", "tar.zst"])
def test_one_changed_byte_of_an_archive_is_found(tmp_path: Path, prefix: Path, suffix: str) -> None:
    archive = tmp_path / f"e.{suffix}"
    pack(prefix, archive)
    # Unpacked and started; it is no environment of a model.
    assert "numpy" in _problem(archive, tmp_path / "store")
    content = bytearray(archive.read_bytes())
    place = content.rindex(b"good\nbad\n") if suffix == "tar" else len(content) // 2
    content[place] ^= 1
    archive.write_bytes(content)

    problem = _problem(archive, tmp_path / "store")

    assert "damaged" in problem
    if suffix == "tar":  # a format without checksums of content
        assert problem == (
            f"the execution environment {archive} is damaged: its files differ from those that its manifest was written "
            "for; copy or pack it again"
        )


@pytest.mark.builds
def test_an_environment_moved_after_building_is_refused(tmp_path: Path, prefix: Path) -> None:
    moved = tmp_path / "moved"
    shutil.copytree(prefix / "conda-meta", moved / "conda-meta")
    with pytest.raises(ExecutionEnvironmentError, match=f"it was built in {prefix} and moved, so its scripts"):
        pack(moved, tmp_path / "out.tar.gz")


def _problem(archive: Path, store: Path) -> str:
    """Why a server cannot use an archive."""
    with pytest.raises(ExecutionEnvironmentError) as caught:
        EnvironmentManager(store, reporter=LogReporter()).prepare(archive)
    return caught.value.message


def _unpack(archive: Path, folder: Path) -> None:
    if archive.suffix == ".zst":
        import zstandard

        with (
            archive.open("rb") as raw,
            zstandard.ZstdDecompressor().stream_reader(raw) as stream,
            tarfile.open(fileobj=stream, mode="r|") as tar,
        ):
            tar.extractall(folder, filter="data")
        return
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
