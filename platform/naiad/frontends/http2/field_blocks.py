"""Field blocks, compressed by HPACK (section 4.3, RFC 7541): decoder for requests, encoder for responses.

HPACK is stateful: both ends keep a *dynamic table* of fields, blocks refer to it by index and add to it. So equal
blocks mean the same only while no block between them changes the table. A client soon refers to fields that the table
holds, and then its requests are equal bytes which change nothing: `FieldBlockDecoder` keeps what such a block meant and
does not decode it again.

hpack has the table and Huffman's code, where implementations had their errors. The representations around them are
read here. hpack's own decoder copies the rest of the block for each field, and has no bound on Huffman's code, which
costs it as much as a hundred other bytes: a block of 64 KB kept the server busy for 20 ms.

Responses have few distinct fields. `FieldBlockEncoder` adds constant ones to the client's table once; from then on
their block is three to five constant bytes, cheap for the client as well. It never evicts, and does without a table if
the client's is small. Fields that vary enter no table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from hpack import Encoder, HPACKError
from hpack.huffman_table import decode_huffman
from hpack.table import HeaderTable
from naiad_stub.memo import Memo

from naiad.frontends.http2.flood_account import FIELD_COST, HUFFMAN_COST
from naiad.frontends.http2.frames import ErrorCode, Http2ConnectionError
from naiad.frontends.http2.limits import Http2Limits
from naiad.frontends.http2.settings import DEFAULT_TABLE_SIZE

Field = tuple[bytes, bytes]
Fields = tuple[Field, ...]

T = TypeVar("T")

_MAX_INTEGER_BITS = 35  # longest HPACK integer that is added up: adding up one of n bytes costs n squared
_KNOWN_BLOCKS = 64
_MAX_KNOWN_BLOCK = 1024  # bytes of the longest block that is remembered
_MAX_TABLE_SIZES = 2  # updates of the table's size in one block: more are never needed (RFC 7541, section 4.2)
FIELD_OVERHEAD = 32  # bytes that each field adds to the size of a field section (section 6.5.2)


class FieldBlockDecoder(Generic[T]):
    """Decodes the field blocks of one peer."""

    __slots__ = ("_huffman_left", "_is_changed", "_known", "_limits", "_parse", "_table", "cost")

    def __init__(self, parse: Callable[[Fields], T], limits: Http2Limits) -> None:
        """An empty table; *parse* gets the fields of each block that is not known, and its result is kept."""
        self.cost = 0.0  # Microseconds that blocks took to decode, estimated. Known ones add nothing.
        self._parse = parse
        self._limits = limits
        self._table = HeaderTable()
        self._known: Memo[bytes, T] = Memo(_KNOWN_BLOCKS)
        # Of the block that is being decoded: whether it changed the table, and the bytes that Huffman's code may have.
        self._is_changed = False
        self._huffman_left = 0

    def read(self, block: bytes) -> T:
        """What `parse` returned; Http2ConnectionError if this block, and so no later one, can be decoded (4.3)."""
        known = self._known.get(block)
        if known is not None:
            return known
        parsed = self._parse(self.decode(block))
        if len(block) <= _MAX_KNOWN_BLOCK and not self._is_changed:
            self._known[block] = parsed
        return parsed

    def take_cost(self) -> float:
        cost, self.cost = self.cost, 0.0
        return cost

    def decode(self, block: bytes) -> Fields:
        """The fields of a block; raises as `read`."""
        self._is_changed = False
        self._huffman_left = self._limits.huffman_size
        try:
            fields = self._decode_fields(block, self._decode_table_sizes(block))
        except IndexError:
            text = "a field block that ends within a field"
            raise Http2ConnectionError(ErrorCode.COMPRESSION_ERROR, text) from None
        except HPACKError as error:
            raise Http2ConnectionError(ErrorCode.COMPRESSION_ERROR, str(error)) from None
        if self._is_changed:
            self._known.clear()  # indices move with each insertion: known blocks may now mean something else
        self.cost += len(fields) * FIELD_COST + (self._limits.huffman_size - self._huffman_left) * HUFFMAN_COST
        return fields

    def _decode_table_sizes(self, block: bytes) -> int:
        """Apply the updates of the table's size at the beginning of a block; return where its fields begin."""
        position = count = 0
        while position < len(block) and block[position] & 0xE0 == 0x20:  # noqa: PLR2004 - RFC 7541, section 6.3
            count += 1
            if count > _MAX_TABLE_SIZES:
                text = "a field block with more than two table sizes"
                raise Http2ConnectionError(ErrorCode.COMPRESSION_ERROR, text)
            size, position = _read_integer(block, position, 5)
            if size > DEFAULT_TABLE_SIZE:
                text = f"a table of {size} bytes, more than the {DEFAULT_TABLE_SIZE} that were announced"
                raise Http2ConnectionError(ErrorCode.COMPRESSION_ERROR, text)
            self._table.maxsize = size
            self._is_changed = True
        return position

    def _decode_fields(self, block: bytes, position: int) -> Fields:
        table, fields = self._table, list[Field]()
        left, end = self._limits.decoded_size, len(block)
        while position < end:
            first = block[position]
            if first & 0x80:  # an indexed field (RFC 7541, section 6.1)
                index, position = _read_integer(block, position, 7)
                field = table.get_by_index(index)
            elif first & 0xE0 == 0x20:  # noqa: PLR2004 - RFC 7541, section 6.3
                text = "a table size behind a field"
                raise Http2ConnectionError(ErrorCode.COMPRESSION_ERROR, text)
            else:  # a literal, which enters the table or does not (sections 6.2.1 to 6.2.3)
                enters = first & 0x40
                index, position = _read_integer(block, position, 6 if enters else 4)
                if index:
                    name = table.get_by_index(index)[0]
                else:
                    name, position = self._read_string(block, position)
                value, position = self._read_string(block, position)
                field = name, value
                if enters:
                    table.add(name, value)
                    self._is_changed = True
            left -= len(field[0]) + len(field[1]) + FIELD_OVERHEAD
            if left < 0:
                text = f"a field block that means more than {self._limits.decoded_size} bytes"
                raise Http2ConnectionError(ErrorCode.ENHANCE_YOUR_CALM, text)
            fields.append(field)
        return tuple(fields)

    def _read_string(self, block: bytes, position: int) -> tuple[bytes, int]:
        """A string (RFC 7541, section 5.2) and the position behind it."""
        is_huffman = block[position] & 0x80
        size, position = _read_integer(block, position, 7)
        end = position + size
        if end > len(block):
            raise IndexError
        text = block[position:end]
        if is_huffman:
            self._huffman_left -= size
            if self._huffman_left < 0:
                limit = self._limits.huffman_size
                raise Http2ConnectionError(ErrorCode.ENHANCE_YOUR_CALM, f"more than {limit} bytes in Huffman's code")
            text = decode_huffman(text)
        return text, end


