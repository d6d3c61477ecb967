"""Whether to poll for a message or to sleep until it arrives.

Waking a process that sleeps costs more than all code on the path of a small request: the idle processor has to be woken
first, on virtual machines by the hypervisor. While messages follow each other closely, both sides of a channel
therefore poll: they yield the processor (`sched_yield`) and look again. The Linux kernel does the same for sockets
(busy polling), and hypervisors do for idle processors (halt polling). Polling is a loss where messages are rare, and
where another process needs the processor; then both sides sleep.

The decision is made from what polling has brought so far, in two ways:

- `on_yield` measures each yield: one that took long means that another process had work to do. Such a yield costs
  credit, a message found in time earns some. Without credit, polling pauses.
- `on_activity` measures the gaps between messages. From time to time, the caller sleeps for a few messages instead, to
  compare. If these follow each other more closely than those before, polling takes the processor from their sender, and
  pauses. Yields do not show that: the process that yields may be the next one to run.

A pause lasts 0.1 s, the next one 0.4 s and so on, up to 10 s, until a comparison is in favour of polling.

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
_COMPARED = 32
"""So many messages are slept for in a comparison."""
_FIRST_INTERVAL = 256
_LONGEST_INTERVAL = 4096
"""After so many messages that were polled for comes a comparison: some 20 ms at first, then some 300 ms."""
_BETTER = 0.9
"""Sleeping is better when the mean gap is below this part of that with polling; less is noise."""
_SHIFT = 7
"""The mean gap with polling is that of the last 2**7 messages: a process that is preempted once must not decide."""


class BusyPoll:
    """Whether to poll or to sleep, for one thread or event loop that waits.

    Attributes:
        is_on: Whether to poll now.
    """

    __slots__ = (
        "_awaited",
        "_credit",
        "_gap",
        "_interval",
        "_last",
        "_left",
        "_limit",
        "_mean",
        "_pause",
        "_resume",
        "_sleeping_sum",
        "is_on",
    )

    def __init__(self, limit_us: int) -> None:
        """Poll only while there is activity every *limit_us* microseconds; 0: never."""
        self.is_on = False
        self._limit = limit_us * 1000
        self._last = 0
        self._gap = self._limit
        self._pause = _FIRST_PAUSE_NS
        self._resume = 0
        self._credit = _LOSS
        self._mean = 0  # gap while polling, in nanoseconds
        self._interval = self._left = _FIRST_INTERVAL  # messages until the next comparison
        self._awaited = 0  # messages of a comparison that are still to come
        self._sleeping_sum = 0  # the sum of their gaps so far

    def on_activity(self, now: int) -> None:
        """A message arrived or was sent, or the work that it caused is done.

        Polling needs two short gaps in a row. A pair of close messages with long work after it must not turn it on.
        """
        before, gap, limit = self._gap, now - self._last, self._limit
        self._gap = gap
        self._last = now
        if self._awaited:
            self._sleeping_sum += min(limit, gap)
            self._awaited -= 1
            if not self._awaited:
                self._compare(now)
            return
        if self.is_on:
            self._mean += (min(limit, gap) - self._mean) >> _SHIFT
            self._left -= 1
            if not self._left:
                self._awaited, self._sleeping_sum = _COMPARED, 0
                self.is_on = False
                return
        self.is_on = gap < limit and before < limit and now >= self._resume

    def _compare(self, now: int) -> None:
        """The messages that were slept for have come."""
        if self._sleeping_sum < self._mean * _COMPARED * _BETTER:
            self._interval = _FIRST_INTERVAL
            self._begin_pause(now)
        else:
            self._interval = min(2 * self._interval, _LONGEST_INTERVAL)
            self._pause = max(self._pause // 4, _FIRST_PAUSE_NS)
        self._left = self._interval

    def _begin_pause(self, now: int) -> None:
        self.is_on = False
        self._credit = _LOSS
        self._resume = now + self._pause
        self._pause = min(4 * self._pause, _LONGEST_PAUSE_NS)

    def on_yield(self, before: int, now: int, *, found: bool) -> None:
        """The processor was yielded at *before* and is ours again; *found* says whether a message had arrived."""
        if now - before > (_LATE_FOUND_NS if found else _LATE_EMPTY_NS):
            self._credit -= _LOSS
            if self._credit <= 0:
                self._begin_pause(now)
        elif found:
            if self._credit < _MAX_CREDIT:
                self._credit += 1
        elif now - self._last > self._limit:
            self.is_on = False
