"""Values up to so many bytes together; those that were used longest ago make room for new ones."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

__all__ = ["ByteLru"]

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class ByteLru(Generic[K, V]):
    """A store that never holds more than *capacity* bytes, as its values' sizes were told.

    Attributes:
        capacity: How many bytes it may hold.
        used: How many it holds.
        evictions: How many values had to make room so far.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.used = 0
        self.evictions = 0
        self._values: OrderedDict[K, tuple[V, int]] = OrderedDict()  # the one used longest ago first

    def __repr__(self) -> str:
        return f"<ByteLru {len(self)} values, {self.used} of {self.capacity} bytes>"

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: K) -> V | None:
        """The value of *key*, which counts as a use of it; None if it is not there (any more)."""
        found = self._values.get(key)
        if found is None:
            return None
        self._values.move_to_end(key)
        return found[0]

    def put(self, key: K, value: V, size: int) -> bool:
        """Keep *value*, in the place of what *key* had before; False where it could not even stand alone."""
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
        """Drop all values whose key is unwanted; they count as no evictions."""
        for key in [key for key in self._values if is_unwanted(key)]:
            self._drop(key)

    def _drop(self, key: K) -> None:
        found = self._values.pop(key, None)
        if found is not None:
            self.used -= found[1]
