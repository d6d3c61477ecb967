"""Writing many files with few threads: creating, writing and digesting all run without Python's lock.

What waits to be written is bounded, in batches so that handing over costs little beside a small file.
"""

from __future__ import annotations

import hashlib
import os
import queue
import stat
import threading
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import NamedTuple

from naiad.environments.store.file_digests import HEAD_BYTES, UnpackedFile

__all__ = ["FileWriters", "set_mtime"]

_THREADS = 2
_BATCH_BYTES = 1 << 20
_BATCH_FILES = 64
_BATCHES = 8
# O_EXCL and O_NOFOLLOW: whatever is in the way, it is not followed.
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
# Beyond what any file system holds; some archives have times of another calendar.
_LATEST = 1 << 33


class _File(NamedTuple):
    path: str
    name: str
    pieces: Sequence[bytes | memoryview]
    mode: int
    mtime: float


class FileWriters:
    """Threads that write files while more of them are read. Used by one thread, as a context.

    Attributes:
        written: What is written, by name; whole once `drain` has returned.
    """

    def __init__(self) -> None:
        self.written: dict[str, UnpackedFile] = {}
        # Permissions that files get as they are asked for; what the umask takes away is given in a call of its own.
        self._kept_modes: set[int] = set()
        self._batch: list[_File] = []
        self._batch_bytes = 0
        self._queue: queue.Queue[list[_File] | None] = queue.Queue(_BATCHES)
        self._error: BaseException | None = None
        self._threads = [threading.Thread(target=self._run, name="naiad-write", daemon=True) for _ in range(_THREADS)]

    def __enter__(self) -> FileWriters:  # noqa: PYI034 - `Self` came with Python 3.11
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

    def add(
        self, path: str, name: str, pieces: Sequence[bytes | memoryview], size: int, mode: int, mtime: float
    ) -> None:
        """Have a file written soon, of as many bytes.

        Raises:
            OSError: If an earlier one could not be.
        """
        self._batch.append(_File(path, name, pieces, mode, mtime))
        self._batch_bytes += size
        if self._batch_bytes >= _BATCH_BYTES or len(self._batch) >= _BATCH_FILES:
            self._hand_over()

    def write(
        self, path: str, name: str, pieces: Iterable[bytes | memoryview], mode: int, mtime: float
    ) -> UnpackedFile:
        """Write a new file at once.

        Raises:
            OSError: If it cannot be written, or something of its name is there, be it a link to nowhere.
        """
        # Executable or not is kept; set-user-id and writable-by-others are nobody's business here.
        wanted = (mode & 0o755) | 0o600
        descriptor = os.open(path, _NEW, wanted)
        try:
            size, head = 0, b""
            digest = hashlib.sha256()
            for piece in pieces:
                _write_all(descriptor, piece)
                digest.update(piece)
                head = head or bytes(piece[:HEAD_BYTES])
                size += len(piece)
            if wanted not in self._kept_modes:
                self._set_mode(descriptor, wanted)
            mtime_ns = set_mtime(descriptor, mtime)
        finally:
            os.close(descriptor)
        self.written[name] = written = UnpackedFile(
            size, mtime_ns, digest.hexdigest(), head if name.endswith(".pyc") else b""
        )
        return written

    def _set_mode(self, descriptor: int, wanted: int) -> None:
        if stat.S_IMODE(os.fstat(descriptor).st_mode) == wanted:
            self._kept_modes.add(wanted)
        else:
            os.fchmod(descriptor, wanted)

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
                    self.write(*file)
            except BaseException as error:  # noqa: BLE001 - raised again by the thread that hands over
                self._error = self._error or error
            finally:
                self._queue.task_done()


def _write_all(descriptor: int, piece: bytes | memoryview) -> None:
    written = os.write(descriptor, piece)
    while written < len(piece):
        # A disk that is nearly full takes a part, and tells with the next call.
        written += os.write(descriptor, memoryview(piece)[written:])


def set_mtime(path: str | int, mtime: float) -> int:
    """Keep the archive's time: bytecode is valid only while its source has the mtime it was made from.

    Returns:
        It, in nanoseconds.
    """
    # In this order, what is no number at all becomes 0 as well.
    nanoseconds = int(min(max(0, mtime), _LATEST) * 1_000_000_000)
    os.utime(path, ns=(nanoseconds, nanoseconds))
    return nanoseconds
