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

pytestmark = pytest.mark.timeout(300)

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


@needs_root
def test_a_store_that_its_user_keeps_for_itself_is_said_with_the_place(prefetched, tmp_path):
    record = next(prefetched.glob("*/ready.json"))
    record.chmod(0o600)

    with server(tmp_path, wait="") as running:
        running.wait_exit()
        log = running.log

    assert f"cannot use the store of environments at {prefetched}: {record} belongs to user {OTHER} (mode 600), " in log
    assert f"run `chmod -R a+rX {prefetched}`" in log
    assert "unpacking the environment" not in log


@needs_root
@pytest.mark.parametrize("mode", [0o700, 0o755, 0o777])
def test_a_store_that_was_filled_for_its_user_alone_is_said_and_serves_once_it_is_opened(serving, tmp_path, mode):
    """With umask 077, as of root on hardened machines; the folder itself may be older than what is in it."""
    store = prefetch(serving[0], tmp_path, 0o077)
    store.chmod(mode)
    before = {path: path.lstat().st_mtime_ns for path in store.rglob("*")}
    closed = f"{store} belongs" if mode == 0o700 else f"/ready.json belongs to user {OTHER} (mode 600)"

    with server(tmp_path, wait="") as running:
        running.wait_exit()
        log = running.log
    # The table of models breaks the sentence at another place for each length of the path.
    said = [line for line in log.splitlines() if closed in line and not line.startswith("|")]
    for command in ("list", "gc", "verify", "prefetch"):
        named = [f"{tmp_path}/environment.tar.gz"] if command == "prefetch" else []
        done = subprocess.run(
            [*unprivileged(), NAIAD, "env", command, *named, f"--env-store={store}"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert "Traceback" not in done.stderr
        said += [line for line in done.stderr.splitlines() if closed in line]

    assert len(said) == 5
    assert all(
        f"as its owner, run `chmod -R a+rX {store}` and fill the store with umask 022, or " in line for line in said
    )
    assert "Traceback" not in log
    assert {path: path.lstat().st_mtime_ns for path in store.rglob("*")} == before
    subprocess.run(["chmod", "-R", "a+rX", store], check=True)
    with server(tmp_path) as running:
        assert told(running, "m")[1] == serving[1]


@needs_root
def test_what_a_store_of_another_user_lacks_is_said_with_how_to_add_it(prefetched, tmp_path):
    shutil.rmtree(next(path for path in prefetched.iterdir() if len(path.name) == 64))

    with server(tmp_path, wait="") as running:
        running.wait_exit()
        log = running.log

    assert f"cannot put an environment into the store at {prefetched}: Permission denied (" in log
    assert "add it with `naiad env prefetch` as a user who may write there" in log


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


def test_an_interpreter_that_has_lost_its_permission_is_said_by_unpacking_and_by_the_start_of_a_guest(
    serving, tmp_path
):
    add_model(tmp_path / "models", "m", EXECUTION_ENV_PATH=str(serving[0]))
    store = tmp_path / "store"
    subprocess.run([NAIAD, "env", "prefetch", serving[0], f"--env-store={store}"], check=True, capture_output=True)
    python = Path(os.path.realpath(next(store.glob("*/env/bin/python"))))
    python.chmod(0o644)

    options = (f"--env-store={store}", "--exit-on-error=false")
    with ServerProcess(tmp_path / "models", *options, work=tmp_path, timeout=120, wait="live") as running:
        running.wait_log("has lost its permission")
        log = running.log

    assert (
        f"{python} has lost its permission to be executed (mode 644), as copies by some tools and file systems" in log
    )
