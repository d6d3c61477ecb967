"""Time limits of connections, checked by one timer for all connections of a listener.

The request path sets no timer and reads no clock. Every few seconds, a sweep compares what each connection does with
what it did at the last sweep: its phase, and a number that changes with progress in that phase. A connection without
progress for longer than its phase may take is ended. So a limit is exceeded by up to two sweeps before it takes effect.

A client that is sent something must read it at a rate (`ReadingWatch`): what waits for it is memory of the server, and
a few bytes now and then would keep that for days.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from naiad.core.turns import LoopTurns

LEAST_RATE = 2048
"""Bytes a second that a client reads at least, on average over the time that it has. A telephone with the slowest kind
of data, GPRS, has twice as much."""
_SWEEPS_PER_LIMIT = 10
_MAX_SWEEP_SECONDS = 5.0
_MIN_SWEEP_SECONDS = 0.05
_SLICE = 256  # connections that are checked in one piece, which takes less than a millisecond

C = TypeVar("C")


def sweep_seconds(*limits: float) -> float:
    """Seconds between checks of connections with these time limits (0: no limit); 0 without any limit."""
    shortest = min((limit for limit in limits if limit), default=0)
    return min(max(shortest / _SWEEPS_PER_LIMIT, _MIN_SWEEP_SECONDS), _MAX_SWEEP_SECONDS) if shortest else 0


@dataclass(slots=True, eq=False)
class ProgressWatch:
    """How long a connection has been in its phase without progress, as far as the sweeps have seen."""

    _phase: object = None
    _progress: int = -1
    _since: float = 0.0

    def elapsed(self, phase: object, progress: int, now: float) -> float:
        """Seconds since *phase* or *progress*, a number that changes with progress in it, were first as they are."""
        if phase != self._phase or progress != self._progress:
            self._phase, self._progress, self._since = phase, progress, now
        return now - self._since


@dataclass(slots=True, eq=False)
class ReadingWatch:
    """Whether a client reads what is sent to it at `LEAST_RATE`, or all of it, as far as the sweeps have seen."""

    _since: float = -1.0
    _read: int = 0
    _required: int = 0

    def stop(self) -> None:
        """Nothing waits for the client."""
        self._since = -1.0

    def is_too_slow(self, read: int, waiting: int, now: float, limit: float) -> bool:
        """Whether the client, which has read *read* bytes, has read too little in a period of *limit* seconds.

        A period ends early, and the next begins, when the client has read what it must in one.
        """
        if self._since < 0 or read - self._read >= self._required:
            self._since, self._read = now, read
            self._required = min(int(LEAST_RATE * limit), waiting)
        return now - self._since >= limit


@dataclass(slots=True, eq=False)
class TimeoutSweep(Generic[C]):
    """Checks the connections of a listener now and then, while there are any."""

    _loop: asyncio.AbstractEventLoop
    _turns: LoopTurns  # resumes a sweep of many connections, so that it does not keep the loop
    _connections: Iterable[C]
    _check: Callable[[C, float], None]  # ends a connection beyond a limit at this time of the loop
    _seconds: float  # time between two sweeps; 0 to do nothing
    _timer: asyncio.TimerHandle | None = None
    _unchecked: list[C] = field(default_factory=list)

    def start(self) -> None:
        """Check the connections until `stop`. To be called after a connection was added to them.

        A call before that may have no effect: a sweep that finds no connections is the last one.
        """
        if self._timer is None and self._seconds:
            self._timer = self._loop.call_later(self._seconds, self._sweep)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._unchecked.clear()

    def _sweep(self) -> None:
        self._timer = None
        if self._unchecked:  # the last sweep still takes its turns
            self.start()
            return
        self._unchecked = list(self._connections)
        if self._unchecked:  # without connections, no timer wakes an idle server
            self.start()
            self._check_slice()

    def _check_slice(self) -> None:
        now = self._loop.time()
        for connection in self._unchecked[:_SLICE]:
            self._check(connection, now)
        del self._unchecked[:_SLICE]
        if self._unchecked:
            self._turns.defer(self._check_slice)