def _read_integer(block: bytes, position: int, bits: int) -> tuple[int, int]:
    """An integer and the position behind it (RFC 7541, 5.1); IndexError if the block ends within it."""
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
    raise Http2ConnectionError(ErrorCode.COMPRESSION_ERROR, "an integer that is too long in a field block")


class FieldBlockEncoder:
    """Encodes the field blocks for one peer."""

    __slots__ = ("_blocks", "_encoder")

    def __init__(self) -> None:
        self._encoder = Encoder()
        # No limit: the callers' constant fields are a handful, known when the program is written.
        self._blocks: dict[Fields, bytes] = {}

    def on_table_size(self, table_size: int) -> None:
        if table_size < DEFAULT_TABLE_SIZE and self._encoder.header_table_size:
            # A table below the default is not used at all. The next block announces the new size (RFC 7541, 4.2).
            self._encoder.header_table_size = 0
            self._blocks.clear()

    def encode_constant(self, fields: Fields) -> bytes:
        """A block of fields that are sent again and again: they enter the peer's table, so there must be few."""
        known = self._blocks.get(fields)
        if known is not None:
            return known
        table = self._encoder.header_table
        announces, inserted_before = table.resized, len(table.dynamic_entries)
        block = self._encoder.encode(fields, huffman=False)
        if len(table.dynamic_entries) > inserted_before:
            self._blocks.clear()  # each insertion moves the indices of all earlier fields
        elif not announces:
            self._blocks[fields] = block
        return block

    def encode_once(self, fields: Fields) -> bytes:
        return self._encoder.encode([(*field, True) for field in fields], huffman=False)
