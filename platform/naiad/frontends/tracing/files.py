"""Trace files: JSON arrays that grow while the server runs (SRV docs/user_guide/trace.md).

The event loop collects traces. A thread makes text of them and writes it, since a slow disk, or a pipe that is
not read, blocks `open` and `write` for any time.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

from naiad.core.quantities import counted
from naiad.frontends.tracing.records import TENSORS_SIZE, CompleteTrace
from naiad.frontends.tracing.rendering import render_traces

logger = logging.getLogger("naiad.trace")

_BATCH = 64  # traces per write: a crash loses at most these, and opening the file costs little for each
BATCH_SIZE = 16 << 20  # bytes of traces that are written although there are fewer
_MAX_WAITING = 64 << 20  # bytes of traces that may wait for the thread; further ones are dropped
_MAX_WRITE = 256 << 10
_PAUSE_SECONDS = 0.001
_PAUSE_BYTES = 8 << 10
"""A pause of the thread follows this much text, so that the event loop gets the interpreter's lock without waiting for
a switch of threads, which takes 5 ms."""
_CLOSE_SECONDS = 10.0  # how long `close` waits for a file that is written slowly
_STALL_SECONDS = 2.0  # the same for one that takes nothing


class TraceFile:
    """One file for all traces, or numbered files with a fixed number of traces each.

    The array in the one file is closed by `close` or `reopen`; until then the file ends within the array.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._put_size = 0  # of all traces that were given to the thread
        self._written_size = 0  # of those that it has written; changed by the thread only
        self._dropped = 0  # traces since the last one that was kept
        self._is_omission_logged = False
        self._pending: list[CompleteTrace] = []
        self._pending_size = 0
        self._number = 0
        self._thread = _WriterThread()
        self._descriptor = -1  # of the one file, once its array has begun; used by the thread only
        self._problem = ""  # of the last write; used by the thread only
        self._lost = 0  # traces since the last write that succeeded; used by the thread only

    def add(self, trace: CompleteTrace) -> None:
        """Append one trace to the one file; it is written with the next batch."""
        self._pending.append(trace)
        self._pending_size += trace.size
        if len(self._pending) >= _BATCH or self._pending_size >= BATCH_SIZE:
            self.flush()

    def flush(self) -> None:
        """Let the pending traces be written to the one file."""
        if self._pending:
            traces, self._pending, self._pending_size = self._pending, [], 0
            self._put(traces, self._append)

    def write_numbered(self, traces: list[CompleteTrace]) -> None:
        """Let traces be written to the next numbered file."""
        if self._put(traces, partial(self._write_numbered, f"{self._path}.{self._number}")):
            self._number += 1

    def on_omitted(self, tensor: str) -> None:
        """A tensor is traced without its elements; only the first one is logged."""
        if not self._is_omission_logged:
            self._is_omission_logged = True
            logger.warning(
                "cannot trace the elements of tensor '%s': a trace has room for %d MiB of tensors; all for which there "
                "is no room are traced without their elements",
                tensor,
                TENSORS_SIZE >> 20,
            )

    def on_dropped(self, count: int = 1) -> None:
        """Count traces that are not written; the first of several is logged."""
        self._dropped += count
        if self._dropped == count:
            logger.warning(
                "cannot keep the trace of a request: it is too long, or %d MiB of traces wait for %s, and traces are "
                "dropped until it is written; trace fewer requests, or without TENSORS",
                _MAX_WAITING >> 20,
                self._path,
            )

    def _report_dropped(self) -> None:
        if self._dropped:
            logger.warning(
                "%d traces were dropped: they were too long, or %s was not written fast enough",
                self._dropped,
                self._path,
            )
            self._dropped = 0

    def _put(self, traces: list[CompleteTrace], write: Callable[[list[CompleteTrace]], None]) -> bool:
        """Let *write* write traces on the thread; False if there is no room for them."""
        size = sum(trace.size for trace in traces)
        if self._put_size - self._written_size + size > _MAX_WAITING:
            self.on_dropped(len(traces))
            return False
        self._report_dropped()
        self._put_size += size

        def run() -> None:
            write(traces)
            self._written_size += size

        self._thread.put(run)
        return True

    def reopen(self) -> None:
        """Close the array in a file that was renamed or removed meanwhile; the next trace begins a new file."""
        if self._thread.has_started:
            self._thread.put(self._reopen)

    def close(self) -> None:
        """Write the pending traces and close the array, unless the file takes nothing for two seconds."""
        self.flush()
        self._report_dropped()
        if not self._thread.has_started:
            return
        self._thread.put(self._end_for_good)
        if not self._thread.close():
            logger.error("cannot write the last traces to %s: it is not written fast enough; they are lost", self._path)

    # -- on the thread ------------------------------------------------------------------------------------------

    def _append(self, traces: list[CompleteTrace]) -> None:
        with self._failures_logged(self._path, len(traces)):
            begins = self._descriptor < 0
            if begins:
                self._descriptor = _create(self._path)
            size = os.fstat(self._descriptor).st_size
            try:
                self._write(self._descriptor, b"[" if begins else b",", render_traces(traces), b"")
            except OSError:
                with contextlib.suppress(OSError):  # a pipe
                    os.ftruncate(self._descriptor, size)  # what follows would continue within a trace
                if begins:
                    os.close(self._descriptor)
                    self._descriptor = -1
                    _remove(self._path)
                raise

    def _write_numbered(self, path: str, traces: list[CompleteTrace]) -> None:
        with self._failures_logged(path, len(traces)):
            descriptor = _create(path)
            try:
                self._write(descriptor, b"[", render_traces(traces), b"]")
            except OSError:
                _remove(path)
                raise
            finally:
                os.close(descriptor)

    def _reopen(self) -> None:
        if self._descriptor >= 0 and not self._is_in_place():
            self._end()

    def _end(self) -> None:
        if self._descriptor >= 0:
            with self._failures_logged(self._path):
                self._write(self._descriptor, b"", (), b"]")
            os.close(self._descriptor)
            self._descriptor = -1

    def _end_for_good(self) -> None:
        self._end()
        self._report_lost("the server ends")

    def _write(self, descriptor: int, start: bytes, pieces: Iterable[bytes], end: bytes) -> None:
        portion = bytearray(start)
        for piece in pieces:
            portion += piece
            if len(portion) >= _MAX_WRITE:
                _write_all(descriptor, portion, self._thread.on_progress)
                portion.clear()
            self._thread.pause(len(piece))
        portion += end
        _write_all(descriptor, portion, self._thread.on_progress)

    def _is_in_place(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._descriptor), Path(self._path).stat())
        except OSError:
            return False

    @contextlib.contextmanager
    def _failures_logged(self, path: str, count: int = 0) -> Iterator[None]:
        """Log an error unless it is that of the write before, and how many traces were lost once a write succeeds."""
        problem = ""
        try:
            yield
        except OSError as error:
            problem = error.strerror or str(error)
            self._lost += count
            if problem != self._problem:
                logger.error("failed creating trace file: %s: %s", path, problem)  # noqa: TRY400 - the traceback would say no more than the message
        else:
            if count:
                self._report_lost("traces are written again")
        self._problem = problem

    def _report_lost(self, now: str) -> None:
        if self._lost:
            logger.warning("lost %s: %s could not be written; %s", counted(self._lost, "trace"), self._path, now)
            self._lost = 0


