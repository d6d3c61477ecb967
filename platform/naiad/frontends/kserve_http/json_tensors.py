"""Tensor data in JSON: nested or flat lists to bytes, and back to flat lists.

Behaviour and texts: SRV src/http_server.cc, `ReadDataFromJson` and `WriteDataToJson`.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import chain
from math import isfinite, prod
from struct import Struct, pack
from struct import error as StructError  # noqa: N812 - the name of a class
from typing import TYPE_CHECKING, Any

import orjson

from naiad.core.errors import InvalidRequestError, MalformedRequestError
from naiad.protocol.datatypes import BYTE_SIZES, Datatype
from naiad.protocol.inference import Buffer, OutputTensor
from naiad.protocol.strings import pack_chunk

if TYPE_CHECKING:
    import numpy as np

_WITHOUT_JSON = (Datatype.FP16, Datatype.BF16)
_INTEGERS = frozenset("iu")
_NUMBERS = frozenset("iuf")
_UNSIGNED = (Datatype.UINT8, Datatype.UINT16, Datatype.UINT32, Datatype.UINT64)
_SIGNED = (Datatype.INT8, Datatype.INT16, Datatype.INT32, Datatype.INT64)
_NOT_FINITE = {
    "nan": orjson.Fragment(b"NaN"),
    "inf": orjson.Fragment(b"Infinity"),
    "-inf": orjson.Fragment(b"-Infinity"),
}
_CHUNK = 1 << 16  # elements that are converted at once, so that what a long tensor needs meanwhile is bounded
_SPLIT_COUNT = 1 << 12
_SPLIT_BYTES = 1 << 18  # elements of BYTES that are split off at once: so many, or so many bytes of them
_LONG_COUNT = 1 << 13  # elements whose JSON takes half a millisecond
_BYTES_PER_ELEMENT = 16  # bytes of a text that take as long as an element
_RENDERED_COUNT = 1 << 15  # numbers that are rendered at once: about a millisecond's worth
_NUMPY_FROM = 128  # numbers from which numpy and orjson together write them faster than `struct` and orjson do
_MAX_NESTED = 32  # how deeply lists that are read quickly are nested: as many dimensions as a tensor may have
_CODES = {
    Datatype.UINT8: "B",
    Datatype.UINT16: "H",
    Datatype.UINT32: "I",
    Datatype.UINT64: "Q",
    Datatype.INT8: "b",
    Datatype.INT16: "h",
    Datatype.INT32: "i",
    Datatype.INT64: "q",
    Datatype.FP32: "f",
    Datatype.FP64: "d",
    Datatype.BOOL: "?",
}  # codes of `struct`
_USUAL_TYPES = {
    datatype: frozenset({bool} if code == "?" else {int, float} if code in "fd" else {int})
    for datatype, code in _CODES.items()
}  # the types of elements that `struct` converts to each datatype as `to_bytes` does
_FEW = 1 << 12  # elements up to which `struct` is used: it takes each as an argument of a call
_LENGTH = Struct("<I")
_ESCAPED = re.compile(rb'["\\\x00-\x1f]')


def to_bytes(name: str, datatype: Datatype, shape: tuple[int, ...], data: object) -> bytes:
    """The bytes of an input given as JSON; InvalidRequestError for FP16 and BF16.

    MalformedRequestError for elements of the wrong JSON type, integers beyond 64 bits, and another number of elements
    than *shape* has. Integers that fit into 64 bits but not into the datatype are truncated, as in the reference.
    """
    if datatype in _WITHOUT_JSON:
        raise InvalidRequestError(
            f"receiving {datatype.name} data via JSON is not supported. Please use the binary data format for input "
            f"{name}"
        )
    if not isinstance(data, list):
        raise MalformedRequestError("Unable to parse 'data': attempt to access JSON non-array as array")
    if datatype is Datatype.BYTES:
        return pack_strings(data)  # the engine counts them, as in the reference, whose error has another text
    quick = _pack_usual(data, datatype, prod(shape))
    return _numbers(data, datatype, prod(shape)) if quick is None else quick


def _pack_usual(data: list[Any], datatype: Datatype, count: int) -> bytes | None:
    """The bytes of *count* numbers of the usual types, each within its datatype; None for anything else."""
    if count > _FEW:
        return None
    try:
        elements = _flat(data)
        if len(elements) != count or not _USUAL_TYPES[datatype].issuperset(map(type, elements)):
            return None
        return pack(f"<{count}{_CODES[datatype]}", *elements)
    except (TypeError, StructError, OverflowError):
        return None


def _numbers(data: list[Any], datatype: Datatype, expected: int) -> bytes:
    """As `to_bytes`, in chunks."""
    parts = []
    count = 0
    are_fitting = True
    for chunk, kinds in _flat_chunks(data):
        array = _array(chunk, kinds, datatype)
        are_fitting = are_fitting and _fits(array, kinds, datatype)
        parts.append(_converted(array, datatype) if are_fitting else b"")
        count += len(chunk)
    if count != expected:
        raise MalformedRequestError("Unable to parse 'data': Shape does not match true shape of 'data' field")
    if not are_fitting:
        raise _wrong_element(datatype)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _converted(array: np.ndarray[Any, np.dtype[Any]], datatype: Datatype) -> bytes:
    import numpy as np  # imported late: see `protocol.numpy_types`

    from naiad.protocol.numpy_types import NUMPY_TYPES

    if datatype is Datatype.FP32 and array.dtype.kind != "f":
        array = array.astype(np.float64)  # as the reference and `list_packer` do: integers are rounded twice
    with np.errstate(all="ignore"):  # 1e300 becomes infinity as FP32 without a warning
        return array.astype(NUMPY_TYPES[datatype], casting="unsafe").tobytes()


class UnusualListError(Exception):
    """A list that only `to_bytes` can read, or explain."""


def list_packer(datatype: Datatype, shape: tuple[int, ...]) -> Callable[[bytes], bytes] | None:
    """What gives the bytes of an input from its JSON list, as `to_bytes` but faster; None for a datatype without JSON.

    It raises `UnusualListError` for a list that is malformed or has elements of the wrong type, another number of
    numbers than *shape*, integers beyond the datatype, or numbers beyond FP32.
    """
    if datatype is Datatype.BYTES:
        return _pack_string_list
    if datatype is Datatype.BOOL:
        return partial(_pack_boolean_list, prod(shape))
    code = _CODES.get(datatype)
    if code is None:
        return None
    pack_all = Struct(f"<{prod(shape)}{code}").pack
    return partial(_pack_float_list if code in "fd" else _pack_integer_list, pack_all)


def _pack_string_list(text: bytes) -> bytes:
    try:
        return pack_chunk(_flat(orjson.loads(text)))
    except (ValueError, TypeError) as problem:
        raise UnusualListError from problem


def _pack_boolean_list(count: int, text: bytes) -> bytes:
    try:
        values = _flat(orjson.loads(text))
    except (ValueError, TypeError) as problem:
        raise UnusualListError from problem
    if len(values) != count or set(map(type, values)) != {bool}:
        raise UnusualListError
    return bytes(values)


def _pack_integer_list(pack_all: Callable[..., bytes], text: bytes) -> bytes:
    if b"e" in text:  # in `true` and `false`, which `struct` would take for 1 and 0
        raise UnusualListError
    return _pack_list(pack_all, text)


def _pack_float_list(pack_all: Callable[..., bytes], text: bytes) -> bytes:
    if b"t" in text or b"f" in text:  # as above
        raise UnusualListError
    return _pack_list(pack_all, text)


def _pack_list(pack_all: Callable[..., bytes], text: bytes) -> bytes:
    try:
        values = orjson.loads(text)
        try:
            return pack_all(*values)
        except StructError:
            return pack_all(*_flat(values))
    except (ValueError, TypeError, StructError, OverflowError) as problem:
        raise UnusualListError from problem


def _flat(values: Any) -> list[Any]:
    if type(values) is not list:
        raise TypeError
    flat: list[Any] = values
    for _ in range(_MAX_NESTED):
        if not flat or type(flat[0]) is not list:
            return flat
        flat = [*chain.from_iterable(flat)]
    raise TypeError


@lru_cache(256)
def list_writer(datatype: Datatype, count: int) -> Callable[[OutputTensor], bytes]:
    """What gives the JSON list of an output of *count* elements, as `from_tensor` with `exact` has it, or raises."""
    code = _CODES.get(datatype)
    if code is None:
        return _write_list
    if count >= _NUMPY_FROM:
        return _write_many_numbers
    return partial(_write_few_numbers, Struct(f"<{count}{code}").unpack)


def _write_few_numbers(unpack: Callable[[Buffer], tuple[Any, ...]], tensor: OutputTensor) -> bytes:
    text = orjson.dumps(unpack(tensor.data))
    return _write_list(tensor) if b"null" in text else text  # where a number is not finite


def _write_many_numbers(tensor: OutputTensor) -> bytes:
    import numpy as np  # imported late: see `protocol.numpy_types`

    from naiad.protocol.numpy_types import NUMPY_TYPES

    text = _dump_array(np.frombuffer(tensor.data, NUMPY_TYPES[tensor.datatype]))
    return _write_list(tensor) if b"null" in text else text  # as above


def _write_list(tensor: OutputTensor) -> bytes:
    return orjson.dumps(from_tensor(tensor, exact=True))


def _dump_array(array: np.ndarray[Any, np.dtype[Any]]) -> bytes:
    import numpy as np  # imported late: see `protocol.numpy_types`

    if array.dtype == np.float32:  # whose own shortest form has fewer digits
        array = array.astype(np.float64)
    return orjson.dumps(array, option=orjson.OPT_SERIALIZE_NUMPY)


def from_tensor(tensor: OutputTensor, *, exact: bool = False) -> list[Any]:
    """The elements of an output as a flat list.

    Args:
        exact: Whether values that JSON cannot express are written as the reference does: invalid UTF-8 as raw bytes
            instead of replacement characters, NaN and Infinity by their names instead of null.
    """
    if tensor.datatype in _WITHOUT_JSON:
        raise InvalidRequestError(
            f"sending {tensor.datatype.name} data via JSON is not supported. Please use the binary data format for "
            f"output {tensor.name}"
        )
    if tensor.datatype is Datatype.BYTES:
        decode = _decode_exact if exact else _decode_lossy
        return [decode(element) for element in split_strings(tensor.data)]
    import numpy as np  # imported late: see `protocol.numpy_types`

    from naiad.protocol.numpy_types import NUMPY_TYPES

    array = np.frombuffer(tensor.data, NUMPY_TYPES[tensor.datatype])
    elements: list[Any] = array.tolist()
    if exact and array.dtype.kind == "f" and not np.isfinite(array).all():
        return [each if isfinite(each) else _NOT_FINITE[str(each)] for each in elements]
    return elements


def _decode_lossy(element: bytes) -> str:
    return element.decode("utf-8", "replace")


def _decode_exact(element: bytes) -> str | orjson.Fragment:
    # As in the reference. Its clients report an error that names binary data, or use the bytes as they are. With
    # replacement characters the result would be wrong without any error.
    try:
        return element.decode()
    except UnicodeDecodeError:
        return orjson.Fragment(b'"%b"' % _escape(element))


def split_strings(data: Buffer) -> Iterator[bytes]:
    """The elements of a BYTES tensor."""
    position, size = 0, len(data)
    while position + 4 <= size:
        elements, position = _split_some(data, position)
        yield from elements


def _split_some(data: Buffer, position: int) -> tuple[list[bytes], int]:
    """The next elements of a BYTES tensor, about a millisecond's worth of them but at least one; and where they end."""
    elements: list[bytes] = []
    size = len(data)
    unpack = _LENGTH.unpack_from
    first = position
    while position + 4 <= size and len(elements) < _SPLIT_COUNT:
        start = position + 4
        end = start + unpack(data, position)[0]
        if end - first > _SPLIT_BYTES and elements:
            break
        elements.append(bytes(data[start:end]))
        position = end
    return elements, position


