"""A bounded memo: values that were derived once from a key, looked up by that key.

Clients and models repeat themselves: the same request head, the same JSON around other tensor bytes, the same layout of
a batch. What was derived from such bytes is kept under them. Host and guest use this one class, so that there is one
answer to the question of what happens when a memo is full.
"""

from typing import Dict, Hashable, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Memo(Dict[K, V]):
    """A dict with a limit on its entries. Inserting a new key into a full memo clears the memo first.

    Clearing everything is on purpose. An LRU order costs work on each hit, and hits are on the request path; here a hit
    is `dict.get` in C. Steady traffic has few distinct keys and never reaches the limit. Traffic that never repeats
    gets no hits under any order, and clearing bounds its memory.
    """

    __slots__ = ("limit",)

    def __init__(self, limit: int) -> None:
        """An empty memo.

        Args:
            limit: Number of entries it holds at most; at least 1.
        """
        super().__init__()
        self.limit = limit

    def __setitem__(self, key: K, value: V) -> None:
        """Keep *value* under *key*; in a full memo, a new key clears all other entries."""
        if len(self) >= self.limit and key not in self:
            self.clear()
        super().__setitem__(key, value)
