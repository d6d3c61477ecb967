"""Blocks of fields (HPACK, RFC 7541): those of requests decoded, those of answers encoded.

hpack decodes. What a block means depends on the table that earlier blocks have filled, so as long as none changes the
table, equal blocks mean the same: a client's requests soon are equal bytes, and are decoded once.

Answers have few fields that change. Those that do not enter the peer's table once; from then on a block of them is
constant bytes, which are cheap for the peer as well.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Generic, TypeVar

from hpack import Decoder, HPACKError, OversizedHeaderListError

from naiad.frontends.http2.frames import ConnectionProblem, ErrorCode
from naiad.frontends.http2.settings import DEFAULT_TABLE_SIZE

Field = tuple[bytes, bytes]
Fields = tuple[Field, ...]

T = TypeVar("T")

_MOST_BITS = 35
"""Numbers are shorter: hpack takes none with more bytes. To add up a longer one would take the square of its length."""
_KEPT = 64
_LONGEST = 1024

_STATIC = {(b":status", b"200"): 8}
_STATIC_NAMES = {b":status": 8, b"content-type": 31}
_STATIC_SIZE = 61
_INDEXED, _INSERTED, _PLAIN = (0x80, 7), (0x40, 6), (0x00, 4)
_SIZE_ZERO = b"\x20"
_THREE_SIZES = re.compile(rb"(?:[\x20-\x3e]|\x3f[\x80-\xff]*[\x00-\x7f]){3}")
"""A block that sets the size of the table more often than there is a reason to (RFC 7541, 4.2); hpack takes any number,
and a block of nothing else costs it half a second."""


class FieldReader(Generic[T]):
    """Decodes the blocks that a peer sends."""

    def __init__(self, interpret: Callable[[Fields], T], most: int) -> None:
        """Prepare.

        Args:
            interpret: Makes of fields what is wanted of them; its result is kept with the block.
            most: Bytes of fields in a block.
        """
        self._interpret = interpret
        self._decoder = Decoder(max_header_list_size=most)
        self._known: dict[bytes, T] = {}

    def read(self, block: bytes) -> T:
        """What a block means.

        Raises:
            ConnectionProblem: If it cannot be decoded: nor can any block after it, then.
        """
        known = self._known.get(block)
        if known is not None:
            return known
        found = self._interpret(self.decode(block))
        if len(block) <= _LONGEST and not changes_table(block):
            if len(self._known) >= _KEPT:
                self._known.clear()
            self._known[block] = found
        return found

    def decode(self, block: bytes) -> Fields:
        """The fields of a block.

        Raises:
            ConnectionProblem: As `read`.
        """
        if self._known and changes_table(block):
            self._known.clear()
        if _THREE_SIZES.match(block) is not None:
            raise ConnectionProblem(ErrorCode.COMPRESSION_ERROR, "more than two sizes of the table in a block")
        try:
            return tuple((field[0], field[1]) for field in self._decoder.decode(block, raw=True))
        except OversizedHeaderListError as error:
            raise ConnectionProblem(ErrorCode.ENHANCE_YOUR_CALM, str(error)) from None
        except (HPACKError, ValueError, IndexError) as error:
            raise ConnectionProblem(ErrorCode.COMPRESSION_ERROR, str(error)) from None


def changes_table(block: bytes) -> bool:
    """Whether a block adds to the table of fields, or changes its size; also where it cannot be read."""
    position, size = 0, len(block)
    try:
        while position < size:
            first = block[position]
            if first & 0x80:
                _, position = _integer(block, position, 7)
            elif first & 0x60:
                return True
            else:
                index, position = _integer(block, position, 4)
                for _ in range(1 if index else 2):
                    length, position = _integer(block, position, 7)
                    position += length
    except IndexError:
        return True
    return position > size


def _integer(block: bytes, position: int, bits: int) -> tuple[int, int]:
    most = (1 << bits) - 1
    value = block[position] & most
    position += 1
    if value < most:
        return value, position
    for shift in range(0, _MOST_BITS, 7):
        byte = block[position]
        position += 1
        value += (byte & 0x7F) << shift
        if not byte & 0x80:
            return value, position
    raise IndexError


class FieldWriter:
    """Encodes the blocks that a peer gets. It adds to the peer's table what is constant, and never takes away."""

    __slots__ = ("_blocks", "_inserted", "_may_insert", "_prefix")

    def __init__(self) -> None:
        self._inserted: list[Field] = []
        self._blocks: dict[Fields, bytes] = {}
        self._may_insert = True
        self._prefix = b""

    def resize(self, table_size: int) -> None:
        """Note that the peer has set the size of its table."""
        if table_size >= DEFAULT_TABLE_SIZE or not self._may_insert:
            return
        # A smaller table is one to do without; the peer must be told (RFC 7541, 4.2).
        self._may_insert = False
        self._prefix = _SIZE_ZERO
        self._inserted.clear()
        self._blocks.clear()

    def constant(self, fields: Fields) -> bytes:
        """A block of fields that are sent again and again: there must be few such fields."""
        known = self._blocks.get(fields)
        if known is not None:
            return known
        if not self._may_insert:
            return self.once(fields)
        known_before = len(self._inserted)
        block = b"".join([self._constant(field) for field in fields])
        if len(self._inserted) == known_before:
            self._blocks[fields] = block
        else:
            self._blocks.clear()  # what was added moves all that was there
        return block

    def once(self, fields: Fields) -> bytes:
        """A block of fields that will hardly come again."""
        prefix, self._prefix = self._prefix, b""
        return prefix + b"".join([_plain(field) for field in fields])

    def _constant(self, field: Field) -> bytes:
        if field in _STATIC:
            return _plain(field)
        if field in self._inserted:
            newer = len(self._inserted) - 1 - self._inserted.index(field)
            return _encoded(_STATIC_SIZE + 1 + newer, _INDEXED)
        self._inserted.append(field)
        return _literal(field, _INSERTED)


def _plain(field: Field) -> bytes:
    static = _STATIC.get(field)
    return _literal(field, _PLAIN) if static is None else _encoded(static, _INDEXED)


def _literal(field: Field, form: tuple[int, int]) -> bytes:
    name, value = field
    index = _STATIC_NAMES.get(name, 0)
    return _encoded(index, form) + (b"" if index else _string(name)) + _string(value)


def _string(text: bytes) -> bytes:
    return _encoded(len(text), (0, 7)) + text


def _encoded(number: int, form: tuple[int, int]) -> bytes:
    pattern, bits = form
    most = (1 << bits) - 1
    if number < most:
        return bytes((pattern | number,))
    encoded = bytearray((pattern | most,))
    number -= most
    while number > 0x7F:  # noqa: PLR2004 - seven bits per byte
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
