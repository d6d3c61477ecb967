"""Writes lines of the log to a file or a stream, on a thread, so that no caller waits for their reader.

A pipe whose reader has stopped, a terminal after Ctrl-S and a slow disk block `write` for any time. The server has one
event loop, so one blocked write would stop all of it, liveness and SIGTERM included. `LogWriter` therefore puts lines
into a bounded queue that one thread writes. Lines that do not fit are dropped and counted, and the log has their number
where they are missing. Commands that are not servers write on the calling thread.

Lines go to file descriptors, not through `sys.stderr`: the interpreter flushes that at its end and aborts if a
thread that is blocked in it holds its lock.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TextIO

_MAX_QUEUED = 8 << 20  # bytes of lines that may wait: about 50,000 lines, or several seconds of a very busy log
_RESERVE = 1 << 20  # further bytes for warnings and errors, which are the last lines that should be missing
_MAX_WRITE = 16 << 10  # bytes of lines in one write: a quarter of a pipe, so that a slow reader is seen to read
_CLOSE_SECONDS = 10.0  # how long `close` waits for a slow reader
_STALL_SECONDS = 2.0  # how long `close` and `flush` wait for a reader that takes nothing

_NEWLINE = 0x0A

Report = Callable[[str], bytes]  # makes a line of the log from a text that the writer itself has to say


class Destination(Protocol):
    """Where lines are written."""

    def write(self, data: memoryview) -> int:
        """Write some of *data*, at least one byte; how many were written. May block."""

    def reopen(self) -> None:
        """Open the file of this name, which may be another by now; after an OSError, the open one stays in use."""

    def close(self) -> None:
        """Close what was opened for this."""


class FileDestination:
    """A file that is appended to."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = self._open()

    def __str__(self) -> str:
        return str(self._path)

    def write(self, data: memoryview) -> int:
        return os.write(self._descriptor, data)

    def reopen(self) -> None:
        """Open the file of this name, which is created if it was renamed or removed."""
        descriptor = self._open()
        os.close(self._descriptor)
        self._descriptor = descriptor

    def close(self) -> None:
        os.close(self._descriptor)

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)


