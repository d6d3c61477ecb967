"""Places for requests that each keep a thread busy: so many at a time, the others in the order they came."""

from __future__ import annotations

import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Callable, Deque, List, NamedTuple

LOOK_SECONDS = 0.05
"""How often those that wait are asked whether they are still wanted, while others run."""


class _Job(NamedTuple):
    size: int
    run: Callable[[], None]
    is_dropped: Callable[[], bool]
    """Asked while it waits: True once nobody wants it any more, and then never again."""


class Places:
    """So many places; a job takes one or several of them.

    What waits here can be dropped at once, unlike what waits in an engine that asks nobody while it does.
    """

    def __init__(self, count: int, name: str) -> None:
        self._count = self._free = count
        self._threads = ThreadPoolExecutor(count, name)
        self._lock = threading.Lock()
        self._is_empty = threading.Condition(self._lock)
        self._waiting: Deque[_Job] = deque()
        self._next_look = 0.0

    def submit(self, run: Callable[[], None], is_dropped: Callable[[], bool], size: int = 1) -> None:
        """Have *run*, which must not fail, called on a thread once *size* places are free."""
        with self._lock:
            self._waiting.append(_Job(min(size, self._count), run, is_dropped))
            self._start()

    def look(self) -> None:
        """Drop what waits and is not wanted any more; jobs that run are to call this, as often as they like."""
        if not self._waiting or time.monotonic() < self._next_look:
            return
        with self._lock:
            self._next_look = time.monotonic() + LOOK_SECONDS
            waiting: List[_Job] = list(self._waiting)
            self._waiting.clear()  # nobody starts what is being asked about
        kept = [job for job in waiting if not job.is_dropped()]
        with self._lock:
            self._waiting.extendleft(reversed(kept))
            self._start()

    def close(self) -> None:
        """Wait for all that was submitted."""
        with self._lock:
            self._is_empty.wait_for(lambda: not self._waiting and self._free == self._count)
        self._threads.shutdown()

    def _start(self) -> None:
        """Start what there is room for, in order: one that needs many places is not overtaken for ever."""
        while self._waiting and self._waiting[0].size <= self._free:
            job = self._waiting.popleft()
            self._free -= job.size
            self._threads.submit(self._run, job)
        if not self._waiting and self._free == self._count:
            self._is_empty.notify_all()

    def _run(self, job: _Job) -> None:
        try:
            job.run()
        finally:
            with self._lock:
                self._free += job.size
                self._start()
