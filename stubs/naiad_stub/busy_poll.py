"""Whether to poll for a message or to sleep until it arrives.

Waking a process that sleeps costs more than all code on the path of a small request: the idle processor has to be woken
first, on virtual machines by the hypervisor. While messages follow each other closely, both sides of a channel
therefore poll: they yield the processor (`sched_yield`) and look again. The Linux kernel does the same for sockets
(busy polling), and hypervisors do for idle processors (halt polling). Polling is a loss where messages are rare, and
where another process needs the processor; then both sides sleep.

The decision is made from what polling has brought so far. `on_activity` measures the gaps between messages. `on_yield`
measures each yield: one that took long means that another process had work to do. Such a yield costs credit, a message
found in time earns some; without credit, polling pauses for 0.1 s, then for 0.4 s and so on, up to 10 s.

The class is pure: the caller passes the time, in nanoseconds of one monotonic clock.
"""

from __future__ import annotations

_LATE_FOUND_NS = 100_000
"""A yield that found a message but took longer than this is a loss: others need the processor, so it was awake, and the
scheduler prefers a process that was asleep to one that yielded."""
_LATE_EMPTY_NS = 500_000
"""A yield that found no message and took longer than this is a loss, too."""
_LOSS = 20
_MAX_CREDIT = 60
"""Credit that one loss costs; each message found in time earns 1. One loss in twenty is noise on any machine, more
means that it has no processor to spare."""
_FIRST_PAUSE_NS = 100_000_000
_LONGEST_PAUSE_NS = 10_000_000_000


class BusyPoll:
    """Whether to poll or to sleep, for one thread or event loop that waits.

    Attributes:
        is_on: Whether to poll now.
    """

    __slots__ = ("_credit", "_gap", "_last", "_limit", "_pause", "_resume", "is_on")

    def __init__(self, limit_us: int) -> None:
        """Poll only while there is activity every *limit_us* microseconds; 0: never."""
        self.is_on = False
        self._limit = limit_us * 1000
        self._last = 0
        self._gap = self._limit
        self._pause = _FIRST_PAUSE_NS
        self._resume = 0
        self._credit = _LOSS

    def on_activity(self, now: int) -> None:
        """A message arrived or was sent, or the work that it caused is done.

        Polling needs two short gaps in a row. A pair of close messages with long work after it must not turn it on.
        """
        before, self._gap = self._gap, now - self._last
        self._last = now
        self.is_on = self._gap < self._limit and before < self._limit and now >= self._resume

    def on_yield(self, before: int, now: int, *, found: bool) -> None:
        """The processor was yielded at *before* and is ours again; *found* says whether a message had arrived."""
        if now - before > (_LATE_FOUND_NS if found else _LATE_EMPTY_NS):
            self._credit -= _LOSS
            if self._credit <= 0:
                self.is_on = False
                self._credit = _LOSS
                self._resume = now + self._pause
                self._pause = min(4 * self._pause, _LONGEST_PAUSE_NS)
        elif found:
            if self._credit < _MAX_CREDIT:
                self._credit += 1
            else:
                self._pause = _FIRST_PAUSE_NS
        elif now - self._last > self._limit:
            self.is_on = False
