"""The guest laid out by itself, on a real disk and with real interpreters."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from naiad.core.errors import OptionError, ResolutionError
from naiad.models.resolution.layout import lay_out_guest


def tree(root: Path) -> dict[str, int]:
    return {str(path.relative_to(root)): path.stat().st_mtime_ns for path in sorted(root.rglob("*")) if path.is_file()}


def test_the_layout_holds_the_guest_and_nothing_else(tmp_path):
    guest = lay_out_guest(tmp_path)
    assert sorted(path.name for path in guest.artifacts_dir.iterdir()) == [
        "stub.toml",
        "triton_python_backend_stub",
        "triton_python_backend_utils.py",
    ]
    assert [path.name for path in guest.library_dir.iterdir()] == ["naiad_stub"]
    assert (guest.library_dir / "naiad_stub" / "wire.py").is_file()
    assert not list(tmp_path.rglob("*.pyc"))
    assert os.access(guest.artifacts_dir / "triton_python_backend_stub", os.X_OK)


def test_the_stub_supports_the_interpreters_its_manifest_names(tmp_path):
    required = lay_out_guest(tmp_path).requires_python
    assert [version for version in ("3.7.17", "3.8.18", "3.14.0", "3.15.0") if version in required] == [
        "3.8.18",
        "3.14.0",
    ]


def test_no_package_of_the_host_can_be_imported_from_the_layout(tmp_path):
    """The host's site-packages must not come along: with the library alone on its path, a guest finds no host package."""
    library = lay_out_guest(tmp_path).library_dir
    code = (
        "import sys; sys.path.append(sys.argv[1])\n"
        "import naiad_stub, importlib.util\n"
        "print([name for name in ('naiad', 'orjson', 'click') if importlib.util.find_spec(name)])"
    )
    command = [sys.executable, "-I", "-S", "-B", "-c", code, str(library)]
    result = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert result.stdout.strip() == "[]"


def test_a_second_start_writes_no_file(tmp_path):
    lay_out_guest(tmp_path)
    before = tree(tmp_path)
    assert lay_out_guest(tmp_path).library_dir.is_dir()
    assert tree(tmp_path) == before


def test_a_layout_that_lost_a_file_is_made_whole(tmp_path):
    """Cleaners of caches delete old files one by one."""
    guest = lay_out_guest(tmp_path)
    (guest.library_dir / "naiad_stub" / "wire.py").unlink()
    assert (lay_out_guest(tmp_path).library_dir / "naiad_stub" / "wire.py").is_file()
    assert [entry.name for entry in tmp_path.iterdir()] == [guest.library_dir.parent.name]


@pytest.mark.server
def test_servers_that_start_together_share_one_layout(tmp_path):
    # Spawned, as the test process has threads.
    with ProcessPoolExecutor(4, mp_context=get_context("spawn")) as pool:
        layouts = list(pool.map(lay_out_guest, [tmp_path] * 8))
    assert {layout.library_dir for layout in layouts} == {layouts[0].library_dir}
    assert len(list(tmp_path.iterdir())) == 1


def test_remains_of_a_killed_server_are_removed_and_files_being_written_are_not(tmp_path):
    old, young = (tmp_path / f".guest-staging-{name}" for name in ("old", "young"))
    for folder in (old, young):
        (folder / "lib").mkdir(parents=True)
    os.utime(old, (1, 1))
    lay_out_guest(tmp_path)
    assert (old.exists(), young.exists()) == (False, True)


def test_a_cache_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ResolutionError) as caught:
        lay_out_guest(tmp_path / "file")
    assert caught.value.message.startswith(f"cannot lay out the guest in '{tmp_path}/file/guest-")
    assert caught.value.message.endswith("; name a directory that can be written with --env-store")


@pytest.fixture
def only_read(tmp_path, monkeypatch):
    """A store that may only be read: root may write to any folder, so the system's answer is played."""
    store, make = tmp_path / "store" / "guests", tempfile.mkdtemp

    def refuse(suffix=None, prefix=None, folder=None, **named):
        folder = folder or named["dir"]
        if Path(folder).is_relative_to(store):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return make(suffix, prefix, folder)

    monkeypatch.setattr(tempfile, "mkdtemp", refuse)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    return store


def test_a_store_that_may_only_be_read_leaves_the_guest_among_temporary_files(tmp_path, only_read):
    guest = lay_out_guest(only_read)

    private = tmp_path / "temporary" / f"naiad-{os.geteuid()}"
    assert guest.artifacts_dir.is_relative_to(private / "environments" / "guests")
    assert private.stat().st_mode & 0o777 == 0o700
    assert lay_out_guest(only_read) == guest
    private.chmod(0o755)
    with pytest.raises(OptionError, match=r"which is open to others \(mode 755, not 700\)"):
        lay_out_guest(only_read)


def test_without_any_folder_that_can_be_written_the_last_one_is_named(tmp_path, only_read):
    (tmp_path / "temporary").rmdir()
    (tmp_path / "temporary").touch()

    with pytest.raises(ResolutionError) as caught:
        lay_out_guest(only_read)

    assert caught.value.message.startswith(f"cannot lay out the guest in '{tmp_path}/temporary/naiad-")


def test_without_a_folder_for_temporary_files_the_store_is_named(only_read, monkeypatch):
    def none() -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(tempfile, "gettempdir", none)
    with pytest.raises(ResolutionError) as caught:
        lay_out_guest(only_read)

    assert caught.value.message.startswith(f"cannot lay out the guest in '{only_read}/guest-")
    assert caught.value.message.endswith(
        "': Read-only file system; name a directory that can be written with --env-store"
    )
