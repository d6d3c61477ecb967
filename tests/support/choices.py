"""Values that bytes choose, so that a property draws once for a whole structure: Hypothesis needs most time for draws."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from hypothesis import strategies as st

T = TypeVar("T")


class Choices:
    """Choices made by *data* from its first byte to its last; after that always the first of the possible ones."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    @property
    def is_over(self) -> bool:
        """Whether all bytes are used up."""
        return self._position >= len(self._data)

    def take(self, size: int) -> bytes:
        """The next bytes; fewer at the end."""
        self._position += size
        return self._data[self._position - size : self._position]

    def number(self, size: int) -> int:
        """An unsigned integer of so many bytes."""
        return int.from_bytes(self.take(size), "little")

    def below(self, count: int) -> int:
        """An integer from 0 to *count* - 1, of at most 65536."""
        return self.number(1 if count <= 256 else 2) % count

    def of(self, options: Sequence[T]) -> T:
        """One of the options."""
        return options[self.below(len(options))]

    def bytes(self, limit: int) -> bytes:
        """At most *limit* bytes, at most 255."""
        return self.take(self.below(limit + 1))


def choices(size: int) -> st.SearchStrategy[Choices]:
    """Choices made by so many bytes."""
    return st.binary(min_size=size, max_size=size).map(Choices)
