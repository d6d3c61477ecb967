"""Responses that wait for clients that do not read, and which of these clients read too slowly. Pure logic.

`RequestBudget` counts their bytes together with those of requests. This table says who is to be disconnected when they
use too much. Every tick, it asks each client's `Reader` what the client has read. A client that would need more than a
minute for what waits for it, at the rate of the last two seconds, reads slowly. The slowest by that measure goes first.
A client of whom less was seen is not judged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import count, islice
from typing import Protocol

COUNTED_FROM = 1 << 16
"""Bytes from which a response counts. The limit on connections bounds what shorter ones use, and asking the transport
whether they were sent would cost every request."""
_SEEN_TICKS = 4
"""Ticks over which a rate is measured. Acknowledgements of a slow path arrive in bursts, so that a single tick of
half a second may have none."""
_ENTRIES = 4  # entries of earlier sizes that are kept for each response, before they are removed
_PATIENT_TICKS = 120  # ticks in which a client must be able to read what waits for it: a minute
_ASKED_AT_ONCE = 4096  # clients that are asked in one tick: each takes a microsecond, most of it for the kernel's queue


class Reader(Protocol):
    """A connection or stream whose client has something to read."""

    def read_count(self) -> int:
        """Bytes that the client has read since some fixed moment."""

    def disconnect(self) -> None:
        """End the connection or stream, and release what is counted for it: its client reads too slowly."""


@dataclass(slots=True, eq=False)
class UnreadResponse:
    """The bytes that are kept for one client, as `RequestBudget` counts them."""

    reader: Reader
    _resize: Callable[[UnreadResponse, int], None]
    size: int = 0  # how many
    checked: int = 0
    rate: float = -1.0  # bytes that the client reads in a tick; -1 while too little was seen
    _seen: int = 0
    _seen_at: int = -1

    def __repr__(self) -> str:
        return f"<UnreadResponse {self.size} bytes, {self.rate:g} read in a tick>"

    def resize(self, size: int) -> None:
        """*size* bytes are kept now. The reader may be disconnected before this returns, if there is no room."""
        self._resize(self, size)

    def release(self) -> None:
        """Nothing is kept any more. Further calls do nothing."""
        self._resize(self, 0)

    @property
    def is_slow(self) -> bool:
        return 0 <= self.rate * _PATIENT_TICKS < self.size

    def look(self, tick: int) -> None:
        elapsed = tick - self._seen_at
        if self._seen_at >= 0 and elapsed < _SEEN_TICKS:
            return
        seen = self.reader.read_count()
        if self._seen_at >= 0:
            self.rate = max(seen - self._seen, 0) / elapsed
        self._seen, self._seen_at = seen, tick


@dataclass(slots=True, eq=False)
class UnreadTable:
    """All unread responses."""

    size: int = 0
    _responses: dict[UnreadResponse, None] = field(default_factory=dict)  # those seen longest ago first
    _slow: dict[UnreadResponse, None] = field(default_factory=dict)  # those that were slow when they were last seen
    # A heap with the largest first, and entries of earlier sizes; the numbers keep responses from being compared.
    _by_size: list[tuple[int, int, UnreadResponse]] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=count)

    def __len__(self) -> int:
        return len(self._responses)

    @property
    def largest(self) -> int:
        """Bytes of the largest; 0 without any."""
        heap = self._by_size
        while heap and heap[0][2].size != -heap[0][0]:
            heappop(heap)
        return -heap[0][0] if heap else 0

    def put(self, response: UnreadResponse, size: int) -> None:
        """Note that a response keeps *size* bytes; 0 for none any more."""
        self.size += size - response.size
        response.size = size
        if not size:
            self._responses.pop(response, None)
            self._slow.pop(response, None)
            return
        self._responses[response] = None
        heappush(self._by_size, (-size, next(self._numbers), response))
        if len(self._by_size) > _ENTRIES * len(self._responses) + _ENTRIES:
            self._by_size = [(-each.size, next(self._numbers), each) for each in self._responses]
            heapify(self._by_size)

    def look(self, tick: int) -> None:
        are_many = len(self._responses) > _ASKED_AT_ONCE
        for response in tuple(islice(self._responses, _ASKED_AT_ONCE)):
            response.look(tick)
            if response.is_slow:
                self._slow[response] = None
            else:
                self._slow.pop(response, None)
            if are_many:  # the others come first in the next tick
                del self._responses[response]
                self._responses[response] = None

    def slow(self) -> list[UnreadResponse]:
        """Those whose clients were seen to read slowly, the slowest first, and of several the largest."""
        return sorted(self._slow, key=_order)

    def slowest(self) -> UnreadResponse | None:
        """The first of all in that order, in which clients of whom too little was seen are last; None of none."""
        return min(self._responses, key=_order, default=None)


def _order(response: UnreadResponse) -> tuple[bool, float, int]:
    return response.rate < 0, max(response.rate, 0) / response.size, -response.size