class _WriterThread:
    """Runs calls one after the other on a thread, which starts with the first call and does not keep the process."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()  # None is the last one
        self._thread: threading.Thread | None = None
        self._is_closing = False
        self._progress = 0
        self._unpaused = 0

    @property
    def has_started(self) -> bool:
        return self._thread is not None

    def put(self, call: Callable[[], None]) -> None:
        self._calls.put(call)
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="naiad-traces", daemon=True)
            with contextlib.suppress(RuntimeError):  # no more threads are allowed: the next call may start one
                thread.start()
                self._thread = thread

    def close(self) -> bool:
        """Run the calls that are left; False if the last of them makes no progress, or takes too long."""
        self._is_closing = True
        self._calls.put(None)
        thread = self._thread
        if thread is None:
            return True
        deadline = time.monotonic() + _CLOSE_SECONDS
        progress, stalled = self._progress, time.monotonic() + _STALL_SECONDS
        while True:
            thread.join(0.05)
            if not thread.is_alive():
                return True
            now = time.monotonic()
            if self._progress != progress:
                progress, stalled = self._progress, now + _STALL_SECONDS
            if now >= min(deadline, stalled):
                return False

    def on_progress(self) -> None:
        self._progress += 1

    def pause(self, size: int) -> None:
        """Yield to other threads now and then while a call makes text; *size* is the number of new bytes."""
        self._unpaused += size
        if self._unpaused >= _PAUSE_BYTES and not self._is_closing:
            self._unpaused = 0
            time.sleep(_PAUSE_SECONDS)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            self.on_progress()
            del call  # it refers to traces


def _create(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)


def _remove(path: str) -> None:
    """Remove a file that has nothing; a pipe or a device stays."""
    with contextlib.suppress(OSError):
        if Path(path).is_file():
            os.unlink(path)  # noqa: PTH108 - as it was opened


def _write_all(descriptor: int, data: bytearray, on_progress: Callable[[], None]) -> None:
    with memoryview(data) as view:
        written = 0
        while written < len(view):
            written += os.write(descriptor, view[written:])
            on_progress()
