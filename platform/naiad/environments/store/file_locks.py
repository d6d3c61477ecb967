"""Locks of files, freed by the kernel when a process ends: shared to use something, exclusive to remove it."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from naiad.core import blocking
from naiad.core.errors import EnvironmentBusyError

if TYPE_CHECKING:
    from filelock import FileLock

_log = logging.getLogger("naiad.environments")


class CreationLocks:
    """Locks of what one thread creates at a time; without *waits*, other processes are not waited for."""

    def __init__(self, *, waits: bool = True) -> None:
        self._waits = waits
        self._threads: defaultdict[Path, threading.Lock] = defaultdict(threading.Lock)

    @contextmanager
    def hold(self, path: Path, subject: str, doing: str = "creating") -> Iterator[None]:
        """Hold the lock of a file; *subject* is what its holder is *doing* something with, for the error and the log.

        The file stays: two processes could otherwise hold locks on two files of the same name.

        Raises:
            EnvironmentBusyError: If another process has the lock, and this does not wait.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        from filelock import FileLock  # here: a start whose environments are all unpacked needs no lock

        # thread_local=False: a lock is released by the object that took it, in any thread.
        lock = FileLock(path, thread_local=False)
        own = self._threads[path]
        if not own.acquire(blocking=False):
            _log.info("waiting for %s: another thread of this process is %s it", subject, doing)
            blocking.acquire(lambda seconds: own.acquire(timeout=seconds))
        try:
            try:
                lock.acquire(timeout=0)
            except TimeoutError as error:
                holder = _holder(path)
                if not self._waits:
                    raise EnvironmentBusyError(
                        f"cannot use {subject} yet: {holder} is creating it; repeat the command when that has ended"
                    ) from error
                _log.info("waiting for %s: %s is %s it", subject, holder, doing)
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
def _locked(operation: int, path: Path) -> Iterator[bool]:
    """Hold a lock of a file, which is created; False if another process has one, and *operation* does not wait."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        is_locked = True
        try:
            fcntl.flock(descriptor, operation)
        except BlockingIOError:
            is_locked = False
        yield is_locked
    finally:
        os.close(descriptor)


shared_lock = partial(_locked, fcntl.LOCK_SH)  # blocks while another process has the exclusive one
exclusive_lock = partial(_locked, fcntl.LOCK_EX)  # blocks while another process has a lock
try_exclusive_lock = partial(_locked, fcntl.LOCK_EX | fcntl.LOCK_NB)
