"""The memory of request bodies, messages and unread responses, shared by all frontends: one budget, and kept buffers.

Timers run only while there is something to wait for: a body that the budget has stopped, or a buffer that is kept.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from naiad.core import heap
from naiad.frontends.body_buffers import BodyBuffers
from naiad.frontends.decompression import DecompressionThreads
from naiad.frontends.request_budget import TICK_SECONDS, RequestBudget

logger = logging.getLogger("naiad.connections")

_UNLIMITED = 1 << 62
_LOG_SECONDS = 60  # time between two lines of the log about dropped responses
_IN_USE = "requests in flight and unread responses use the {limit} bytes of --memory-limit-requests"
_DROPPED = {
    "full": f"cannot send a response: {_IN_USE}",
    "slow": f"disconnected a client that reads its response too slowly: {_IN_USE}",
    "time": "ended a call whose client reads its response too slowly (--client-timeout)",
}  # how the log says why a response was dropped
_TRIMMED_FROM = 32 << 20  # bytes in use from which the heap is trimmed after they are gone


class RequestMemory:
    """The memory of requests in one event loop."""

    def __init__(self, limit: int = _UNLIMITED, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Unused memory; *loop* runs the timers, and is None for tests, where nothing times out."""
        self._loop = loop
        self._is_ticking = False
        self.budget = RequestBudget(limit, self.start, self.start, self._on_dropped)
        self.buffers = BodyBuffers(self.start)
        self._ticking: list[Callable[[], bool]] = [self.budget.on_tick, self.buffers.on_tick, self._trim]
        self._peak = 0
        self._next_log = 0.0
        self.threads = DecompressionThreads()

    def start(self) -> None:
        if not self._is_ticking and self._loop is not None:
            self._is_ticking = True
            self._loop.call_later(TICK_SECONDS, self._on_timer)

    def _on_timer(self) -> None:
        self._is_ticking = False
        are_busy = [on_tick() for on_tick in self._ticking]  # each of them has to see the tick
        if any(are_busy):
            self.start()

    def _on_dropped(self, reason: str) -> None:
        now = time.monotonic()
        if now < self._next_log:  # clients decide how often responses are dropped
            return
        self._next_log = now + _LOG_SECONDS
        text = _DROPPED[reason].format(limit=self.budget.limit)
        logger.warning("%s (%d responses dropped so far)", text, self.budget.dropped.total())

    def _trim(self) -> bool:
        """Return free memory of the heap to the system after a peak; return whether one may have to be."""
        self._peak = max(self._peak, self.budget.take_peak())
        if self.budget.in_use:
            return True
        if self._peak >= _TRIMMED_FROM and not self.threads.is_closed:
            self.threads.executor.submit(heap.trim)
        self._peak = 0
        return False

    def add(self, on_tick: Callable[[], bool]) -> None:
        """Call *on_tick* with each tick after `start`, until nothing returns True any more."""
        self._ticking.append(on_tick)

    def close(self) -> None:
        self.threads.close()
