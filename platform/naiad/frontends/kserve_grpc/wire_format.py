"""Tensor bytes in and out of protobuf messages without protobuf touching them.

Parsing a message copies every `bytes` field into protobuf's arena, and reading the field copies it again; building one
costs the same. The raw tensors are top-level `repeated bytes` fields, and the last ones of their messages, so they
can be cut out of a request and put behind a response by hand: the wire format allows fields in any order.
This module knows the wire format (https://protobuf.dev/programming-guides/encoding) and nothing of the messages.
"""

from __future__ import annotations

from collections.abc import Sequence

from naiad.protocol.inference import Buffer

_VARINT, _FIXED64, _LENGTH_DELIMITED, _FIXED32 = 0, 1, 2, 5


class FramingError(ValueError):
    """The bytes are not a protobuf message."""


def cut_out(message: bytes | bytearray, field: int) -> tuple[bytes, list[memoryview]]:
    """Take the length-delimited *field* out of *message*.

    Returns:
        The message without the field, and views of the field's values in *message*, in order.
    """
    wanted = field << 3 | _LENGTH_DELIMITED
    view = memoryview(message)
    values: list[memoryview] = []
    kept: list[memoryview] = []
    position, kept_from, size = 0, 0, len(message)
    while position < size:
        start = position
        tag, position = _varint(message, position)
        value_start, position = _skip(message, tag & 7, position)
        if position > size:
            raise FramingError(f"a field at byte {start} reaches beyond the message's {size} bytes")
        if tag == wanted:
            kept.append(view[kept_from:start])
            values.append(view[value_start:position])
            kept_from = position
    kept.append(view[kept_from:])
    return b"".join(kept), values


def with_field(message: bytes, field: int, values: Sequence[Buffer]) -> list[Buffer]:
    """The parts of *message* with *values* added as the length-delimited *field*; no value is copied."""
    pieces: list[Buffer] = [message]
    for value in values:
        size = size_of(value)
        pieces.append(field_head(field, size))
        if size:  # a view of zero bytes may have a shape that join refuses
            pieces.append(value)
    return pieces


def field_head(field: int, size: int) -> bytes:
    """What stands before the *size* bytes of a length-delimited field."""
    return encode_varint(field << 3 | _LENGTH_DELIMITED) + encode_varint(size)


def size_of(value: Buffer) -> int:
    """The bytes of a value."""
    return value.nbytes if isinstance(value, memoryview) else len(value)


def encode_varint(value: int) -> bytes:
    """The base-128 form of a number that is not negative."""
    if value < 0x80:  # noqa: PLR2004 - seven bits per byte
        return bytes((value,))
    encoded = bytearray()
    while value > 0x7F:  # noqa: PLR2004
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _varint(data: bytes | bytearray, position: int) -> tuple[int, int]:
    value = shift = 0
    try:
        while True:
            byte = data[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:  # noqa: PLR2004
                return value, position
            shift += 7
            if shift > 63:  # noqa: PLR2004 - ten bytes hold any 64-bit number
                raise FramingError(f"a number before byte {position} is longer than ten bytes")
    except IndexError:
        raise FramingError(f"the message ends within a number at byte {position}") from None


def _skip(data: bytes | bytearray, wire_type: int, position: int) -> tuple[int, int]:
    """Where the value at *position* begins and ends."""
    if wire_type == _LENGTH_DELIMITED:
        length, position = _varint(data, position)
        return position, position + length
    if wire_type == _VARINT:
        return position, _varint(data, position)[1]
    if wire_type == _FIXED64:
        return position, position + 8
    if wire_type == _FIXED32:
        return position, position + 4
    raise FramingError(f"wire type {wire_type} before byte {position} is not one that proto3 uses")
