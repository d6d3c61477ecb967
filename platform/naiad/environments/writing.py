"""Writing many files with few threads: creating, writing and digesting all run without Python's lock.

What waits to be written is bounded, in batches so that handing over costs little beside a small file.
"""

from __future__ import annotations

import hashlib
import os
import queue
import threading
from collections.abc import Iterable
from types import TracebackType
from typing import NamedTuple

from naiad.environments.file_digests import Written

__all__ = ["Writers", "set_mtime", "write_file"]

_THREADS = 2
_BATCH_BYTES = 1 << 20
_BATCH_FILES = 32
_BATCHES = 8


class _File(NamedTuple):
    path: str
    name: str
    data: bytes
    mode: int
    mtime: float


class Writers:
    """Threads that write files while more of them are read. Used by one thread, as a context.

    Attributes:
        written: What is written, by name; whole once `drain` has returned.
    """

    def __init__(self) -> None:
        self.written: dict[str, Written] = {}
        self._batch: list[_File] = []
        self._batch_bytes = 0
        self._queue: queue.Queue[list[_File] | None] = queue.Queue(_BATCHES)
        self._error: BaseException | None = None
        self._threads = [threading.Thread(target=self._run, name="naiad-write", daemon=True) for _ in range(_THREADS)]

    def __enter__(self) -> Writers:  # noqa: PYI034 - `Self` came with Python 3.11
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            # Nothing more is written, but whoever removes the folder must not meet a file that is just being made.
            self._error = self._error or error
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()

    def add(self, path: str, name: str, data: bytes, mode: int, mtime: float) -> None:
        """Have a file written soon.

        Raises:
            OSError: If an earlier one could not be.
        """
        self._batch.append(_File(path, name, data, mode, mtime))
        self._batch_bytes += len(data)
        if self._batch_bytes >= _BATCH_BYTES or len(self._batch) >= _BATCH_FILES:
            self._hand_over()

    def drain(self) -> None:
        """Wait until all is written.

        Raises:
            OSError: If something could not be.
        """
        self._hand_over()
        self._queue.join()
        self._raise()

    def _hand_over(self) -> None:
        self._raise()
        if self._batch:
            self._queue.put(self._batch)
            self._batch, self._batch_bytes = [], 0

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        while (batch := self._queue.get()) is not None:
            try:
                for file in batch:
                    # After an error the rest is thrown away, but taken: whoever hands it over must not wait for ever.
                    if self._error is not None:
                        break
                    self.written[file.name] = write_file(file.path, (file.data,), file.mode, file.mtime)
            except BaseException as error:  # noqa: BLE001 - raised again by the thread that hands over
                self._error = self._error or error
            finally:
                self._queue.task_done()


def write_file(path: str, pieces: Iterable[bytes], mode: int, mtime: float) -> Written:
    """Write a new file.

    Raises:
        OSError: If it cannot be written, or something of its name is there, be it a link to nowhere.
    """
    # O_EXCL and O_NOFOLLOW: whatever is in the way, it is not followed.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        size = 0
        digest = hashlib.sha256()
        for piece in pieces:
            _write_all(descriptor, piece)
            digest.update(piece)
            size += len(piece)
        # Executable or not is kept; set-user-id and writable-by-others are nobody's business here.
        os.fchmod(descriptor, (mode & 0o755) | 0o600)
        mtime_ns = set_mtime(descriptor, mtime)
    finally:
        os.close(descriptor)
    return Written(size, mtime_ns, digest.hexdigest())


def _write_all(descriptor: int, piece: bytes) -> None:
    written = os.write(descriptor, piece)
    while written < len(piece):
        # A disk that is nearly full takes a part, and tells with the next call.
        written += os.write(descriptor, memoryview(piece)[written:])


def set_mtime(path: str | int, mtime: float) -> int:
    """Keep the archive's time: bytecode is valid only while its source has the mtime it was made from.

    Returns:
        It, in nanoseconds.
    """
    nanoseconds = max(0, int(mtime * 1_000_000_000))
    os.utime(path, ns=(nanoseconds, nanoseconds))
    return nanoseconds
