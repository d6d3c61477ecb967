"""The backlog: sequences that wait for a slot, because all slots of all instances are occupied."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from itertools import count
from typing import Generic

from naiad.engine.scheduling.interface import Instance, Item
from naiad.engine.scheduling.sequences.slots import Sequence


class Backlog(Generic[Instance, Item]):
    """Sequences in the order of their arrival; some have a timeout."""

    def __init__(self) -> None:
        self._sequences: OrderedDict[Sequence[Instance, Item], None] = OrderedDict()
        self._expiries: list[tuple[int, int, Sequence[Instance, Item]]] = []
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._sequences)

    def push(self, sequence: Sequence[Instance, Item], expires_ns: int | None) -> None:
        """Add a sequence, or shorten its timeout to *expires_ns* (None: no timeout)."""
        self._sequences.setdefault(sequence)
        if expires_ns is not None and (sequence.expires_ns is None or expires_ns < sequence.expires_ns):
            sequence.expires_ns = expires_ns
            heapq.heappush(self._expiries, (expires_ns, next(self._numbers), sequence))
            self._remove_stale_expiries()

    def push_first(self, sequence: Sequence[Instance, Item]) -> None:
        """Add a sequence that lost its slot before all others; it has no timeout any more."""
        self._sequences[sequence] = None
        self._sequences.move_to_end(sequence, last=False)

    def pop(self) -> Sequence[Instance, Item]:
        sequence, _ = self._sequences.popitem(last=False)
        sequence.expires_ns = None
        return sequence

    def discard(self, sequence: Sequence[Instance, Item]) -> None:
        self._sequences.pop(sequence, None)
        sequence.expires_ns = None

    def expire(self, now_ns: int) -> list[Sequence[Instance, Item]]:
        expired: list[Sequence[Instance, Item]] = []
        while (expiry := self.next_expiry()) is not None and expiry <= now_ns:
            sequence = heapq.heappop(self._expiries)[2]
            self.discard(sequence)
            expired.append(sequence)
        return expired

    def _remove_stale_expiries(self) -> None:
        # Sequences that left the backlog stay on the heap until their timeout, which a client may set to years.
        if len(self._expiries) > 2 * len(self._sequences) + 64:
            self._expiries = [each for each in self._expiries if each[0] == each[2].expires_ns]
            heapq.heapify(self._expiries)

    def next_expiry(self) -> int | None:
        while self._expiries and self._expiries[0][0] != self._expiries[0][2].expires_ns:
            heapq.heappop(self._expiries)
        return self._expiries[0][0] if self._expiries else None
