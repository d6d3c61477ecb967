"""Sequences that wait for a slot."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from itertools import count
from typing import Generic

from naiad.scheduling.interface import Instance, Item
from naiad.scheduling.sequences.slots import Sequence

__all__ = ["Backlog"]


class Backlog(Generic[Instance, Item]):
    """Sequences in the order they came, some of them for a limited time."""

    def __init__(self) -> None:
        self._sequences: OrderedDict[Sequence[Instance, Item], None] = OrderedDict()
        self._expiries: list[tuple[int, int, Sequence[Instance, Item]]] = []
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._sequences)

    def push(self, sequence: Sequence[Instance, Item], expires_ns: int) -> None:
        """Let a sequence wait, or wait no longer than *expires_ns* (0: any time)."""
        self._sequences.setdefault(sequence)
        if expires_ns and not 0 < sequence.expires_ns <= expires_ns:
            sequence.expires_ns = expires_ns
            heapq.heappush(self._expiries, (expires_ns, next(self._numbers), sequence))
            self._sweep()

    def push_first(self, sequence: Sequence[Instance, Item]) -> None:
        """Let a sequence that had a slot wait before all others, without limit."""
        sequence.expires_ns = 0
        self._sequences[sequence] = None
        self._sequences.move_to_end(sequence, last=False)

    def pop(self) -> Sequence[Instance, Item]:
        """Take the first out."""
        sequence, _ = self._sequences.popitem(last=False)
        sequence.expires_ns = 0
        return sequence

    def discard(self, sequence: Sequence[Instance, Item]) -> None:
        """Take one out, if it is there."""
        self._sequences.pop(sequence, None)
        sequence.expires_ns = 0

    def expire(self, now_ns: int) -> list[Sequence[Instance, Item]]:
        """Take out those that waited too long."""
        expired: list[Sequence[Instance, Item]] = []
        while (expiry := self.next_expiry()) is not None and expiry <= now_ns:
            sequence = heapq.heappop(self._expiries)[2]
            self.discard(sequence)
            expired.append(sequence)
        return expired

    def _sweep(self) -> None:
        # What left in time stays on the heap till then, which a client may have made long.
        if len(self._expiries) > 2 * len(self._sequences) + 64:
            self._expiries = [each for each in self._expiries if each[0] == each[2].expires_ns]
            heapq.heapify(self._expiries)

    def next_expiry(self) -> int | None:
        """When one will have waited too long."""
        while self._expiries and self._expiries[0][0] != self._expiries[0][2].expires_ns:
            heapq.heappop(self._expiries)
        return self._expiries[0][0] if self._expiries else None
