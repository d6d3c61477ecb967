"""An event loop that looks again instead of sleeping while messages between host and guests follow each other closely.

Why that pays, and when it does not: `naiad_stub.busy_poll`. The loop is kept turning by a callback that does nothing
but give way to others: all that the loop watches is looked at in each turn, clients' connections as well as guests'.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from pathlib import Path, PurePosixPath
from weakref import WeakKeyDictionary

from naiad_stub.busy_poll import BusyPoll

BUSY_POLL_US = 400
"""Gaps between messages, in microseconds, up to which polling pays: a few times what a small request takes."""

_CGROUPS = Path("/sys/fs/cgroup")


class LoopPoller:
    """Keeps one loop turning.

    Attributes:
        is_turning: Whether it does so now.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, limit_us: int) -> None:
        """Keep *loop* turning while there is a beat every *limit_us* microseconds; 0: never."""
        self._loop = loop
        self._poll = BusyPoll(limit_us)
        self.is_turning = False
        self._is_fresh = False  # there was a beat since the last turn
        self._away = (0, 0)  # when the last turn gave way, and came back

    def beat(self) -> None:
        """A message came from a guest, or goes to one."""
        poll = self._poll
        poll.beat(time.monotonic_ns())
        self._is_fresh = True
        if poll.is_on and not self.is_turning:
            self.is_turning = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        poll, is_fresh = self._poll, self._is_fresh
        self._is_fresh = False
        if self._away[1]:
            poll.gave_way(*self._away, found=is_fresh)
            self._away = (0, 0)
        if not is_fresh and poll.is_on:  # who has work to do does not give way
            before = time.monotonic_ns()
            os.sched_yield()
            self._away = (before, time.monotonic_ns())
        if poll.is_on:
            self._loop.call_soon(self._turn)
        else:
            self.is_turning = False


_pulses: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopPoller] = WeakKeyDictionary()


def loop_poller_of(loop: asyncio.AbstractEventLoop, limit_us: int) -> LoopPoller:
    """The pulse of *loop*, one for all guests whose channels it watches; made with *limit_us* where there is none."""
    pulse = _pulses.get(loop)
    if pulse is None:
        pulse = _pulses[loop] = LoopPoller(loop, limit_us)
    return pulse


def default_busy_poll_us() -> int:
    """How long to poll on this machine unless the user says so.

    Not at all with one processor alone, nor where time on them is rationed (a container's limit): there a process that
    polls would be stopped for the rest of each period.
    """
    if not hasattr(os, "sched_yield") or _usable_processors() < 2 or is_rationed(_CGROUPS, _own_cgroup()):  # noqa: PLR2004 - one for either side
        return 0
    return BUSY_POLL_US


def _usable_processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _own_cgroup() -> PurePosixPath:
    """The control group of this process, as /proc tells (cgroups(7)); the root where there is none."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            if line.startswith("0::"):
                return PurePosixPath(line[3:])
    return PurePosixPath("/")


def is_rationed(root: Path, group: PurePosixPath) -> bool:
    """Whether a quota of processor time is set for a control group or one above it, in version 2 or 1 of cgroups."""
    for place in (group, *group.parents):
        with contextlib.suppress(OSError):
            if not (root / place.relative_to("/") / "cpu.max").read_text().startswith("max"):
                return True
    with contextlib.suppress(OSError):
        return int((root / "cpu" / "cpu.cfs_quota_us").read_text()) > 0
    return False
