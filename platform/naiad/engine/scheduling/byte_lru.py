"""A cache of limited size in bytes that evicts the least recently used values."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class ByteLru(Generic[K, V]):
    """A cache whose values have at most *capacity* bytes together; the caller passes the size of each value."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.used = 0
        self.evictions = 0
        self._values: OrderedDict[K, tuple[V, int]] = OrderedDict()  # least recently used first

    def __repr__(self) -> str:
        return f"<ByteLru {len(self)} values, {self.used} of {self.capacity} bytes>"

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: K) -> V | None:
        found = self._values.get(key)
        if found is None:
            return None
        self._values.move_to_end(key)
        return found[0]

    def put(self, key: K, value: V, size: int) -> bool:
        """Store *value*, replacing that of *key*. Return False if *size* exceeds the capacity."""
        self._drop(key)
        if size > self.capacity:
            return False
        while self.used + size > self.capacity:
            _, (_, freed) = self._values.popitem(last=False)
            self.used -= freed
            self.evictions += 1
        self._values[key] = (value, size)
        self.used += size
        return True

    def discard(self, is_unwanted: Callable[[K], bool]) -> None:
        """Remove all values with an unwanted key; they do not count as evictions."""
        for key in [key for key in self._values if is_unwanted(key)]:
            self._drop(key)

    def _drop(self, key: K) -> None:
        found = self._values.pop(key, None)
        if found is not None:
            self.used -= found[1]
