"""Strategies for inputs: valid ones with edited bytes or JSON values, and generated protobuf messages."""

from __future__ import annotations

import copy
import functools
import json

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message_factory import GetMessageClass
from hypothesis import strategies as st

_NUMBERS = [0, -1, 1, 2, 7, 255, 2**31 - 1, -(2**31), 2**32, 2**53, 2**63 - 1, -(2**63), 2**64 - 1]
_TEXTS = [
    "",
    "\0",
    "a" * 300,
    "é\U0001f600",
    "INPUT0",
    "add_sub",
    "FP32",
    "BYTES",
    "BF16",
    "..",
    "a/b",
    "-1",
    "1",
    "nan",
]
_PIECES = [
    b"\0", b"\xff", b"\xff\xff\xff\xff\x0f", b"\r\n", b"\r\n\r\n", b"\n", b" ", b"%", b"%00", b"%2e%2e", b"/", b"?", b"#",
    b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"[" * 120, b'{"a":' * 120, b"null", b"true", b"1e400", b"NaN",
    b"-1", b"0", b"18446744073709551616", b"9" * 40, b"\xed\xa0\x80", b"\\ud800", b"Content-Length: 5\r\n",
    b"Transfer-Encoding: chunked\r\n", b"Expect: 100-continue\r\n", b"Connection: close\r\n", b"Upgrade: h2c\r\n",
    b"Content-Encoding: gzip\r\n", b"Content-Encoding: deflate\r\n", b"Accept-Encoding: gzip;q=.5,deflate\r\n",
    b"Inference-Header-Content-Length: 0\r\n", b"Inference-Header-Content-Length: 12\r\n",
    b"endpoint-load-metrics-format: json\r\n", b"dims: [ -1 ]", b"max_batch_size: 8", b"dynamic_batching { }",
]  # fmt: skip
_LONGEST = 1 << 16

_piece = st.one_of(st.sampled_from(_PIECES), st.binary(max_size=6))
_edit = st.tuples(st.sampled_from("ioddst"), st.integers(0, 1 << 16), st.integers(0, 64), _piece)


def edited(sample: bytes, edits: list[tuple[str, int, int, bytes]]) -> bytes:
    """A sample with edits: pieces inserted, overwritten, deleted, repeated; a bit flipped; the end cut off."""
    data = bytearray(sample)
    for kind, place, size, piece in edits:
        at = place % (len(data) + 1)
        if kind == "i":
            data[at:at] = piece
        elif kind == "o":
            data[at : at + len(piece)] = piece
        elif kind == "d":
            del data[at : at + size]
        elif kind == "s":
            data[at:at] = data[at : at + size * 16]
        elif at < len(data) and size < 60:
            data[at] ^= 1 << (size % 8)
        else:
            del data[at:]
    return bytes(data[:_LONGEST])


