"""The layout of tensors in one block of a segment: packed and unpacked once, then recognised by its bytes.

Offsets count from the start of the block. So a client that repeats a request, and a model that returns the same shapes,
produce the same bytes each time. Both sides keep what they unpacked in a memo by those bytes.

Shared by host and guest; imports `wire` alone.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple, Optional, Tuple

from naiad_stub import wire

_HEAD = struct.Struct("<HH")  # tensors, requested outputs (ALL_OUTPUTS: all)
_LENGTH = struct.Struct("<H")
_DIMENSIONS_AT = 3

KEPT = 1024
"""Layouts that a memo keeps: a limit for models whose shapes never repeat."""


class Place(NamedTuple):
    """One tensor: position of its name (or OTHER_NAME and the name), datatype, shape, offset, and number of bytes."""

    position: int
    name: str
    code: int
    shape: Tuple[int, ...]
    offset: int
    size: int


def pack(places: Sequence[Place], requested: Optional[Sequence[int]] = None) -> bytes:
    """The bytes of a layout and, in a request, of the positions of the requested outputs (None: all)."""
    parts = [_HEAD.pack(len(places), wire.ALL_OUTPUTS if requested is None else len(requested))]
    for number, name, code, shape, offset, size in places:
        dimensions = len(shape)
        parts.append(wire.TENSOR[dimensions].pack(number, code, dimensions, offset, size, *shape))
        if number == wire.OTHER_NAME:
            encoded = name.encode("utf-8", "replace")
            if len(encoded) > wire.MAX_ID_BYTES:  # cut where a character ends: the other side decodes it
                encoded = encoded[: wire.MAX_ID_BYTES].decode("utf-8", "ignore").encode()
            parts.append(_LENGTH.pack(len(encoded)) + encoded)
    if requested:
        parts.append(struct.pack(f"<{len(requested)}H", *requested))
    return b"".join(parts)


def unpack(data: bytes) -> tuple[list[Place], Optional[Tuple[int, ...]]]:
    """The tensors of a layout and the positions of the requested outputs.

    Raises:
        wire.WireError: If *data* is not what `pack` returns.
    """
    try:
        count, requested_count = _HEAD.unpack_from(data)
        position = _HEAD.size
        places = []
        for _ in range(count):
            packer = wire.TENSOR[data[position + _DIMENSIONS_AT]]
            number, code, _, offset, size, *shape = packer.unpack_from(data, position)
            position += packer.size
            name = ""
            if number == wire.OTHER_NAME:
                (length,) = _LENGTH.unpack_from(data, position)
                name = str(data[position + 2 : position + 2 + length], "utf-8")
                position += 2 + length
            places.append(Place(number, name, code, tuple(shape), offset, size))
        requested = None
        if requested_count != wire.ALL_OUTPUTS:
            requested = struct.unpack_from(f"<{requested_count}H", data, position)
            position += 2 * requested_count
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise wire.WireError(f"a layout is malformed: {error}") from error
    if position != len(data):
        raise wire.WireError(f"a layout of {len(data)} bytes ends after {position}")
    return places, requested
