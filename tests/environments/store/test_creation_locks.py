"""One thread of one process creates something; the others wait, or fail if they must not wait for another process."""

from __future__ import annotations

import logging
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from filelock import FileLock

from naiad.core.errors import EnvironmentBusyError
from naiad.environments.store.file_locks import CreationLocks


def take(locks: CreationLocks, path: Path) -> str:
    with locks.hold(path, "it"):
        return "taken"


def wait_for_line(caplog: pytest.LogCaptureFixture, holder: str) -> None:
    deadline = time.monotonic() + 30
    while not any(line.startswith(f"waiting for it: {holder}") for line in caplog.messages):
        assert time.monotonic() < deadline, caplog.messages
        time.sleep(0.01)


def test_a_lock_of_another_process_is_waited_for_only_on_request(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "naiad.environments")
    path = tmp_path / "locks" / "lock"
    path.parent.mkdir()

    with ThreadPoolExecutor(1) as pool:
        with FileLock(path, thread_local=False):
            taken = pool.submit(take, CreationLocks(), path)
            wait_for_line(caplog, "process")
            with (
                pytest.raises(EnvironmentBusyError, match=r"^cannot use it yet: .*process.* is creating it; repeat"),
                CreationLocks(waits=False).hold(path, "it"),
            ):
                pass
            assert not taken.done()
        assert taken.result(30) == "taken"


@pytest.mark.parametrize("waits", [False, True])
def test_threads_of_a_process_wait_for_each_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, waits: bool
) -> None:
    caplog.set_level(logging.INFO, "naiad.environments")
    locks, path = CreationLocks(waits=waits), tmp_path / "lock"

    with ThreadPoolExecutor(1) as pool:
        with locks.hold(path, "it"):
            assert not caplog.messages
            taken = pool.submit(take, locks, path)
            wait_for_line(caplog, "another thread of this process is creating it")
            assert not taken.done()
        assert taken.result(30) == "taken"
    caplog.clear()
    assert (take(locks, path), caplog.messages) == ("taken", [])
