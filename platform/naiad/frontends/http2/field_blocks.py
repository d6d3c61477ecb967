"""Field blocks, compressed by HPACK (section 4.3, RFC 7541): decoder for requests, encoder for responses.

hpack decodes. HPACK is stateful: both ends keep a *dynamic table* of fields, blocks refer to it by index and add to it.
So equal blocks mean the same only while no block between them changes the table. A client soon refers to fields that
the table holds, and then its requests are equal bytes which change nothing: `FieldBlockDecoder` keeps what such a block
meant and does not decode it again.

Responses have few distinct fields. `FieldBlockEncoder` adds constant ones to the client's table once; from then on
their block is three to five constant bytes, cheap for the client as well. It never evicts, and does without a table if
the client's is small. Fields that vary are sent as literals that enter no table.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Generic, TypeVar

from hpack import Decoder, HPACKError, OversizedHeaderListError
from naiad_stub.memo import Memo

from naiad.frontends.http2.frames import ErrorCode, Http2ConnectionError
from naiad.frontends.http2.settings import DEFAULT_TABLE_SIZE

Field = tuple[bytes, bytes]
Fields = tuple[Field, ...]

T = TypeVar("T")

_MAX_INTEGER_BITS = 35
"""Longest HPACK integer that is added up. hpack rejects longer ones; adding up one of n bytes costs n squared."""
_KNOWN_BLOCKS = 64
_MAX_KNOWN_BLOCK = 1024
"""Bytes of the longest block that is remembered."""

# The part of HPACK's static table (RFC 7541, appendix A) that responses of gRPC use, by index.
_STATIC = {(b":status", b"200"): 8}
_STATIC_NAMES = {b":status": 8, b"content-type": 31}
_STATIC_SIZE = 61
# Representations (RFC 7541, section 6): the bits that mark each, and how many bits of the first byte the number has.
_INDEXED, _LITERAL_INDEXED, _LITERAL = (0x80, 7), (0x40, 6), (0x00, 4)
_TABLE_SIZE_ZERO = b"\x20"
_THREE_TABLE_SIZES = re.compile(rb"(?:[\x20-\x3e]|\x3f[\x80-\xff]*[\x00-\x7f]){3}")
"""A block that begins with three updates of the table's size. Two are all that is ever needed (RFC 7541, section 4.2).
hpack accepts any number, and takes half a second for a block of 64 KB with nothing else."""


class FieldBlockDecoder(Generic[T]):
    """Decodes the field blocks of one peer."""

    def __init__(self, parse: Callable[[Fields], T], max_size: int) -> None:
        """A decoder with an empty dynamic table.

        Args:
            parse: Called with the fields of each block that is not known; its result is kept with the block.
            max_size: Bytes of the decoded fields of one block, plus 32 for each field.
        """
        self._parse = parse
        self._decoder = Decoder(max_header_list_size=max_size)
        self._known: Memo[bytes, T] = Memo(_KNOWN_BLOCKS)

    def read(self, block: bytes) -> T:
        """What `parse` returned for the fields of a block.

        Raises:
            Http2ConnectionError: The block cannot be decoded. The two tables differ from now on, so no later block can
                be decoded either (section 4.3).
        """
        known = self._known.get(block)
        if known is not None:
            return known
        parsed = self._parse(self.decode(block))
        if len(block) <= _MAX_KNOWN_BLOCK and not changes_table(block):
            self._known[block] = parsed
        return parsed

    def decode(self, block: bytes) -> Fields:
        """The fields of a block.

        Raises:
            Http2ConnectionError: As `read`.
        """
        if self._known and changes_table(block):
            self._known.clear()  # indices move with each insertion: known blocks may now mean something else
        if _THREE_TABLE_SIZES.match(block) is not None:
            raise Http2ConnectionError(ErrorCode.COMPRESSION_ERROR, "a field block with more than two table sizes")
        try:
            return tuple((field[0], field[1]) for field in self._decoder.decode(block, raw=True))
        except OversizedHeaderListError as error:
            raise Http2ConnectionError(ErrorCode.ENHANCE_YOUR_CALM, str(error)) from None
        except (HPACKError, ValueError, IndexError) as error:
            raise Http2ConnectionError(ErrorCode.COMPRESSION_ERROR, str(error)) from None


def changes_table(block: bytes) -> bool:
    """Whether a block adds to the dynamic table or changes its size. True also for a malformed block."""
    position, size = 0, len(block)
    try:
        while position < size:
            first = block[position]
            if first & 0x80:  # an indexed field
                _, position = _read_integer(block, position, 7)
            elif first & 0x60:  # a literal that enters the table, or a new size of the table
                return True
            else:  # a literal that does not enter the table
                index, position = _read_integer(block, position, 4)
                for _ in range(1 if index else 2):
                    length, position = _read_integer(block, position, 7)
                    position += length
    except IndexError:
        return True
    return position > size


def _read_integer(block: bytes, position: int, bits: int) -> tuple[int, int]:
    """An integer (RFC 7541, section 5.1) and the position behind it; IndexError for one that is cut off or too long."""
    most = (1 << bits) - 1
    value = block[position] & most
    position += 1
    if value < most:
        return value, position
    for shift in range(0, _MAX_INTEGER_BITS, 7):
        byte = block[position]
        position += 1
        value += (byte & 0x7F) << shift
        if not byte & 0x80:
            return value, position
    raise IndexError


class FieldBlockEncoder:
    """Encodes the field blocks for one peer."""

    __slots__ = ("_blocks", "_inserted", "_prefix", "_uses_table")

    def __init__(self) -> None:
        self._inserted: list[Field] = []
        # No limit: the callers' constant fields are a handful, known when the program is written.
        self._blocks: dict[Fields, bytes] = {}
        self._uses_table = True
        self._prefix = b""

    def on_table_size(self, table_size: int) -> None:
        """Apply the peer's SETTINGS_HEADER_TABLE_SIZE."""
        if table_size >= DEFAULT_TABLE_SIZE or not self._uses_table:
            return
        # A table below the default is not used at all. The next block must announce the new size (RFC 7541, 4.2).
        self._uses_table = False
        self._prefix = _TABLE_SIZE_ZERO
        self._inserted.clear()
        self._blocks.clear()

    def encode_constant(self, fields: Fields) -> bytes:
        """A block of fields that are sent again and again.

        They enter the peer's table, so there must be few of them.
        """
        known = self._blocks.get(fields)
        if known is not None:
            return known
        if not self._uses_table:
            return self.encode_once(fields)
        inserted_before = len(self._inserted)
        block = b"".join([self._encode_inserting(field) for field in fields])
        if len(self._inserted) == inserted_before:
            self._blocks[fields] = block
        else:
            self._blocks.clear()  # each insertion moves the indices of all earlier fields
        return block

    def encode_once(self, fields: Fields) -> bytes:
        """A block of fields that vary."""
        prefix, self._prefix = self._prefix, b""
        return prefix + b"".join([_encode_plain(field) for field in fields])

    def _encode_inserting(self, field: Field) -> bytes:
        if field in _STATIC:
            return _encode_plain(field)
        if field in self._inserted:
            newer = len(self._inserted) - 1 - self._inserted.index(field)
            return _encode_integer(_STATIC_SIZE + 1 + newer, _INDEXED)
        self._inserted.append(field)
        return _encode_literal(field, _LITERAL_INDEXED)


def _encode_plain(field: Field) -> bytes:
    static = _STATIC.get(field)
    return _encode_literal(field, _LITERAL) if static is None else _encode_integer(static, _INDEXED)


def _encode_literal(field: Field, form: tuple[int, int]) -> bytes:
    name, value = field
    index = _STATIC_NAMES.get(name, 0)
    return _encode_integer(index, form) + (b"" if index else _encode_string(name)) + _encode_string(value)


def _encode_string(text: bytes) -> bytes:
    return _encode_integer(len(text), (0, 7)) + text


def _encode_integer(number: int, form: tuple[int, int]) -> bytes:
    pattern, bits = form
    most = (1 << bits) - 1
    if number < most:
        return bytes((pattern | number,))
    encoded = bytearray((pattern | most,))
    number -= most
    while number > 0x7F:  # noqa: PLR2004 - seven bits per byte, as RFC 7541, section 5.1 has it
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