def is_long(tensors: Sequence[OutputTensor]) -> bool:
    """Whether the JSON of these outputs together would take more than about half a millisecond to make."""
    size = 0
    for tensor in tensors:
        size += len(tensor.data)
    if size < _LONG_COUNT:  # as most are
        return False
    count = 0
    for tensor in tensors:
        length = len(tensor.data)
        element = BYTE_SIZES[tensor.datatype]
        count += length // element if element else min(prod(tensor.shape), length) + length // _BYTES_PER_ELEMENT
    return count >= _LONG_COUNT


def rendered_steps(tensor: OutputTensor, *, exact: bool) -> Generator[None, None, list[bytes]]:
    """The elements of a long output as `from_tensor` has them, without brackets, in steps of a millisecond."""
    data = tensor.data
    pieces: list[bytes] = []
    if tensor.datatype is Datatype.BYTES:
        decode = _decode_exact if exact else _decode_lossy
        position = 0
        while position + 4 <= len(data):
            length = _LENGTH.unpack_from(data, position)[0]
            if length > _SPLIT_BYTES:
                start = position + 4
                position = start + length
                pieces += yield from _rendered_string(memoryview(data)[start:position], exact=exact)
            else:
                elements, position = _split_some(data, position)
                pieces.append(orjson.dumps([decode(element) for element in elements])[1:-1])
                yield
            pieces.append(b",")
    else:
        size = (BYTE_SIZES[tensor.datatype] or 1) * _RENDERED_COUNT
        for first in range(0, len(data), size):
            pieces += (_rendered_numbers(replace(tensor, data=data[first : first + size]), exact=exact), b",")
            yield
    return pieces[:-1]


