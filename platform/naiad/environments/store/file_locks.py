"""Locks of files, freed by the kernel when a process ends: shared to use something, exclusive to remove it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from naiad.core import blocking
from naiad.core.errors import EnvironmentBusyError

if TYPE_CHECKING:
    from filelock import FileLock


class CreationLocks:
    """Locks of what one thread creates at a time; without *waits*, other processes are not waited for."""

    def __init__(self, *, waits: bool = True) -> None:
        self._waits = waits
        self._threads: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    @contextmanager
    def hold(self, lock: FileLock, subject: str, on_waiting: Callable[[str], None]) -> Iterator[None]:
        """Hold a lock, whose file's folder exists; *subject* is what is created, for the error.

        *on_waiting* is called before this waits, with who has the lock.

        Raises:
            EnvironmentBusyError: If another process has the lock, and this does not wait.
        """
        own = self._threads[str(lock.lock_file)]
        has_waited = not own.acquire(blocking=False)
        if has_waited:
            on_waiting("another thread of this process")
            blocking.acquire(lambda seconds: own.acquire(timeout=seconds))
        try:
            try:
                lock.acquire(timeout=0)
            except TimeoutError as error:
                holder = _holder(Path(lock.lock_file))
                if not self._waits:
                    raise EnvironmentBusyError(
                        f"cannot use {subject} yet: {holder} is creating it; repeat the command when that has ended"
                    ) from error
                on_waiting(holder)
                blocking.acquire(partial(_try_acquire, lock))
            try:
                yield
            finally:
                lock.release()
        finally:
            own.release()


def _holder(path: Path) -> str:
    """The process that has the lock of a file, by its id where the kernel tells it (proc_locks(5))."""
    with contextlib.suppress(OSError, ValueError, psutil.Error):
        inode = str(path.stat().st_ino)
        for line in Path("/proc/locks").read_text(encoding="ascii").splitlines():
            # 1: FLOCK  ADVISORY  WRITE 4211 08:02:131107 0 EOF; lines with `->` are processes that wait
            fields = line.split()
            if fields[1] == "FLOCK" and fields[5].rpartition(":")[2] == inode and int(fields[4]) > 0:
                return f"process {fields[4]} ({psutil.Process(int(fields[4])).name()})"
    return "another process"


def _try_acquire(lock: FileLock, seconds: float) -> bool:
    try:
        lock.acquire(timeout=seconds)
    except TimeoutError:
        return False
    return True


@contextmanager
def shared_lock(path: Path) -> Iterator[None]:
    """Hold a shared lock of a file, which is created; blocks while another process has the exclusive one."""
    with _locked(path, fcntl.LOCK_SH):
        yield


@contextmanager
def exclusive_lock(path: Path) -> Iterator[None]:
    """Hold the exclusive lock of a file, which is created; blocks while another process has a lock."""
    with _locked(path, fcntl.LOCK_EX):
        yield


@contextmanager
def try_exclusive_lock(path: Path) -> Iterator[bool]:
    """Try to hold the exclusive lock of a file: False if another process has a lock."""
    descriptor = _open(path)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_locked = True
        except BlockingIOError:
            is_locked = False
        yield is_locked
    finally:
        os.close(descriptor)


@contextmanager
def _locked(path: Path, operation: int) -> Iterator[None]:
    descriptor = _open(path)
    try:
        fcntl.flock(descriptor, operation)
        yield
    finally:
        os.close(descriptor)


def _open(path: Path) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
