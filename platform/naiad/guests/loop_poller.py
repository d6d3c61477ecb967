"""Makes an event loop poll instead of sleeping while messages between host and guests follow each other closely.

`naiad_stub.busy_poll` explains why, and decides when. The loop polls because a callback that yields the processor
schedules itself for each next turn: with a callback due, the loop does not sleep in its selector. Every turn looks at
all sockets, those of clients as well as those of guests.
"""

from __future__ import annotations

import asyncio
import os
from weakref import WeakKeyDictionary, ref

from naiad_stub.busy_poll import BusyPoll
from naiad_stub.process_limits import processor_quota, usable_processors

from naiad.core import clock

# Gaps between messages, in microseconds, up to which polling pays: a few times what a small request takes.
BUSY_POLL_US = 400


class LoopPoller:
    """Makes one loop poll."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limit_us: int) -> None:
        """Poll on *loop* while there is a message every *limit_us* microseconds; 0: never."""
        self._loop = ref(loop)  # the pollers of all loops are kept by their loops, which would keep each other
        self._poll = BusyPoll(limit_us)
        self.is_turning = False
        self._is_fresh = False  # there was a message since the last turn
        self._away = (0, 0)  # when the last turn yielded the processor, and had it back

    def on_activity(self) -> None:
        poll = self._poll
        poll.on_activity(clock.monotonic_ns())
        self._is_fresh = True
        if poll.is_on and not self.is_turning:
            self.is_turning = True
            self._call_soon()

    def _turn(self) -> None:
        poll, is_fresh = self._poll, self._is_fresh
        self._is_fresh = False
        if self._away[1]:
            poll.on_yield(*self._away, found=is_fresh)
            self._away = (0, 0)
        if not is_fresh and poll.is_on:  # a loop with work to do does not yield
            before = clock.monotonic_ns()
            os.sched_yield()
            self._away = (before, clock.monotonic_ns())
        if poll.is_on:
            self._call_soon()
        else:
            self.is_turning = False

    def _call_soon(self) -> None:
        loop = self._loop()
        assert loop is not None, "it is the one that calls this"
        loop.call_soon(self._turn)


_pollers: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopPoller] = WeakKeyDictionary()


def loop_poller_of(loop: asyncio.AbstractEventLoop, limit_us: int) -> LoopPoller:
    """The poller of *loop*, shared by all guests on it; created with *limit_us* if it is missing."""
    poller = _pollers.get(loop)
    if poller is None:
        poller = _pollers[loop] = LoopPoller(loop, limit_us)
    return poller


def default_busy_poll_us() -> int:
    """The default of `--busy-poll-us` on this machine.

    It is 0 with a single processor, and where processor time has a quota (a container's limit): there the kernel would
    stop a polling process for the rest of each period.
    """
    if not hasattr(os, "sched_yield") or usable_processors() < 2 or processor_quota() is not None:  # noqa: PLR2004 - one for each side
        return 0
    return BUSY_POLL_US