def _rendered_string(element: memoryview, *, exact: bool) -> Generator[None, None, list[bytes]]:
    """A long element as a JSON string, as `_decode_exact` or `_decode_lossy` gives it."""
    starts = range(0, len(element), _SPLIT_BYTES)
    decoder = codecs.getincrementaldecoder("utf-8")("strict" if exact else "replace")
    parts = [b'"']
    try:
        for start in starts:
            text = decoder.decode(element[start : start + _SPLIT_BYTES], start == starts[-1])
            parts.append(orjson.dumps(text)[1:-1])
            yield
    except UnicodeDecodeError:
        parts = [b'"']
        for start in starts:
            parts.append(_escape(bytes(element[start : start + _SPLIT_BYTES])))
            yield
    return [*parts, b'"']


def _escape(element: bytes) -> bytes:
    return _ESCAPED.sub(lambda found: orjson.dumps(found[0].decode())[1:-1], element)


def _rendered_numbers(tensor: OutputTensor, *, exact: bool) -> bytes:
    if tensor.datatype not in _WITHOUT_JSON:
        import numpy as np  # imported late: see `protocol.numpy_types`

        from naiad.protocol.numpy_types import NUMPY_TYPES

        array = np.frombuffer(tensor.data, NUMPY_TYPES[tensor.datatype])
        if not exact or array.dtype.kind != "f" or np.isfinite(array).all():
            return _dump_array(array)[1:-1]
    return orjson.dumps(from_tensor(tensor, exact=exact))[1:-1]


