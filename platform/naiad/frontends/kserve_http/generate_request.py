"""A generate request, one flat JSON object, to an `InferRequest`. Each key is an input of the model or a parameter.

Behaviour and texts: SRV src/http_server.cc, `ConvertGenerateRequest`; SRV docs/protocol/extension_generate.md. As in
the reference, no parameter is reserved: `timeout` and `sequence_id` reach the model like any other.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Container, Mapping
from math import prod
from typing import Any

from naiad.core.errors import InvalidRequestError, MalformedRequestError
from naiad.frontends.kserve_http.infer_request import json_too_long, parse_id
from naiad.frontends.kserve_http.json_document import parse_json
from naiad.frontends.kserve_http.json_tensors import pack_strings, to_bytes
from naiad.protocol.datatypes import BY_NAME, Datatype
from naiad.protocol.inference import Buffer, InferRequest, InputTensor, Parameter
from naiad.protocol.metadata import ModelMetadata, TensorMetadata

_NESTED = "parameters"
_MAX_INT64 = (1 << 63) - 1
_MAX_QUICK_KEYS = 32


def parse_generate(
    body: Buffer, metadata: ModelMetadata, version: int, max_json: int, *, max_objects: int | None = None
) -> InferRequest:
    """Read a generate request; its JSON may have *max_objects*, None for any number."""
    if len(body) > max_json:
        raise json_too_long(len(body), max_json)
    names = {tensor.name for tensor in metadata.inputs}
    document = parse_json(
        body,
        not_an_object="attempt to get members for non-object",
        max_objects=max_objects,
        data=names,
        has_unique_names=True,
    )
    builder = _RequestBuilder(metadata, parse_id(document))
    if may_repeat_keys(body, document):
        check_unique_keys(body, builder.request_id, names)
    for name, value in document.items():
        if name == _NESTED:
            builder.add_nested(value)
        else:
            builder.add(name, value)
    return InferRequest(
        metadata.name, version, list(builder.inputs.values()), builder.request_id, (), builder.parameters
    )


def may_repeat_keys(body: Buffer, document: Mapping[str, Any]) -> bool:
    """Whether a key may occur twice: the parser keeps only the last value. A quick check with false positives."""
    text = bytes(body)
    if b"\\u" in text:  # any character of a key may be written so
        return True
    nested = document.get(_NESTED)
    keys = [*document, *(nested if isinstance(nested, dict) else ())]
    if len(keys) > _MAX_QUICK_KEYS:  # each of them is a search through the whole text
        return True
    return any(text.count(f'"{key}"'.encode()) != 1 for key in keys)


def check_unique_keys(body: Buffer, request_id: str, inputs: Container[str]) -> None:
    """Reject valid JSON with a key twice in one object; for an input, with the text of the reference."""

    def collect(pairs: list[tuple[str, Any]]) -> None:
        seen = set()
        for name, _ in pairs:
            if name in seen:
                prefix = f"[request id: {request_id or '<id_unknown>'}] "
                if name in inputs:
                    raise InvalidRequestError(f"{prefix}input '{name}' already exists in request")
                raise InvalidRequestError(f"{prefix}key '{name}' occurs twice in one object")
            seen.add(name)

    with contextlib.suppress(ValueError):  # it has been read, so errors of `json` are ignored
        json.loads(bytes(body).decode("utf-8", "surrogateescape"), object_pairs_hook=collect)


def deduce_shape(configured: tuple[int, ...], count: int) -> tuple[int, ...] | None:
    """The shape of *count* elements; None if they do not fit *configured*, -1 where variable, the batch included.

    The innermost variable dimension gets what the fixed ones leave, the other variable ones 1.
    """
    fixed = prod(dimension for dimension in configured if dimension != -1)
    rest, excess = divmod(count, fixed) if fixed else (1, count)
    shape = []
    for dimension in reversed(configured):
        if dimension == -1:
            shape.append(rest)
            rest = 1
        else:
            shape.append(dimension)
    return None if excess or rest != 1 else tuple(reversed(shape))


class _RequestBuilder:
    """Collects the inputs and parameters of a request."""

    def __init__(self, metadata: ModelMetadata, request_id: str) -> None:
        self._known = {tensor.name: tensor for tensor in metadata.inputs}
        self.request_id = request_id
        self.inputs: dict[str, InputTensor] = {}
        self.parameters: dict[str, Parameter] = {}

    def add(self, name: str, value: Any) -> None:
        """Add one key: as an input if the model has one of that name, else as a parameter. `id` is a parameter, too."""
        known = self._known.get(name)
        if known is None:
            self.parameters[name] = _parameter(name, value)
            return
        tensor = _tensor(known, value)
        if name in self.inputs:
            raise InvalidRequestError(
                f"[request id: {self.request_id or '<id_unknown>'}] input '{name}' already exists in request"
            )
        self.inputs[name] = tensor

    def add_nested(self, value: Any) -> None:
        """Add the keys within `parameters`, which mean the same there as outside."""
        if _NESTED in self._known:
            raise InvalidRequestError(f"Keyword '{_NESTED}' for nested schema also given as input tensor name")
        if not isinstance(value, dict):
            raise MalformedRequestError(
                f"Expected JSON object for keyword: '{_NESTED}': attempt to access JSON non-object as object"
            )
        try:
            for name, inner in value.items():
                self.add(name, inner)
        except InvalidRequestError as problem:
            raise InvalidRequestError(
                f"Converting keyword: '{_NESTED}': {problem.message}", code=problem.code
            ) from None


def _parameter(name: str, value: Any) -> Parameter:
    if isinstance(value, int) and not isinstance(value, bool) and value > _MAX_INT64:
        return float(value)  # as the reference's JSON reader does
    if isinstance(value, bool | int | float | str):
        return value
    raise InvalidRequestError(f"parameter '{name}' has invalid type. It should be either 'int', 'bool', or 'string'.")


def _tensor(known: TensorMetadata, value: Any) -> InputTensor:
    datatype = BY_NAME[known.datatype]
    items = value if isinstance(value, list) else [value]
    packed = pack_strings(items) if datatype is Datatype.BYTES else None
    # As in the reference, only the outermost of nested arrays is counted. `to_bytes` checks the number of elements.
    shape = deduce_shape(known.shape, len(items))
    if shape is None:
        raise InvalidRequestError(f"The schema can not convert input '{known.name}' to tensor with proper shape")
    if packed is None:
        packed = to_bytes(known.name, datatype, shape, items)
    return InputTensor(known.name, datatype, shape, packed)
