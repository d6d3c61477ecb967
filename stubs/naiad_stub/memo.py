"""A bounded memo: values that were derived once from a key, looked up by that key.

Clients and models repeat themselves: the same request head, the same JSON around other tensor bytes, the same layout of
a batch. What was derived from such bytes is kept under them. Host and guest use this one class, so that there is one
answer to the question of what happens when a memo is full.
"""

from typing import Any, Dict, Hashable, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_CAPACITY = 1 << 20
_LARGEST_PART = 16
"""An entry of more than this part of a memo's bytes is not kept: a few of them would clear the memo again and again."""


class Memo(Dict[K, V]):
    """A dict with limits on its entries and on their bytes. A new key clears a memo that has no room for it.

    Clearing everything is on purpose. An LRU order costs work on each hit, and hits are on the request path; here a hit
    is `dict.get` in C. Steady traffic has few distinct keys and never reaches the limits. Traffic that never repeats
    gets no hits under any order, and clearing bounds its memory.

    Attributes:
        limit: Number of entries it holds at most.
        capacity: Bytes that they have at most, as `size_of` counts them.
        used: Bytes that they have.
    """

    __slots__ = ("capacity", "limit", "used")

    def __init__(self, limit: int, capacity: int = _CAPACITY) -> None:
        """An empty memo.

        Args:
            limit: Number of entries it holds at most; at least 1.
            capacity: Bytes that they have at most. Keys may be long: clients choose paths, names and heads.
        """
        super().__init__()
        self.limit = limit
        self.capacity = capacity
        self.used = 0

    def __setitem__(self, key: K, value: V) -> None:
        """Keep *value* under *key*, unless they are too long; a new key clears a memo without room for it."""
        size = size_of(key) + size_of(value)
        if key in self:
            self.used -= size_of(key) + size_of(self[key])
            super().__delitem__(key)
        if size * _LARGEST_PART > self.capacity:
            return
        if len(self) >= self.limit or self.used + size > self.capacity:
            self.clear()
        self.used += size
        super().__setitem__(key, value)

    def clear(self) -> None:
        """Drop all entries."""
        super().clear()
        self.used = 0


def size_of(thing: Any) -> int:
    """Bytes of texts and buffers in a value, also in tuples and lists; 0 for anything else.

    Entries whose values are objects made of the key, such as parsed heads, count by their keys.
    """
    if isinstance(thing, (bytes, bytearray, str)):
        return len(thing)
    if isinstance(thing, (tuple, list, frozenset)):
        return sum(map(size_of, thing))
    return 0