def _wrong_element(datatype: Datatype) -> MalformedRequestError:
    return MalformedRequestError(f"Unable to parse 'data': attempt to access JSON {_expected(datatype)}")


def _fits(array: np.ndarray[Any, np.dtype[Any]], kinds: set[type], datatype: Datatype) -> bool:
    """Whether all elements have a JSON type that *datatype* allows. numpy would convert others without an error."""
    kind = array.dtype.kind
    if kind not in _allowed(datatype):
        return False
    if kind == "b":
        return True
    if datatype in _UNSIGNED and kind == "i" and bool((array < 0).any()):
        return False
    if datatype in _SIGNED and kind == "u":  # numpy chooses unsigned only for integers beyond the largest INT64
        return False
    return bool not in kinds  # numpy turns booleans among numbers into 0 and 1


def _allowed(datatype: Datatype) -> frozenset[str]:
    if datatype is Datatype.BOOL:
        return frozenset("b")
    if datatype in (Datatype.FP32, Datatype.FP64):
        return _NUMBERS
    return _INTEGERS


def _expected(datatype: Datatype) -> str:
    if datatype is Datatype.BOOL:
        return "non-boolean as boolean"
    if datatype in (Datatype.FP32, Datatype.FP64):
        return "non-number as double"
    if datatype.name.startswith("U"):
        return "non-unsigned-integer as unsigned-integer"
    return "non-signed-integer as signed-integer"


