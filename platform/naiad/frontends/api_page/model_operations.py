"""The operations of a loaded model in OpenAPI: its tensors as schemas, and a request to begin with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any
from urllib.parse import quote

from naiad.protocol.datatypes import BY_NAME, Datatype
from naiad.protocol.metadata import ModelMetadata, TensorMetadata

TAG = "loaded models"
_MOST_ELEMENTS = 64  # elements of all inputs together in an example; the page makes longer ones on demand
_FLOATS = frozenset({Datatype.FP16, Datatype.BF16, Datatype.FP32, Datatype.FP64})
_BINARY = frozenset({Datatype.FP16, Datatype.BF16})  # without a form in JSON (KServe v2's extension for binary tensors)
_STRING = {"type": "string"}
_PARAMETERS = {"$ref": "#/components/schemas/Parameters"}
_ANSWERED = {"id": _STRING, "model_name": _STRING, "model_version": _STRING}  # what each response has beside outputs
_SAMPLES = {"boolean": True, "integer": 1, "number": 0.5, "string": "text"}


def model_operations(
    metadata: ModelMetadata, *, max_batch_size: int, is_decoupled: bool
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The paths of a model, each with what can be sent to it as JSON; *max_batch_size* is 0 without batch dimension."""
    place = f"/v2/models/{quote(metadata.name, safe='')}"
    if is_decoupled:
        yield f"{place}/generate_stream", {"post": _generate(metadata, max_batch_size, is_stream=True)}
        return
    yield f"{place}/infer", {"post": _infer(metadata, max_batch_size)}
    if not any(BY_NAME[tensor.datatype] in _BINARY for tensor in metadata.inputs):
        yield f"{place}/generate", {"post": _generate(metadata, max_batch_size, is_stream=False)}


def _operation(
    metadata: ModelMetadata, name: str, summary: str, request: Any, answer: Any, more: Sequence[str]
) -> dict[str, Any]:
    versions = f"Versions {', '.join(metadata.versions)}" if len(metadata.versions) > 1 else ""
    facts = [f"Platform `{metadata.platform}`" if metadata.platform else "", versions, *more]
    return {
        "summary": summary,
        "tags": [TAG],
        "operationId": f"{name} {metadata.name}",
        "description": ". ".join(fact for fact in facts if fact) + ".",
        "requestBody": {"required": True, "content": {"application/json": request}},
        "responses": {
            "200": {"description": "The outputs", "content": answer},
            "default": {"$ref": "#/components/responses/Error"},
        },
    }


def _batch_fact(max_batch_size: int) -> str:
    return (
        f"The first dimension of each tensor is the batch, of at most {max_batch_size} rows" if max_batch_size else ""
    )


# -- infer ------------------------------------------------------------------------------------------------------------


def _infer(metadata: ModelMetadata, max_batch_size: int) -> dict[str, Any]:
    inputs = [_tensor(tensor, is_input=True) for tensor in metadata.inputs]
    schema = {
        "type": "object",
        "required": ["inputs"],
        "properties": {
            "id": _STRING,
            "parameters": _PARAMETERS,
            "inputs": {
                "type": "array",
                "minItems": sum(tensor.required for tensor in metadata.inputs),
                "items": _one_of(inputs),
            },
            "outputs": {
                "type": "array",
                "description": "Outputs to return; all if it is missing",
                "items": _wanted(metadata),
            },
        },
    }
    request: dict[str, Any] = {"schema": schema}
    needed = [tensor for tensor in metadata.inputs if tensor.required]
    if _is_short(needed) and not _needs_binary(metadata):
        request["example"] = {"inputs": [_example(tensor) for tensor in needed]}
    answer = {
        "type": "object",
        "required": ["model_name", "model_version", "outputs"],
        "properties": {
            **_ANSWERED,
            "parameters": _PARAMETERS,
            "outputs": {
                "type": "array",
                "items": _one_of([_tensor(tensor, is_input=False) for tensor in metadata.outputs]),
            },
        },
    }
    binary = "FP16 and BF16 have no form in JSON: send such inputs in binary" if _needs_binary(metadata) else ""
    facts = (_batch_fact(max_batch_size), binary)
    content = {"application/json": {"schema": answer}}
    return _operation(metadata, "infer", f"Infer with {metadata.name}", request, content, facts)


def _needs_binary(metadata: ModelMetadata) -> bool:
    return any(BY_NAME[tensor.datatype] in _BINARY for tensor in metadata.inputs if tensor.required)


def _one_of(schemas: list[dict[str, Any]]) -> dict[str, Any]:
    if len(schemas) == 1:
        return schemas[0]
    return {"oneOf": schemas} if schemas else {}


def _wanted(metadata: ModelMetadata) -> dict[str, Any]:
    names = [tensor.name for tensor in metadata.outputs]
    return {
        "type": "object",
        "required": ["name"],
        "properties": {
            "name": {"type": "string", **({"enum": names} if names else {})},
            "parameters": _PARAMETERS,
        },
    }


