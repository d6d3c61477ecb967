"""Values of `naiad run --input NAME=VALUE`: JSON, text or an array, as the tensor that the model takes.

As bytes and not as JSON of a request: that has neither FP16 nor BF16, neither NaN nor strings that are no text.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from naiad.errors import InvalidRequestError
from naiad.frontends.kserve_http.json_tensors import flatten
from naiad.protocol.datatypes import BY_NAME, Datatype
from naiad.protocol.inference import InputTensor
from naiad.protocol.metadata import TensorMetadata
from naiad.protocol.numpy_types import NUMPY_TYPES

__all__ = ["input_tensor"]

_Array: TypeAlias = np.ndarray[Any, Any]

_SHOWN = 60
"""Characters of a wrong value that an error repeats."""


def input_tensor(wanted: TensorMetadata, value: Any) -> InputTensor:
    """A value as an input; dimensions that it lacks are added in front.

    Args:
        wanted: The model's input.
        value: An array, or what JSON gives.

    Raises:
        InvalidRequestError: If the input does not take it; names both.
    """
    shape = list(value.shape) if isinstance(value, np.ndarray) else _shape(wanted.name, value)
    shape = [1] * max(0, len(wanted.shape) - len(shape)) + shape
    datatype = BY_NAME[wanted.datatype]
    return InputTensor(wanted.name, datatype, tuple(shape), _data(wanted.name, datatype, value))


def _shape(name: str, value: Any) -> list[int]:
    if not isinstance(value, list):
        return []
    shapes = [_shape(name, item) for item in value]
    if any(shape != shapes[0] for shape in shapes):
        raise InvalidRequestError(f"input '{name}': lists within a list must be of the same length")
    return [len(value), *(shapes[0] if shapes else [])]


def _data(name: str, datatype: Datatype, value: Any) -> bytes:
    if datatype is Datatype.BYTES:
        items = value.ravel().tolist() if isinstance(value, np.ndarray) else _items(value)
        return b"".join(len(item).to_bytes(4, "little") + item for item in map(_string, items))
    array = value.ravel() if isinstance(value, np.ndarray) else _numbers(name, datatype, _items(value))
    if array.dtype.kind not in _kinds(datatype):
        raise _wrong(name, datatype, f"an array of {array.dtype}")
    _require_fit(name, datatype, array)
    if datatype is Datatype.BF16:
        return _bf16(array)
    with np.errstate(over="ignore"):
        return array.astype(NUMPY_TYPES[datatype]).tobytes()


def _items(value: Any) -> list[Any]:
    return list(flatten(value)) if isinstance(value, list) else [value]


def _string(item: Any) -> bytes:
    return item if isinstance(item, bytes) else str(item).encode("utf-8", "surrogatepass")


def _numbers(name: str, datatype: Datatype, items: list[Any]) -> _Array:
    """Elements of JSON, each of which must be what the datatype takes: numpy would make numbers of booleans."""
    taken: tuple[type, ...] = (bool,) if datatype is Datatype.BOOL else (int, float) if _is_float(datatype) else (int,)
    for item in items:
        if not isinstance(item, taken) or (isinstance(item, bool) and datatype is not Datatype.BOOL):
            raise _wrong(name, datatype, repr(item))
    if _is_float(datatype):
        return np.array(items, "<f8")
    if datatype is Datatype.BOOL:
        return np.array(items, np.bool_)
    try:
        return np.array(items, np.uint64 if min(items, default=0) >= 0 else np.int64)
    except OverflowError:
        raise _wrong(name, datatype, str(max(items, key=abs))) from None


def _require_fit(name: str, datatype: Datatype, array: _Array) -> None:
    """Refuse numbers that would be cut to the width of an integer."""
    if datatype is Datatype.BOOL or _is_float(datatype) or not array.size:
        return
    bounds = np.iinfo(NUMPY_TYPES[datatype].name)
    for number in (int(array.min()), int(array.max())):
        if not bounds.min <= number <= bounds.max:
            raise _wrong(name, datatype, str(number))


def _bf16(array: _Array) -> bytes:
    """The upper halves of float32, rounded to the nearest, the even one of two."""
    with np.errstate(over="ignore"):
        single = array.astype("<f4")
    bits = single.view("<u4").astype("<u8")
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return np.where(np.isnan(single), 0x7FC0, rounded).astype("<u2").tobytes()


def _is_float(datatype: Datatype) -> bool:
    return datatype in (Datatype.FP16, Datatype.BF16, Datatype.FP32, Datatype.FP64)


def _kinds(datatype: Datatype) -> str:
    if datatype is Datatype.BOOL:
        return "b"
    return "iuf" if _is_float(datatype) else "iu"


def _wrong(name: str, datatype: Datatype, found: str) -> InvalidRequestError:
    shown = found if len(found) <= _SHOWN else f"{found[:_SHOWN]}..."
    return InvalidRequestError(f"input '{name}' takes {datatype.name}, not {shown}")
