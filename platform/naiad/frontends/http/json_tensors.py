"""Tensor data in JSON: nested or flat lists to bytes, and back to flat lists.

Behaviour and texts: SRV src/http_server.cc, `ReadDataFromJson` and `WriteDataToJson`.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING, Any

from naiad.errors import InvalidRequestError, MalformedRequestError
from naiad.protocol.datatypes import Datatype
from naiad.protocol.inference import Buffer, OutputTensor

if TYPE_CHECKING:
    import numpy as np

_WITHOUT_JSON = (Datatype.FP16, Datatype.BF16)
_INTEGERS = frozenset("iu")
_NUMBERS = frozenset("iuf")


def to_bytes(name: str, datatype: Datatype, shape: tuple[int, ...], data: object) -> bytes:
    """The bytes of an input given as JSON.

    Raises:
        InvalidRequestError: For FP16 and BF16.
        MalformedRequestError: For elements of the wrong JSON type, and if their number is not that of *shape*.
    """
    if datatype in _WITHOUT_JSON:
        raise InvalidRequestError(
            f"receiving {datatype.name} data via JSON is not supported. Please use the binary data format for input "
            f"{name}"
        )
    if not isinstance(data, list):
        raise MalformedRequestError("Unable to parse 'data': attempt to access JSON non-array as array")
    if datatype is Datatype.BYTES:
        return _strings(data, prod(shape))
    array = _array(data, datatype)
    if array.size != prod(shape):
        raise _shape_mismatch()
    if array.size and array.dtype.kind not in _allowed(datatype):
        raise wrong_element(datatype)
    import numpy as np  # here: see `protocol.numpy_types`

    from naiad.protocol.numpy_types import NUMPY_TYPES

    with np.errstate(all="ignore"):  # 1e300 is infinite as FP32, and no news for the server's stderr
        return array.astype(NUMPY_TYPES[datatype], casting="unsafe").tobytes()


def from_tensor(tensor: OutputTensor) -> list[Any]:
    """The elements of an output as a flat list.

    Raises:
        InvalidRequestError: For FP16 and BF16.
    """
    if tensor.datatype in _WITHOUT_JSON:
        raise InvalidRequestError(
            f"sending {tensor.datatype.name} data via JSON is not supported. Please use the binary data format for "
            f"output {tensor.name}"
        )
    if tensor.datatype is Datatype.BYTES:
        return [element.decode("utf-8", "replace") for element in split_strings(tensor.data)]
    import numpy as np  # here: see `protocol.numpy_types`

    from naiad.protocol.numpy_types import NUMPY_TYPES

    return np.frombuffer(tensor.data, NUMPY_TYPES[tensor.datatype]).tolist()  # type: ignore[no-any-return]


def split_strings(data: Buffer) -> Iterator[bytes]:
    """Elements of a BYTES tensor."""
    position, size = 0, len(data)
    while position + 4 <= size:
        length = int.from_bytes(data[position : position + 4], "little")
        position += 4
        yield bytes(data[position : position + length])
        position += length


def wrong_element(datatype: Datatype) -> MalformedRequestError:
    """The error for an element that is not what JSON gives for *datatype*."""
    return MalformedRequestError(f"Unable to parse 'data': attempt to access JSON {_expected(datatype)}")


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


def _array(data: list[Any], datatype: Datatype) -> np.ndarray[Any, np.dtype[Any]]:
    import numpy as np  # here: see `protocol.numpy_types`

    try:
        array = np.array(data)
    except (ValueError, OverflowError):  # ragged, or deeper than numpy goes
        array = np.array(list(flatten(data)), dtype=object)
    if array.dtype == object:  # ragged, or integers beyond 64 bits, or null
        flat = list(flatten(data))
        if all(isinstance(item, int) and not isinstance(item, bool) for item in flat):
            # Integers wider than the tensor are silently cut, as the reference does.
            return np.array([item & 0xFFFFFFFFFFFFFFFF for item in flat], dtype=np.uint64)
        raise wrong_element(datatype)
    return array


def flatten(data: list[Any]) -> Iterator[Any]:
    """The elements of nested lists in order."""
    for item in data:
        if isinstance(item, list):
            yield from flatten(item)
        else:
            yield item


def _strings(data: list[Any], expected: int) -> bytes:
    packed, count = pack_strings(data)
    if count != expected:
        raise _shape_mismatch()
    return packed


def pack_strings(data: list[Any]) -> tuple[bytes, int]:
    """The bytes of a BYTES tensor and how many elements they are.

    Raises:
        MalformedRequestError: For elements that are no strings.
    """
    parts = []
    for item in flatten(data):
        if not isinstance(item, str):
            raise MalformedRequestError("Unable to parse JSON bytes array: attempt to access JSON non-string as string")
        encoded = item.encode("utf-8", "surrogatepass")
        parts.append(len(encoded).to_bytes(4, "little"))
        parts.append(encoded)
    return b"".join(parts), len(parts) // 2


def _shape_mismatch() -> MalformedRequestError:
    return MalformedRequestError("Unable to parse 'data': Shape does not match true shape of 'data' field")
