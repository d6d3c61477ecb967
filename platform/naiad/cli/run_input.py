"""The request of `naiad run`: from the JSON of an inference request, or from `--input name=value` for each input.

A value becomes bytes here, as in a binary tensor of HTTP, not the JSON of a request: KServe's JSON has neither FP16 nor
BF16, neither NaN nor strings that are not text.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import orjson

from naiad.core.errors import InvalidRequestError
from naiad.frontends.kserve_http.infer_request import parse_infer
from naiad.frontends.kserve_http.json_document import parse_json
from naiad.frontends.kserve_http.json_tensors import flatten
from naiad.protocol.datatypes import BY_NAME, Datatype
from naiad.protocol.inference import InferRequest, InputTensor
from naiad.protocol.metadata import ModelMetadata, TensorMetadata
from naiad.protocol.numpy_types import NUMPY_TYPES

_Array: TypeAlias = np.ndarray[Any, Any]

_LARGEST_TENSOR_BYTES = 1 << 40  # effectively no limit: the caller's own input is not hostile
_STDIN = "-"
_MOST_EXAMPLE_ELEMENTS = 16
_EXAMPLES: Mapping[str, object] = {"BYTES": "text", "BOOL": True}
_SHOWN_CHARACTERS = 60  # how much of a wrong value an error repeats


_SHOWN = 80


def read_request(inputs: Sequence[str], metadata: ModelMetadata) -> InferRequest:
    """The request that the texts of `--input` describe; InvalidRequestError for another form, or another model's.

    Each is a file with the JSON of `POST /v2/models/M/infer`, `-` for standard input, or `name=value`, where the value
    is JSON, text or `@file.npy`. The JSON may be `{"inputs": {"name": value}}`, too; types and shapes are then those of
    the model.
    """
    document: dict[str, Any] = {}
    values: dict[str, Any] = {}
    for text in inputs:
        name, equals, value = text.partition("=")
        # The name of an existing file may contain "=".
        if equals and not _is_file(text):
            values[name] = _parse_value(value)
        else:
            document.update(_read_document(text))
    given = document.get("inputs")
    if isinstance(given, Mapping):
        values = {**given, **values}
        document["inputs"] = []
    if not isinstance(document.setdefault("inputs", []), list):
        raise InvalidRequestError("'inputs' must be a list of tensors, or an object with a value for each input name")
    request, _ = parse_infer(orjson.dumps(document), None, metadata.name, -1, _LARGEST_TENSOR_BYTES)
    request.inputs = [*request.inputs, *(_named_input(name, value, metadata) for name, value in values.items())]
    return request


def sequence_id_type(config: Mapping[str, Any]) -> type[int | str] | None:
    """The type of the sequence ids that a model takes, from its configuration in JSON; None without sequences."""
    if "sequence_batching" not in config:
        return None
    is_text = any(
        (control.get("kind"), control.get("data_type")) == ("CONTROL_SEQUENCE_CORRID", "TYPE_STRING")
        for tensor in config["sequence_batching"].get("control_input", ())
        for control in tensor.get("control", ())
    )
    return str if is_text else int


def _is_file(text: str) -> bool:
    try:
        return Path(text).exists()
    except (OSError, ValueError):  # longer than a file's name may be, or with a NUL
        return False


def example_of(tensor: TensorMetadata) -> str:
    """A text of `--input` for a tensor: zeros, or `text`; the name of a file where that would be long."""
    shape = [max(size, 1) for size in tensor.shape]
    count = math.prod(shape)
    if count > _MOST_EXAMPLE_ELEMENTS:
        return f"{tensor.name}=@{tensor.name}.npy"
    value: Any = _EXAMPLES.get(tensor.datatype, 0)
    for size in reversed(shape):
        value = [value] * size
    return f"{tensor.name}={orjson.dumps(value).decode()}"


def _read_document(source: str) -> dict[str, Any]:
    try:
        content = sys.stdin.buffer.read() if source == _STDIN else Path(source).read_bytes()
    except (OSError, ValueError) as error:
        shown = source if len(source) <= _SHOWN else f"{source[:_SHOWN]}..."
        why = error.strerror if isinstance(error, OSError) else error
        raise InvalidRequestError(
            f"cannot read --input={shown}: {why or error}; give a JSON file, - for standard input, or name=value"
        ) from error
    return parse_json(content)


def _parse_value(text: str) -> Any:
    if text.startswith("@"):
        try:
            return np.load(text[1:], allow_pickle=False)
        except (OSError, ValueError) as error:
            raise InvalidRequestError(f"cannot read '{text[1:]}' as a numpy array: {error}") from error
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text


def _named_input(name: str, value: Any, metadata: ModelMetadata) -> InputTensor:
    by_name = {tensor.name: tensor for tensor in metadata.inputs}
    tensor = by_name.get(name)
    if tensor is None:
        raise InvalidRequestError(
            f"model '{metadata.name}' has no input '{name}'; its inputs are: {', '.join(by_name) or 'none'}"
        )
    try:
        return input_tensor(tensor, value)
    except InvalidRequestError as error:
        if not isinstance(value, str):
            raise
        raise InvalidRequestError(
            f"{error.message}: a value is JSON, for example --input '{example_of(tensor)}'"
        ) from error


# -- from a value to a tensor -----------------------------------------------------------------------------------------


def input_tensor(wanted: TensorMetadata, value: Any) -> InputTensor:
    """An array or JSON value as an input, missing leading dimensions as 1; InvalidRequestError if it does not fit."""
    shape = list(value.shape) if isinstance(value, np.ndarray) else _list_shape(wanted.name, value)
    shape = [1] * max(0, len(wanted.shape) - len(shape)) + shape
    datatype = BY_NAME[wanted.datatype]
    return InputTensor(wanted.name, datatype, tuple(shape), _encode(wanted.name, datatype, value))


def _list_shape(name: str, value: Any) -> list[int]:
    if not isinstance(value, list):
        return []
    shapes = [_list_shape(name, item) for item in value]
    if any(shape != shapes[0] for shape in shapes):
        raise InvalidRequestError(f"input '{name}': lists within a list must be of the same length")
    return [len(value), *(shapes[0] if shapes else [])]


def _encode(name: str, datatype: Datatype, value: Any) -> bytes:
    """The tensor's bytes, little-endian in C order."""
    if datatype is Datatype.BYTES:
        items = value.ravel().tolist() if isinstance(value, np.ndarray) else _elements(value)
        return b"".join(len(item).to_bytes(4, "little") + item for item in map(_encode_string, items))
    array = value.ravel() if isinstance(value, np.ndarray) else _numbers(name, datatype, _elements(value))
    if array.dtype.kind not in _accepted_kinds(datatype):
        raise _mismatch(name, datatype, f"an array of {array.dtype}")
    _require_range(name, datatype, array)
    if datatype is Datatype.BF16:
        return _encode_bf16(array)
    with np.errstate(over="ignore"):
        return array.astype(NUMPY_TYPES[datatype]).tobytes()


