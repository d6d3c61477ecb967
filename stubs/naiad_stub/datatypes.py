"""Numbers of datatypes as they travel in messages, and the size of what they number.

Apart from `tensor`, which `dlpack` must not import: tensors import `dlpack` where a model asks for it.
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
    """How many elements a tensor of that shape has."""
    count = 1
    for size in shape:
        count *= size
    return count