def mutated(samples: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """Samples with up to five edits."""
    return st.builds(edited, samples, st.lists(_edit, max_size=5))


_scalars = st.one_of(
    st.none(), st.booleans(), st.sampled_from(_NUMBERS), st.sampled_from(_TEXTS), st.floats(allow_nan=False), st.text(max_size=6)
)  # fmt: skip
_values = st.one_of(
    _scalars,
    st.lists(_scalars, max_size=4),
    st.dictionaries(st.sampled_from(["name", "shape", "data", "parameters", "binary_data_size", ""]), _scalars, max_size=3),
    st.just([[[[1.0]]]]),
)  # fmt: skip


def _places(document: object, found: list[tuple[object, object]]) -> list[tuple[object, object]]:
    """Every value of a document, as its container and its key or index there."""
    if isinstance(document, (dict, list)):
        for key, value in list(document.items() if isinstance(document, dict) else enumerate(document)):
            found.append((document, key))
            _places(value, found)
    return found


def changed(document: object, changes: list[tuple[int, str, str, object]]) -> bytes:
    """A document as JSON, with values replaced, removed, renamed or added."""
    document = copy.deepcopy(document)
    for number, kind, name, value in changes:
        places = _places(document, [])
        if not places:
            break
        holder, key = places[number % len(places)]
        if kind == "replace":
            holder[key] = copy.deepcopy(value)
        elif kind == "add" and isinstance(holder, dict):
            holder[name] = copy.deepcopy(value)
        elif kind == "double" and isinstance(holder, list):
            holder.append(copy.deepcopy(holder[key]))
        elif kind == "rename" and isinstance(holder, dict):
            holder[name] = holder.pop(key)
        else:
            del holder[key]
    return json.dumps(document).encode()


_NAMES = [
    "name",
    "id",
    "data",
    "shape",
    "parameters",
    "outputs",
    "inputs",
    "datatype",
    "classification",
    "binary_data",
    "binary_data_size",
    "sequence_id",
    "sequence_start",
    "sequence_end",
    "priority",
    "timeout",
    "shared_memory_region",
    "shared_memory_byte_size",
    "binary_data_output",
    "headers",
    "triton_x",
    "unload_dependents",
    "config",
    "file:1/model.py",
    "ready",
    "trace_level",
    "trace_rate",
    "log_info",
    "log_verbose_level",
    "stream",
    "max_tokens",
    "n",
    "stop",
    "temperature",
    "logprobs",
    "text_input",
]
_change = st.tuples(
    st.integers(0, 200),
    st.sampled_from(["replace", "replace", "add", "double", "rename", "remove"]),
    st.sampled_from(_NAMES),
    _values,
)


def mutated_documents(documents: st.SearchStrategy[object]) -> st.SearchStrategy[bytes]:
    """Documents as JSON, with up to four changes."""
    return st.builds(changed, documents, st.lists(_change, max_size=4))


# -- protobuf ----------------------------------------------------------------------------------------------------


@functools.cache
def messages(descriptor: Descriptor, depth: int = 4) -> st.SearchStrategy[object]:
    """Messages of one type, with any of their fields set."""
    fields = {field: _field(field, depth) for field in descriptor.fields if depth or field.message_type is None}
    chosen = st.lists(st.sampled_from(list(fields)), max_size=5, unique=True) if fields else st.just([])
    values = chosen.flatmap(lambda some: st.tuples(*(st.tuples(st.just(f), fields[f]) for f in some)))
    return values.map(lambda pairs: _made(descriptor, pairs))


def _made(descriptor: Descriptor, pairs: tuple[tuple[FieldDescriptor, object], ...]) -> object:
    message = GetMessageClass(descriptor)()
    for field, value in pairs:
        if is_map(field):
            for key, item in value.items():
                if field.message_type.fields_by_name["value"].message_type is not None:
                    getattr(message, field.name)[key].CopyFrom(item)
                else:
                    getattr(message, field.name)[key] = item
        elif field.is_repeated:
            getattr(message, field.name).extend(value)
        elif field.message_type is not None:
            getattr(message, field.name).CopyFrom(value)
        else:
            setattr(message, field.name, value)
    return message


def is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _field(field: FieldDescriptor, depth: int) -> st.SearchStrategy[object]:
    if is_map(field):
        entry = field.message_type.fields_by_name
        return st.dictionaries(_single(entry["key"], depth - 1), _single(entry["value"], depth - 1), max_size=2)
    single = _single(field, depth)
    return st.lists(single, max_size=3) if field.is_repeated else single


def _single(field: FieldDescriptor, depth: int) -> st.SearchStrategy[object]:
    if field.message_type is not None:
        return messages(field.message_type, max(depth - 1, 0))
    if field.enum_type is not None:
        return st.sampled_from([value.number for value in field.enum_type.values])
    kind = field.cpp_type
    if kind == FieldDescriptor.CPPTYPE_STRING:
        texts = [*_TEXTS, *_NAMES]
        if field.type == FieldDescriptor.TYPE_BYTES:
            return st.one_of(st.sampled_from([text.encode() for text in texts]), st.binary(max_size=20))
        return st.sampled_from(texts)
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return st.booleans()
    if kind in {FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE}:
        return st.sampled_from([0.0, -0.0, 1.5, -1e300, float("inf"), float("nan")])
    low, high = _RANGES[kind]
    return st.sampled_from([number for number in (*_NUMBERS, 3, 4, 8, 32) if low <= number <= high])


_RANGES = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}
