"""The tensor datatypes of KServe v2 and Triton, with their three spellings."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from functools import cache
from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np


class Datatype(enum.IntEnum):
    """A tensor datatype. Its value is the number in ModelConfig's `DataType`; messages to guests use it, too."""

    INVALID = 0
    BOOL = 1
    UINT8 = 2
    UINT16 = 3
    UINT32 = 4
    UINT64 = 5
    INT8 = 6
    INT16 = 7
    INT32 = 8
    INT64 = 9
    FP16 = 10
    FP32 = 11
    FP64 = 12
    BYTES = 13
    BF16 = 14

    @property
    def config_name(self) -> str:
        """The name in config.pbtxt, such as `TYPE_FP32`; BYTES is `TYPE_STRING` there."""
        return "TYPE_STRING" if self is Datatype.BYTES else f"TYPE_{self.name}"

    @property
    def byte_size(self) -> int:
        """Bytes of one element; 0 for BYTES, whose elements have any length, and for INVALID."""
        return BYTE_SIZES[self]

    @property
    def numpy(self) -> np.dtype[np.generic] | None:
        """The numpy type of the elements; None for BYTES and for BF16, which numpy lacks."""
        return _numpy_type(self)


BYTE_SIZES: tuple[int, ...] = (0, 1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 4, 8, 0, 2)
"""Bytes of one element by number of the datatype. A tuple: the request path looks sizes up for each tensor."""

_NUMPY_NAMES = ("", "?", "<u1", "<u2", "<u4", "<u8", "<i1", "<i2", "<i4", "<i8", "<f2", "<f4", "<f8", "", "")

BY_NAME: dict[str, Datatype] = {d.name: d for d in Datatype if d is not Datatype.INVALID}
"""Datatypes by the name KServe v2 uses on the wire, such as `FP32` and `BYTES`."""


@cache
def _numpy_type(datatype: Datatype) -> np.dtype[np.generic] | None:
    # Imported here: numpy takes as long to import as a guest to start, and a starting server overlaps the two.
    import numpy as np

    return np.dtype(_NUMPY_NAMES[datatype]) if _NUMPY_NAMES[datatype] else None


def zeros(datatype: Datatype, shape: Iterable[int]) -> bytes:
    """The bytes of a tensor of zeros, or of empty strings."""
    return bytes(prod(shape) * (BYTE_SIZES[datatype] or 4))  # an empty string is its length alone