def _tensor(tensor: TensorMetadata, *, is_input: bool) -> dict[str, Any]:
    """A tensor in the list of inputs or outputs. Its data may be missing: it may be binary, or in shared memory."""
    dims = tensor.shape
    shape: dict[str, Any] = {"type": "array", "items": {"type": "integer", "minimum": 0}}
    shape |= {"minItems": len(dims), "maxItems": len(dims), "description": f"{list(dims)}; -1 is any size"}
    properties: dict[str, Any] = {
        "name": {"type": "string", "enum": [tensor.name]},
        "datatype": {"type": "string", "enum": [tensor.datatype]},
    }
    if is_input:
        shape["example"] = _sample_shape(tensor)
    properties["shape"] = shape
    datatype = BY_NAME[tensor.datatype]
    if datatype not in _BINARY:
        element = element_schema(datatype)
        items = {"anyOf": [element, {"type": "array", "items": {}}]} if is_input else element
        properties["data"] = {
            "type": "array",
            "description": "Row by row; flat, or nested as the shape",
            "items": items,
        }
    properties["parameters"] = _PARAMETERS
    title = tensor.name if tensor.required or not is_input else f"{tensor.name}, optional"
    return {
        "title": title,
        "type": "object",
        "required": ["name", "datatype", "shape"],
        "properties": properties,
    }


# -- generate ---------------------------------------------------------------------------------------------------------


def _generate(metadata: ModelMetadata, max_batch_size: int, *, is_stream: bool) -> dict[str, Any]:
    required = [tensor for tensor in metadata.inputs if tensor.required]
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {
            "id": _STRING,
            **{tensor.name: _flat(tensor, is_needed=tensor.required) for tensor in metadata.inputs},
            "parameters": {"type": "object"},
        },
        "additionalProperties": True,
    }
    if required:
        schema["required"] = [tensor.name for tensor in required]
    request: dict[str, Any] = {"schema": schema}
    if _is_short(required):
        samples = {tensor.name: _samples(tensor) for tensor in required}
        request["example"] = {name: values[0] if len(values) == 1 else values for name, values in samples.items()}
    answer: dict[str, Any] = {
        "type": "object",
        "properties": {
            **_ANSWERED,
            **{tensor.name: _flat(tensor, is_needed=True) for tensor in metadata.outputs},
        },
    }
    facts = ["Flat JSON: a value for each input, or a list of values row by row", _batch_fact(max_batch_size)]
    if is_stream:
        facts.append("Each response is an event, `data: {...}`, with the outputs by name")
        summary = f"Infer with {metadata.name}; its responses are a stream"
        stream = {"text/event-stream": {"schema": _STRING}}
        return _operation(metadata, "generate_stream", summary, request, stream, facts)
    content = {"application/json": {"schema": answer}}
    return _operation(metadata, "generate", f"Infer with {metadata.name} by flat JSON", request, content, facts)


def _flat(tensor: TensorMetadata, *, is_needed: bool) -> dict[str, Any]:
    """A tensor as a value of flat JSON: its only element, or all in a list."""
    datatype = BY_NAME[tensor.datatype]
    element = {} if datatype in _BINARY else element_schema(datatype)
    return {
        "description": f"{tensor.datatype} {list(tensor.shape)}" + ("" if is_needed else ", optional"),
        "anyOf": [element, {"type": "array", "items": element}],
    }


# -- elements ---------------------------------------------------------------------------------------------------------


def element_schema(datatype: Datatype) -> dict[str, Any]:
    """The JSON schema of one element of a tensor."""
    if datatype is Datatype.BOOL:
        return {"type": "boolean"}
    if datatype is Datatype.BYTES:
        return {"type": "string"}
    if datatype in _FLOATS:
        return {"type": "number"}
    bits = 8 * datatype.byte_size
    low, high = (0, (1 << bits) - 1) if datatype.name.startswith("U") else (-(1 << bits - 1), (1 << bits - 1) - 1)
    return {"type": "integer", "minimum": low, "maximum": high}


def _sample_shape(tensor: TensorMetadata) -> list[int]:
    return [1 if dim < 0 else dim for dim in tensor.shape]


def _is_short(tensors: Sequence[TensorMetadata]) -> bool:
    return sum(prod(_sample_shape(tensor)) for tensor in tensors) <= _MOST_ELEMENTS


def _samples(tensor: TensorMetadata) -> list[Any]:
    return [_SAMPLES[element_schema(BY_NAME[tensor.datatype])["type"]]] * prod(_sample_shape(tensor))


def _example(tensor: TensorMetadata) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "datatype": tensor.datatype,
        "shape": _sample_shape(tensor),
        "data": _samples(tensor),
    }
