"""A queue in front of an engine with a fixed number of slots, for requests that each block a thread."""

from __future__ import annotations

import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Callable, Deque, List, NamedTuple

POLL_SECONDS = 0.05  # how often queued jobs are checked for cancellation, while others run


class _Job(NamedTuple):
    size: int
    run: Callable[[], None]
    cancel_if_requested: Callable[[], bool]
    """Called while the job is queued; returns True if the job was cancelled, and is not called again then."""


class SlotQueue:
    """Runs jobs on threads, as many at a time as there are slots; the others wait in order of submission.

    A job takes one slot or several. A queued job is cancelled at once; a request queued in the engine itself would not
    be, since llama.cpp checks for cancellation only while it generates.
    """

    def __init__(self, count: int, name: str) -> None:
        self._count = self._free = count
        self._threads = ThreadPoolExecutor(count, name)
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._queued: Deque[_Job] = deque()
        self._next_poll = 0.0

    def submit(self, run: Callable[[], None], cancel_if_requested: Callable[[], bool], size: int = 1) -> None:
        """Call *run*, which must not raise, on a thread once *size* slots are free."""
        with self._lock:
            self._queued.append(_Job(min(size, self._count), run, cancel_if_requested))
            self._start_jobs()

    def poll_cancelled(self) -> None:
        """Cancel queued jobs that are no longer needed. Running jobs may call this at any time."""
        if not self._queued or time.monotonic() < self._next_poll:
            return
        with self._lock:
            self._next_poll = time.monotonic() + POLL_SECONDS
            queued: List[_Job] = list(self._queued)
            self._queued.clear()  # so that no job starts while it is being cancelled
        kept = [job for job in queued if not job.cancel_if_requested()]
        with self._lock:
            self._queued.extendleft(reversed(kept))
            self._start_jobs()

    def close(self) -> None:
        with self._lock:
            self._idle.wait_for(lambda: not self._queued and self._free == self._count)
        self._threads.shutdown()

    def _start_jobs(self) -> None:
        """Start jobs in order while slots are free: none overtakes one that needs several slots, which would starve."""
        while self._queued and self._queued[0].size <= self._free:
            job = self._queued.popleft()
            self._free -= job.size
            self._threads.submit(self._run, job)
        if not self._queued and self._free == self._count:
            self._idle.notify_all()

    def _run(self, job: _Job) -> None:
        try:
            job.run()
        finally:
            with self._lock:
                self._free += job.size
                self._start_jobs()
