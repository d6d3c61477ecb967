"""One thread of one process creates something; the others wait, or fail if they must not wait for another process."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from filelock import FileLock

from naiad.core.errors import EnvironmentBusyError
from naiad.environments.store.file_locks import CreationLocks


def never() -> None:
    raise AssertionError


def lock(folder: Path) -> FileLock:
    return FileLock(folder / "lock", thread_local=False)


def test_a_lock_of_another_process_is_waited_for_only_on_request(tmp_path: Path) -> None:
    other, waiting = lock(tmp_path), threading.Event()

    def take() -> str:
        with CreationLocks().hold(lock(tmp_path), "it", lambda _: waiting.set()):
            return "taken"

    with ThreadPoolExecutor(1) as pool:
        with other:
            taken = pool.submit(take)
            assert waiting.wait(30)
            with (
                pytest.raises(EnvironmentBusyError, match=r"^cannot use it yet: .*process.* is creating it; repeat"),
                CreationLocks(waits=False).hold(lock(tmp_path), "it", never),
            ):
                pass
            assert not taken.done()
        assert taken.result(30) == "taken"


@pytest.mark.parametrize("waits", [False, True])
def test_threads_of_a_process_wait_for_each_other(tmp_path: Path, waits: bool) -> None:
    locks, waiting = CreationLocks(waits=waits), threading.Event()

    def take() -> str:
        with locks.hold(lock(tmp_path), "it", lambda _: waiting.set()):
            return "taken"

    with ThreadPoolExecutor(1) as pool:
        with locks.hold(lock(tmp_path), "it", never):
            taken = pool.submit(take)
            assert waiting.wait(30)
            assert not taken.done()
        assert taken.result(30) == "taken"
    with locks.hold(lock(tmp_path), "it", never):
        pass