def _array(elements: list[Any], kinds: set[type], datatype: Datatype) -> np.ndarray[Any, np.dtype[Any]]:
    import numpy as np  # imported late: see `protocol.numpy_types`

    if str in kinds:
        # numpy would give each element the length of the longest string. It only matters how many there are.
        return np.empty(len(elements), np.str_)
    if kinds == {float}:
        return np.fromiter(elements, np.float64, len(elements))  # in half of the time
    try:
        array = np.array(elements)
    except (ValueError, OverflowError):  # objects, or integers that numpy has no type for
        raise _wrong_element(datatype) from None
    if array.dtype == object:  # null, objects, or integers beyond 64 bits
        raise _wrong_element(datatype)
    # numpy also chooses floats if some integers are beyond the largest INT64.
    if array.dtype.kind == "f" and datatype in _UNSIGNED and all(type(each) is int and each >= 0 for each in elements):
        return np.array(elements, np.uint64)
    return array


def flatten(data: list[Any]) -> Iterator[Any]:
    """The elements of nested lists in order."""
    waiting = [iter(data)]  # not by recursion: JSON may be nested more deeply than calls
    while waiting:
        for item in waiting[-1]:
            if isinstance(item, list):
                waiting.append(iter(item))
                break
            yield item
        else:
            waiting.pop()


def pack_strings(data: list[Any]) -> bytes:
    """The bytes of a BYTES tensor."""
    if len(data) <= _FEW:
        try:
            return pack_chunk(data)
        except (TypeError, UnicodeEncodeError):
            pass  # nested lists, or what only `_pack_singly` reads
    parts = []
    for chunk, _ in _flat_chunks(data):
        try:
            parts.append(pack_chunk(chunk))
        except (TypeError, UnicodeEncodeError):
            parts.append(_pack_singly(chunk))
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _pack_singly(chunk: list[Any]) -> bytes:
    parts: list[bytes] = []
    for item in chunk:
        if not isinstance(item, str):
            raise MalformedRequestError("Unable to parse JSON bytes array: attempt to access JSON non-string as string")
        encoded = item.encode("utf-8", "surrogateescape")
        parts += (len(encoded).to_bytes(4, "little"), encoded)
    return b"".join(parts)


def _flat_chunks(data: list[Any], depth: int = 0) -> Iterator[tuple[list[Any], set[type]]]:
    """The elements of nested lists in order, some thousands at a time with their types; *depth* is that of *data*."""
    for start in range(0, len(data), _CHUNK):
        chunk = data[start : start + _CHUNK] if len(data) > _CHUNK else data
        kinds = set(map(type, chunk))
        if list not in kinds:
            yield chunk, kinds
        elif len(kinds) > 1 or depth == _MAX_NESTED:  # lists beside elements: rare, and invalid in strict readers
            yield from _flat_chunks([*flatten(chunk)])
        else:
            lists = max(_CHUNK * len(chunk) // max(sum(map(len, chunk)), 1), 1)
            for first in range(0, len(chunk), lists):
                yield from _flat_chunks([*chain.from_iterable(chunk[first : first + lists])], depth + 1)
