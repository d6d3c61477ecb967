"""Tensors in and out of protobuf messages without a copy by protobuf.

Parsing a message copies each `bytes` field into protobuf's arena, and reading the field copies it again; building a
message costs the same. Raw tensors are top-level `repeated bytes` fields. They can be cut out of a request before it is
parsed, and appended to a response after it is serialized, since the wire format allows fields in any order.
This module knows the wire format (https://protobuf.dev/programming-guides/encoding) but none of the messages.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from naiad.frontends.http1.compression import size_of
from naiad.protocol.inference import Buffer

_UNLIMITED = 1 << 62
_VARINT, _FIXED64, _LENGTH_DELIMITED, _FIXED32 = 0, 1, 2, 5


class WireFormatError(ValueError):
    """The bytes are not a protobuf message."""


class Outline(NamedTuple):
    """The top-level fields of a message, without what is in them."""

    kept: list[memoryview]  # the message without the values of one field, in parts
    values: list[memoryview]  # the values of that field, in order
    texts: dict[int, memoryview]  # the last value of each field whose value was asked for, by the field's number
    is_complete: bool  # Whether these are all fields. If not, the message has more fields than are walked at once.

    @property
    def kept_size(self) -> int:
        return sum(map(len, self.kept))


def find_last(
    head: memoryview, size: int, field: int, texts: Collection[int], max_fields: int
) -> tuple[int, dict[int, memoryview]] | None:
    """Where the value of *field* begins that ends a message of *size* bytes, and the *texts* before it, as `outline`.

    None if *head*, its first bytes, ends before that position or is malformed, and for messages that do not end with
    the first value of the field.
    """
    wanted = field << 3 | _LENGTH_DELIMITED
    text_tags = {number << 3 | _LENGTH_DELIMITED: number for number in texts}
    found: dict[int, memoryview] = {}
    position = 0
    try:
        for _ in range(max_fields):
            tag, position = _varint(head, position)
            start, position = _skip(head, tag & 7, position)
            if tag == wanted:
                return (start, found) if position == size else None
            if position > len(head):
                return None
            if tag in text_tags:
                found[text_tags[tag]] = head[start:position]
    except WireFormatError:
        pass
    return None


def outline(
    message: bytes | bytearray | memoryview, field: int, texts: Collection[int] = (), max_fields: int = _UNLIMITED
) -> Outline:
    """Find the values of the length-delimited *field*, and the last ones of *texts*; no value is copied.

    At most *max_fields* are walked; each takes about a microsecond.
    """
    wanted = field << 3 | _LENGTH_DELIMITED
    text_tags = {number << 3 | _LENGTH_DELIMITED: number for number in texts}
    view = memoryview(message)
    values: list[memoryview] = []
    found: dict[int, memoryview] = {}
    kept: list[memoryview] = []
    position, kept_from, size = 0, 0, len(message)
    count = 0
    while position < size and count < max_fields:
        count += 1
        start = position
        tag, position = _varint(message, position)
        value_start, position = _skip(message, tag & 7, position)
        if position > size:
            raise WireFormatError(f"a field at byte {start} reaches beyond the message's {size} bytes")
        if tag == wanted:
            kept.append(view[kept_from:start])
            values.append(view[value_start:position])
            kept_from = position
        elif tag in text_tags:
            found[text_tags[tag]] = view[value_start:position]
    kept.append(view[kept_from:])
    return Outline(kept, values, found, position == size)


def with_field(message: bytes, field: int, values: Sequence[Buffer]) -> list[Buffer]:
    """*message* with *values* appended as the length-delimited *field*, in parts; no value is copied."""
    pieces: list[Buffer] = [message]
    for value in values:
        size = size_of(value)
        pieces.append(field_head(field, size))
        if size:  # `join` rejects some shapes of views without bytes
            pieces.append(value)
    return pieces


def field_head(field: int, size: int) -> bytes:
    """The tag and length that precede the *size* bytes of a length-delimited field."""
    return encode_varint(field << 3 | _LENGTH_DELIMITED) + encode_varint(size)


def encode_varint(value: int) -> bytes:
    """A non-negative number as a varint: seven bits a byte, the lowest first."""
    if value < 0x80:  # noqa: PLR2004 - seven bits per byte
        return bytes((value,))
    encoded = bytearray()
    while value > 0x7F:  # noqa: PLR2004 - as above
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _varint(data: bytes | bytearray | memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    try:
        while True:
            byte = data[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:  # noqa: PLR2004 - the highest bit says that more bytes follow
                return value, position
            shift += 7
            if shift > 63:  # noqa: PLR2004 - ten bytes hold any 64-bit number
                raise WireFormatError(f"a number before byte {position} is longer than ten bytes")
    except IndexError:
        raise WireFormatError(f"the message ends within a number at byte {position}") from None


def _skip(data: bytes | bytearray | memoryview, wire_type: int, position: int) -> tuple[int, int]:
    if wire_type == _LENGTH_DELIMITED:
        length, position = _varint(data, position)
        return position, position + length
    if wire_type == _VARINT:
        return position, _varint(data, position)[1]
    if wire_type == _FIXED64:
        return position, position + 8
    if wire_type == _FIXED32:
        return position, position + 4
    raise WireFormatError(f"wire type {wire_type} before byte {position} is not used by proto3")