class StreamDestination:
    """A stream of this process, usually stderr; it is not closed."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        encoding: str = getattr(stream, "encoding", None) or "utf-8"
        self._encoding = "" if encoding.lower() in {"utf-8", "utf8"} else encoding

    def __str__(self) -> str:
        return "stderr"

    def write(self, data: memoryview) -> int:
        # Another object than the interpreter's own stream was put there by a notebook or a test, and its descriptor,
        # if it has one, leads elsewhere.
        if self._stream is not sys.__stderr__:
            self._stream.write(bytes(data).decode(errors="replace"))
            self._stream.flush()
            return len(data)
        try:
            descriptor = self._stream.fileno()
        except ValueError as error:  # it was closed
            raise OSError(str(error)) from error
        if not self._encoding:
            return os.write(descriptor, data)
        view = memoryview(bytes(data).decode(errors="replace").encode(self._encoding, "backslashreplace"))
        while view:
            view = view[os.write(descriptor, view) :]
        return len(data)

    def reopen(self) -> None:
        """Do nothing: a stream has no name."""

    def close(self) -> None:
        """Do nothing: the stream belongs to the process."""


class LogWriter:
    """Writes lines in the order of the calls: on a thread, which starts with the first line, or *is_direct*.

    In a process that this one forks, lines are written on the calling thread: the fork has no other threads.
    """

    def __init__(self, destination: Destination, report: Report, *, is_direct: bool = False) -> None:
        self._output = _Output(destination, report)
        self._report = report
        # Reentrant: a finalizer that logs may run anywhere, so also while this thread holds the lock.
        self._changed = threading.Condition(threading.RLock())
        self._lines: list[bytes] = []
        self._queued = 0  # bytes in _lines
        self._writing = 0  # bytes that the thread has taken and not written yet
        self._dropped = 0
        self._is_full = False
        self._is_idle = False  # the thread waits for lines
        self._is_direct = is_direct  # lines are written on the calling thread
        self._is_reopening = False
        self._is_closing = False
        self._thread: threading.Thread | None = None
        _writers.add(self)

    def put(self, line: bytes, *, urgent: bool) -> None:
        """Write a line with its end; *urgent* for a warning or an error."""
        with self._changed:
            if self._thread is None and not self._is_direct:
                self._start()
            if self._is_direct:
                self._output.write([line])
                return
            if not self._has_room(len(line), urgent=urgent):
                self._dropped += 1
                return
            if self._dropped:
                self._append(self._take_drop_report())
            self._append(line)
            if self._is_idle:
                self._is_idle = False
                self._changed.notify_all()

    def reopen(self) -> None:
        """Open the file of this name again before the next line is written; returns at once."""
        with self._changed:
            if self._thread is None and not self._is_direct:
                self._start()
            if self._is_direct:
                self._output.reopen()
                return
            self._is_reopening = True
            self._is_idle = False
            self._changed.notify_all()

    def flush(self) -> bool:
        """Wait until all lines are written; False if the reader takes none or takes too long."""
        now = time.monotonic()
        deadline, stalled = now + _CLOSE_SECONDS, now + _STALL_SECONDS
        with self._changed:
            left = self._backlog
            while left or self._dropped:
                if now >= min(deadline, stalled):
                    return False
                self._changed.wait(min(deadline, stalled) - now)
                now = time.monotonic()
                if self._backlog < left:
                    stalled = now + _STALL_SECONDS
                left = self._backlog
        return True

    def close(self) -> None:
        """Write what is left, unless the reader takes nothing for two seconds, and close the destination."""
        with self._changed:
            self._is_closing = True
            self._is_idle = False
            self._changed.notify_all()
        if self._thread is None:
            self._output.close()
        elif self.flush():
            self._thread.join()  # it closes the destination
        # Else the thread is blocked in a write, until its reader continues or the process ends: it is a daemon.

    @property
    def _backlog(self) -> int:
        return self._queued + self._writing

    def _has_room(self, size: int, *, urgent: bool) -> bool:
        limit = _MAX_QUEUED + (_RESERVE if urgent else 0)
        if self._is_full and self._backlog <= _MAX_QUEUED // 2:
            self._is_full = False
        # Otherwise lines that find room would alternate with drops, and each drop would need a report.
        if (self._is_full and not urgent) or (self._backlog and self._backlog + size > limit):
            self._is_full = True
            return False
        return True

    def _append(self, line: bytes) -> None:
        self._lines.append(line)
        self._queued += len(line)

    def _take_drop_report(self) -> bytes:
        count, self._dropped = self._dropped, 0
        return self._report(f"{count} lines of the log were dropped: {self._output} was not read fast enough")

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="naiad-log", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # no more threads are allowed, or the interpreter is ending
            self._thread, self._is_direct = None, True

    def _run(self) -> None:
        while True:
            with self._changed:
                self._writing = 0
                self._changed.notify_all()  # for `flush`
                while not (self._lines or self._dropped or self._is_reopening):
                    if self._is_closing:
                        self._output.close()
                        return
                    self._is_idle = True
                    self._changed.wait()
                lines, self._lines = self._lines, []
                if self._dropped and not lines:
                    lines = [self._take_drop_report()]
                self._writing, self._queued = sum(map(len, lines)), 0
                reopens, self._is_reopening = self._is_reopening, False
            if reopens:
                self._output.reopen()
            self._output.write(lines, self._on_written)

    def _on_written(self, size: int) -> None:
        with self._changed:
            self._writing -= size

    def _after_fork(self) -> None:
        """In the child: its parent writes the lines that are queued."""
        self._changed = threading.Condition(threading.RLock())
        self._lines, self._queued, self._writing, self._dropped = [], 0, 0, 0
        self._thread, self._is_direct = None, True


_writers: weakref.WeakSet[LogWriter] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for writer in list(_writers):
        writer._after_fork()  # noqa: SLF001 - this function is a part of the class: `os` calls it for all its objects


os.register_at_fork(after_in_child=_after_fork_in_child)


class _Output:
    """A destination whose failures cost one line when they begin, and one when they end."""

    def __init__(self, destination: Destination, report: Report) -> None:
        self._destination = destination
        self._report = report
        self._lost = 0
        self._problem = ""
        self._is_torn = False  # a part of a line was written

    def __str__(self) -> str:
        return str(self._destination)

    def write(self, lines: Sequence[bytes], on_written: Callable[[int], None] = lambda size: None) -> None:  # noqa: ARG005 - the signature of the callback
        """Write lines, several at a time; *on_written* is called with the bytes of each portion."""
        portion: list[bytes] = []
        size = 0
        for line in lines:
            if portion and size + len(line) > _MAX_WRITE:
                self._write_portion(portion)
                on_written(size)
                portion, size = [], 0
            portion.append(line)
            size += len(line)
        if portion:
            self._write_portion(portion)
            on_written(size)

    def reopen(self) -> None:
        """Open the destination again; if that fails, one line in the old file has the reason."""
        try:
            self._destination.reopen()
            self._is_torn = False
        except OSError as error:
            problem = f"cannot reopen the log {self}: {error.strerror or error}; the file that was open stays in use"
            self._write_portion([self._report(problem)])

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._destination.close()

    def _write_portion(self, lines: Sequence[bytes]) -> None:
        head = b"\n" if self._is_torn else b""
        if self._lost:
            head += self._report(f"{self._lost} lines of the log are missing here: {self._problem}")
        data = memoryview(b"".join((head, *lines)))
        written = 0
        try:
            while written < len(data):
                written += self._destination.write(data[written:])
        except OSError as error:
            if written >= len(head):
                self._lost = 0
            whole, end = 0, len(head)
            for line in lines:
                end += len(line)
                whole += end <= written
            self._is_torn = self._is_torn if not written else data[written - 1] != _NEWLINE
            self._on_failure(len(lines) - whole, error.strerror or str(error))
        else:
            self._lost, self._problem, self._is_torn = 0, "", False

    def _on_failure(self, lost: int, problem: str) -> None:
        is_new, self._problem = problem != self._problem, problem
        self._lost += lost
        # If stderr itself fails, this line has no destination.
        if is_new and isinstance(self._destination, FileDestination):
            text = f"cannot write the log {self}: {problem}; lines are dropped until it can be written again"
            with contextlib.suppress(OSError, ValueError):
                StreamDestination(sys.stderr).write(memoryview(self._report(text)))