def _elements(value: Any) -> list[Any]:
    return list(flatten(value)) if isinstance(value, list) else [value]


def _encode_string(item: Any) -> bytes:
    return item if isinstance(item, bytes) else str(item).encode("utf-8", "surrogatepass")


def _numbers(name: str, datatype: Datatype, items: list[Any]) -> _Array:
    """JSON values as an array; each item's type is checked, because numpy converts booleans to numbers."""
    accepted: tuple[type, ...] = (
        (bool,) if datatype is Datatype.BOOL else (int, float) if _is_float(datatype) else (int,)
    )
    for item in items:
        if not isinstance(item, accepted) or (isinstance(item, bool) and datatype is not Datatype.BOOL):
            raise _mismatch(name, datatype, repr(item))
    if _is_float(datatype):
        return np.array(items, "<f8")
    if datatype is Datatype.BOOL:
        return np.array(items, np.bool_)
    try:
        # No integer type holds both the largest UINT64 and negative numbers.
        return np.array(items, np.uint64 if min(items, default=0) >= 0 else np.int64)
    except OverflowError:
        raise _mismatch(name, datatype, str(max(items, key=abs))) from None


def _require_range(name: str, datatype: Datatype, array: _Array) -> None:
    """Reject integers that do not fit the datatype; `astype` would silently wrap them."""
    if datatype is Datatype.BOOL or _is_float(datatype) or not array.size:
        return
    bounds = np.iinfo(NUMPY_TYPES[datatype].name)
    for number in (int(array.min()), int(array.max())):
        if not bounds.min <= number <= bounds.max:
            raise _mismatch(name, datatype, str(number))


def _encode_bf16(array: _Array) -> bytes:
    """The upper halves of FP32 values, rounded to nearest, ties to even."""
    with np.errstate(over="ignore"):
        single = array.astype("<f4")
    bits = single.view("<u4").astype("<u8")
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    # Rounding can carry a NaN's mantissa into infinity, so NaN is written as the canonical quiet NaN.
    return np.where(np.isnan(single), 0x7FC0, rounded).astype("<u2").tobytes()


def _is_float(datatype: Datatype) -> bool:
    return datatype in (Datatype.FP16, Datatype.BF16, Datatype.FP32, Datatype.FP64)


def _accepted_kinds(datatype: Datatype) -> str:
    """The kinds of numpy dtypes (`dtype.kind`) that an array for this datatype may have."""
    if datatype is Datatype.BOOL:
        return "b"
    return "iuf" if _is_float(datatype) else "iu"


def _mismatch(name: str, datatype: Datatype, found: str) -> InvalidRequestError:
    shown = found if len(found) <= _SHOWN_CHARACTERS else f"{found[:_SHOWN_CHARACTERS]}..."
    return InvalidRequestError(f"input '{name}' takes {datatype.name}, not {shown}")
