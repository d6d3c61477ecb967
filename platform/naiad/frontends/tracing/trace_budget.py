"""The memory of traces that are recorded or wait to be written, in all requests together.

The event loop takes bytes for what it records, and the thread that writes the file gives them back. If the file is
on a slow disk, or is a pipe that is not read, traces are dropped: memory stays bounded, and the event loop never waits.
"""

from __future__ import annotations

import logging
import threading

logger = logging.getLogger("naiad.trace")

_LIMIT = 64 << 20
"""Bytes: thousands of traces of times, or the tensors of eight requests with as many as a trace may have."""
TRACE_TENSORS_SIZE = 8 << 20
"""Bytes of tensors in the trace of one request. They are copied on the event loop, at about 0.4 ms for each MiB."""


class TraceCharge:
    """The bytes that one trace holds; freed by `release`, or with the object."""

    __slots__ = ("_budget", "size")

    def __init__(self, budget: TraceBudget) -> None:
        self.size = 0
        self._budget = budget

    def add(self, count: int) -> bool:
        """Count *count* bytes more; whether there is room for them."""
        if not self._budget.take(count):
            return False
        self.size += count
        return True

    def release(self) -> None:
        """The bytes are freed. Further calls do nothing."""
        size, self.size = self.size, 0
        if size:
            self._budget.give_back(size)

    def __del__(self) -> None:
        self.release()  # the trace of a request whose client disconnected never becomes complete


class TraceBudget:
    """Counts the bytes of traces, and the traces that were dropped for want of room. Safe for several threads."""

    def __init__(self, path: str, limit: int = _LIMIT) -> None:
        """An unused budget.

        Args:
            path: The trace file, for the log.
            limit: Bytes of all traces together.
        """
        # Reentrant: a charge may be collected, and so released, while the same thread holds the lock.
        self._lock = threading.RLock()
        self._path = path
        self._limit = limit
        self._in_use = 0
        self._dropped = 0
        self._is_omission_logged = False

    def open(self) -> TraceCharge:
        """A charge for a trace that begins."""
        return TraceCharge(self)

    def take(self, size: int) -> bool:
        """Count *size* bytes, if there is room for them."""
        with self._lock:
            if self._in_use + size > self._limit:
                return False
            self._in_use += size
            return True

    def give_back(self, size: int) -> None:
        """*size* bytes are free again."""
        with self._lock:
            self._in_use -= size

    def on_dropped(self) -> None:
        """Count a trace that is not written; the first one of several is logged."""
        with self._lock:
            self._dropped += 1
            is_first = self._dropped == 1
        if is_first:
            logger.warning(
                "cannot keep the trace of a request: %d MiB of traces wait for %s; traces are dropped until it is "
                "written; trace fewer requests, or without TENSORS",
                self._limit >> 20,
                self._path,
            )

    def on_omitted(self, tensor: str) -> None:
        """A tensor is traced without its elements; only the first one is logged."""
        if not self._is_omission_logged:
            self._is_omission_logged = True
            logger.warning(
                "cannot trace the elements of tensor '%s': a trace has room for %d MiB of tensors; all for which there "
                "is no room are traced without their elements",
                tensor,
                TRACE_TENSORS_SIZE >> 20,
            )

    def report_dropped(self) -> None:
        """Log how many traces were dropped since the last report, if any were. Called when traces were written."""
        with self._lock:
            dropped, self._dropped = self._dropped, 0
        if dropped:
            logger.warning("%d traces were dropped: %s was not written fast enough", dropped, self._path)
