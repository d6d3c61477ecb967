"""The text of traces, in pieces: the elements of a tensor take several times the memory of the tensor as text."""

from __future__ import annotations

import codecs
from collections.abc import Iterator

import orjson

from naiad.frontends.tracing.records import CompleteTrace, TensorRecord
from naiad.protocol.datatypes import Datatype

_PIECE_ELEMENTS = 4096  # elements in a piece: at most half a millisecond, in which no other thread of Python runs
_PIECE_BYTES = 64 << 10
_LENGTH_SIZE = 4


def render_traces(traces: list[CompleteTrace]) -> Iterator[bytes]:
    """The records of traces as JSON, separated by commas, in pieces."""
    separator = b""
    for trace in traces:
        for record in trace.records:
            if isinstance(record, TensorRecord):
                yield from _render_tensor(separator, record)
            else:
                yield separator + orjson.dumps(record)
            separator = b","


def _render_tensor(separator: bytes, record: TensorRecord) -> Iterator[bytes]:
    head = orjson.dumps({"id": record.trace, "activity": record.activity, "tensor": {"name": record.name}})
    yield separator + head[:-2] + b',"data":"'
    yield from _render_elements(record.datatype, record.data)
    shape = ",".join(map(str, record.shape))
    yield f'","shape":"{shape}","dtype":"{record.datatype.name}"}}}}'.encode()


def _render_elements(datatype: Datatype, data: bytes) -> Iterator[bytes]:
    """The elements as the content of a JSON string, separated by commas."""
    if datatype is Datatype.BYTES:
        yield from _render_strings(data)
        return
    import numpy as np  # imported late: see `protocol.numpy_types`

    numpy_type = datatype.numpy
    if numpy_type is None or datatype in {Datatype.FP16, Datatype.BF16}:
        return  # the reference writes no elements of these types
    # The number of bytes is the client's: requests are traced before they are checked.
    array = np.frombuffer(data, numpy_type, len(data) // numpy_type.itemsize)
    separator = b""
    for start in range(0, len(array), _PIECE_ELEMENTS):
        piece = array[start : start + _PIECE_ELEMENTS]
        if piece.dtype.kind == "f":
            text = ("%g," * len(piece) % tuple(piece.tolist()))[:-1].encode()
        else:
            integers = piece.view(np.uint8) if piece.dtype.kind == "b" else piece
            text = orjson.dumps(integers, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]
        yield separator + text
        separator = b","


def _render_strings(data: bytes) -> Iterator[bytes]:
    texts: list[str] = []
    size = position = 0
    separator = b""
    while position + _LENGTH_SIZE <= len(data):
        start = position + _LENGTH_SIZE
        position = start + int.from_bytes(data[position:start], "little")
        if position > len(data):
            break
        if position - start > _PIECE_BYTES:
            if texts:
                yield separator + _escape(",".join(texts))
                separator = b","
                texts, size = [], 0
            yield separator
            yield from _render_long_string(data, start, position)
            separator = b","
            continue
        text = data[start:position].decode("utf-8", "replace")
        texts.append(f'"{text}"')
        size += position - start
        if size >= _PIECE_BYTES or len(texts) >= _PIECE_ELEMENTS:
            yield separator + _escape(",".join(texts))
            separator = b","
            texts, size = [], 0
    if texts:
        yield separator + _escape(",".join(texts))


def _render_long_string(data: bytes, start: int, end: int) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    yield b'\\"'
    for position in range(start, end, _PIECE_BYTES):
        stop = min(position + _PIECE_BYTES, end)
        yield _escape(decoder.decode(data[position:stop], final=stop == end))
    yield b'\\"'


def _escape(text: str) -> bytes:
    return orjson.dumps(text)[1:-1]
