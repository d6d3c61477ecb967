"""The inputs of `naiad run`: the JSON of an inference request, or `name=value` for each input."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from naiad.cli.run_values import input_tensor
from naiad.errors import InvalidRequestError
from naiad.frontends.kserve_http.infer_request import parse_infer, parse_json
from naiad.protocol.inference import InferRequest, InputTensor
from naiad.protocol.metadata import ModelMetadata

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
    request, _ = parse_infer(orjson.dumps(document), None, metadata.name, -1, _NO_LIMIT)
    request.inputs = [*request.inputs, *(_tensor(name, value, metadata) for name, value in short.items())]
    return request


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


def _tensor(name: str, value: Any, metadata: ModelMetadata) -> InputTensor:
    known = {tensor.name: tensor for tensor in metadata.inputs}
    tensor = known.get(name)
    if tensor is None:
        raise InvalidRequestError(
            f"model '{metadata.name}' has no input '{name}'; it has: {', '.join(known) or 'none'}"
        )
    return input_tensor(tensor, value)
