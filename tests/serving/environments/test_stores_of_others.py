"""Stores that another user has filled, as while an image is built by root, and file systems that start no programs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from environments.served import add_model, told
from support.server import ServerProcess

NAIAD = Path(sys.executable).with_name("naiad")
OTHER = 12345
_OF_ROOT = "dac_override,dac_read_search,fowner,chown"
SETPRIV = shutil.which("setpriv")
needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or SETPRIV is None, reason="only root may give files to another user (setpriv of util-linux)"
)


def unprivileged() -> list[str]:
    """What a command begins with that may only do to files what their modes allow, as any user."""
    dropped = ",".join(f"-{name}" for name in _OF_ROOT.split(","))
    return [str(SETPRIV), f"--bounding-set={dropped}", f"--inh-caps={dropped}"]


def give_away(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        os.lchown(path, OTHER, OTHER)


def prefetch(archive: Path, folder: Path, umask: int) -> Path:
    """A store of another user, with the environment of the model `m`."""
    shutil.copy(archive, folder / "environment.tar.gz")
    (folder / "environment.tar.gz").chmod(0o644)
    add_model(folder / "models", "m", EXECUTION_ENV_PATH=str(folder / "environment.tar.gz"))
    store = folder / "store"
    command = [NAIAD, "env", "prefetch", folder / "environment.tar.gz", f"--env-store={store}"]
    subprocess.run(command, check=True, capture_output=True, umask=umask)
    give_away(store)
    return store


@pytest.fixture
def prefetched(serving: tuple[Path, str], tmp_path: Path) -> Path:
    """A store of another user, which may be read."""
    return prefetch(serving[0], tmp_path, 0o022)


def server(folder: Path, **changes: object) -> ServerProcess:
    tritonserver = [*unprivileged(), str(NAIAD.with_name("tritonserver"))]
    settings = {"work": folder, "timeout": 120, **changes}
    return ServerProcess(folder / "models", f"--env-store={folder / 'store'}", command=tritonserver, **settings)


@needs_root
def test_a_store_that_root_has_prefetched_serves_another_user(prefetched, serving, tmp_path):
    before = {path: path.lstat().st_mtime_ns for path in prefetched.rglob("*") if path.is_file()}

    with server(tmp_path) as running:
        assert told(running, "m")[1] == serving[1]
        assert "unpacking the environment" not in running.log
        assert "cannot" not in running.log

    assert {path: path.lstat().st_mtime_ns for path in prefetched.rglob("*") if path.is_file()} == before


@pytest.fixture
def noexec(tmp_path: Path) -> Iterator[Path]:
    """A file system that starts no programs."""
    folder = tmp_path / "noexec"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "noexec,size=300m", "tmpfs", folder], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", folder], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
def test_a_store_on_a_file_system_with_noexec_is_said(noexec, serving, tmp_path):
    command = [NAIAD, "env", "prefetch", serving[0], f"--env-store={noexec / 'store'}"]

    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert f"the file system at {noexec} is mounted with noexec, so no program in it can be started; " in done.stderr
    assert "put the environment elsewhere (for the store --env-store)" in done.stderr
