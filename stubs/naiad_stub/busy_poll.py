"""When to ask again and again whether something has come, instead of sleeping until it does.

To wake a process that sleeps costs more than the whole way of a small request through the code: an idle processor has
to be woken with it, on virtual machines by way of the hypervisor. So where messages follow each other closely, both
sides of a channel give way to whoever wants the processor (`sched_yield`) and look again, as the Linux kernel does for
sockets (busy polling) and hypervisors for idle processors (halt polling). Where they do not, or where somebody else
does want the processor, waiting that way would be waste or worse, and they sleep.

Pure but for its memory: whoever waits tells what it sees and the time, in nanoseconds of one monotonic clock.
"""

from __future__ import annotations

_LATE_NS = 100_000
"""Who finds its message there after it had given way for longer than this would better have slept: others want the
processor, so it is not idle and has not to be woken, and who was asleep comes before those who gave way."""
_LONG_NS = 500_000
"""Nor does it pay to wait behind somebody who takes this long."""
_PRICE = 20
_MOST_CREDIT = 60
"""What one such misfortune costs, where each message that was found in good time earns one: less than one in twenty
is the noise of any machine, more is a machine that has no processor to spare."""
_FIRST_REST_NS = 100_000_000
_LONGEST_REST_NS = 10_000_000_000


class BusyPoll:
    """Whether to poll or to sleep, for one who waits.

    Attributes:
        is_on: Whether to poll now.
    """

    __slots__ = ("_credit", "_gap", "_last", "_limit", "_rest", "_resume", "is_on")

    def __init__(self, limit_us: int) -> None:
        """Poll only while something happens every *limit_us* microseconds; 0: never."""
        self.is_on = False
        self._limit = limit_us * 1000
        self._last = 0
        self._gap = self._limit
        self._rest = _FIRST_REST_NS
        self._resume = 0
        self._credit = _PRICE

    def beat(self, now: int) -> None:
        """Something happened: a message came, or went, or the work that one brought is done.

        Two short gaps in a row are asked for, so that a model that works for long between messages that follow each
        other closely is not waited for this way.
        """
        before, self._gap = self._gap, now - self._last
        self._last = now
        self.is_on = self._gap < self._limit and before < self._limit and now >= self._resume

    def gave_way(self, before: int, now: int, *, found: bool) -> None:
        """The processor was offered to others at *before* and is ours again; whether a message was *found* then."""
        if now - before > (_LATE_NS if found else _LONG_NS):
            self._credit -= _PRICE
            if self._credit <= 0:
                self.is_on = False
                self._credit = _PRICE
                self._resume = now + self._rest
                self._rest = min(4 * self._rest, _LONGEST_REST_NS)
        elif found:
            if self._credit < _MOST_CREDIT:
                self._credit += 1
            else:
                self._rest = _FIRST_REST_NS
        elif now - self._last > self._limit:
            self.is_on = False
