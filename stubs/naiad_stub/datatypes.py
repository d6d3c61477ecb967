"""Numbers of datatypes in messages, and the size of their elements.

A separate module, because `dlpack` needs it and must not import `tensor`, which imports `dlpack`.
"""

from __future__ import annotations

from typing import Tuple, Union

BYTES = 13
BF16 = 14
ITEM_SIZES = (0, 1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 4, 8, 0, 2)
"""Bytes of one element by number of datatype; 0 for BYTES, whose elements vary."""

Buffer = Union[bytes, memoryview]
Shape = Tuple[int, ...]


def element_count(shape: Shape) -> int:
    """The number of elements of a tensor with that shape."""
    count = 1
    for size in shape:
        count *= size
    return count
