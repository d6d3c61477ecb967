"""The inputs of `naiad run`: the JSON of an inference request, or `name=value` for each input."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from naiad.errors import InvalidRequestError
from naiad.frontends.http.infer_request import parse_infer, parse_json
from naiad.frontends.http.json_tensors import flatten
from naiad.protocol.datatypes import BY_NAME
from naiad.protocol.inference import InferRequest
from naiad.protocol.metadata import ModelMetadata, TensorMetadata

__all__ = ["read_request"]

_NO_LIMIT = 1 << 40
_STDIN = "-"


def read_request(inputs: Sequence[str], metadata: ModelMetadata) -> InferRequest:
    """The request that some uses of `--input` describe.

    Each is a file with the JSON of `POST /v2/models/M/infer`, `-` for standard input, or `name=value`: JSON, text, or
    `@file.npy`. The JSON may give `{"inputs": {"name": value}}`, too; types and shapes are then the model's.

    Raises:
        InvalidRequestError: If it is none of these, or does not fit.
    """
    document: dict[str, Any] = {}
    short: dict[str, Any] = {}
    for text in inputs:
        name, equals, value = text.partition("=")
        if equals and not Path(text).exists():
            short[name] = _value(value)
        else:
            document.update(_document(text))
    given = document.get("inputs")
    if isinstance(given, Mapping):
        short = {**given, **short}
        document["inputs"] = []
    if not isinstance(document.setdefault("inputs", []), list):
        raise InvalidRequestError("'inputs' must be a list of tensors, or an object of values by their names")
    document["inputs"] += [_tensor(name, value, metadata) for name, value in short.items()]
    return parse_infer(orjson.dumps(document), None, metadata.name, -1, _NO_LIMIT)[0]


def _document(source: str) -> dict[str, Any]:
    try:
        content = sys.stdin.buffer.read() if source == _STDIN else Path(source).read_bytes()
    except OSError as error:
        raise InvalidRequestError(
            f"--input={source}: cannot be read: {error.strerror or error}. Give a file of JSON, - for standard input, "
            "or name=value"
        ) from error
    return parse_json(content)


def _value(text: str) -> Any:
    if text.startswith("@"):
        try:
            return np.load(text[1:], allow_pickle=False)
        except (OSError, ValueError) as error:
            raise InvalidRequestError(f"'{text[1:]}' cannot be read as an array of numpy: {error}") from error
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text


def _tensor(name: str, value: Any, metadata: ModelMetadata) -> dict[str, Any]:
    """The JSON of one input whose datatype is the model's."""
    known = {tensor.name: tensor for tensor in metadata.inputs}
    tensor = known.get(name)
    if tensor is None:
        raise InvalidRequestError(
            f"model '{metadata.name}' has no input '{name}'; it has: {', '.join(known) or 'none'}"
        )
    if isinstance(value, np.ndarray):
        shape, data = list(value.shape), _elements(value)
    else:
        shape = _shape(value)
        data = list(flatten(value)) if isinstance(value, list) else [value]
    return {
        "name": name,
        "datatype": tensor.datatype,
        "shape": _fitted(shape, tensor),
        "data": [str(item) for item in data] if tensor.datatype == "BYTES" else _numbers(data, tensor),
    }


def _elements(array: np.ndarray[Any, Any]) -> list[Any]:
    flat: list[Any] = array.ravel().tolist()
    return [item.decode("utf-8", "replace") if isinstance(item, bytes) else item for item in flat]


def _numbers(data: list[Any], tensor: TensorMetadata) -> list[Any]:
    """Elements as JSON has them for the datatype: a whole number will do for a float."""
    numpy_type = BY_NAME[tensor.datatype].numpy if tensor.datatype in BY_NAME else None
    if numpy_type is None or numpy_type.kind != "f":
        return data
    return [float(item) if isinstance(item, int) and not isinstance(item, bool) else item for item in data]


def _shape(value: Any) -> list[int]:
    shape = []
    while isinstance(value, list):
        shape.append(len(value))
        value = value[0] if value else None
    return shape


def _fitted(shape: list[int], tensor: TensorMetadata) -> list[int]:
    """The shape with a batch dimension or more in front where the model wants more dimensions than were given."""
    return [1] * max(0, len(tensor.shape) - len(shape)) + shape
