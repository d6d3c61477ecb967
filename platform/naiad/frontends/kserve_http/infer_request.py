"""An HTTP inference request to an `InferRequest`: JSON, binary tensors after it, or raw binary alone.

Behaviour and texts: SRV src/http_server.cc; SRV docs/protocol/extension_binary_data.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any, Protocol, cast

from naiad.core.errors import InvalidRequestError, MalformedRequestError
from naiad.frontends.kserve_http.json_document import parse_json
from naiad.frontends.kserve_http.json_members import as_boolean, as_object, as_string, as_unsigned, string_member
from naiad.frontends.kserve_http.json_tensors import to_bytes
from naiad.frontends.kserve_http.response_format import ResponseFormat, parse_outputs, parse_region
from naiad.frontends.regions import ClientRegions, TensorRegions
from naiad.frontends.requested_outputs import RequestedOutputs
from naiad.frontends.tensor_limits import MAX_DIMENSIONS, NO_LIMITS, TensorLimits
from naiad.protocol.datatypes import BY_NAME, BYTE_SIZES, Datatype
from naiad.protocol.inference import SEQUENCE_END, SEQUENCE_START, Buffer, InferRequest, InputTensor, Parameter
from naiad.protocol.metadata import ModelMetadata
from naiad.protocol.numbers import integer


def parse_parameters(parameters: Mapping[str, Any], request: InferRequest) -> bool:
    """Set what the `parameters` object of a request says; return whether outputs not listed are sent as binary."""
    for_model: dict[str, Parameter] = {}
    is_binary = False
    for name, value in parameters.items():
        prefix = f"Unable to parse '{name}': "
        if name == "sequence_id":
            request.correlation_id = value if isinstance(value, str) else as_unsigned(value, prefix)
        elif name == "sequence_start":
            request.flags |= SEQUENCE_START if as_boolean(value, prefix) else 0
        elif name == "sequence_end":
            request.flags |= SEQUENCE_END if as_boolean(value, prefix) else 0
        elif name == "priority":
            request.priority = as_unsigned(value, prefix)
        elif name == "timeout":
            request.timeout_us = as_unsigned(value, prefix)
        elif name == "binary_data_output":
            is_binary = as_boolean(value, prefix)
        elif name.startswith("triton_"):
            raise InvalidRequestError(
                "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified."
            )
        elif isinstance(value, bool | int | float | str):
            for_model[name] = value
        else:
            raise InvalidRequestError(
                f"parameter '{name}' has invalid type. It should be either 'int', 'bool', or 'string'."
            )
    if for_model:
        request.parameters = for_model
    return is_binary


_NO_ID = "[request id: <id_unknown>] "  # of a raw request, which has no id
NO_REGIONS: TensorRegions = ClientRegions()
_ONE_OF = (
    "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
    "'shared_memory_region' in 'parameters'. But "
)


class RequestBody(Protocol):
    """The bytes of a body, or a placeholder in a process that does not have them."""

    def __len__(self) -> int:
        """Number of bytes."""

    def __getitem__(self, part: slice, /) -> Buffer:
        """Some of the bytes."""


def parse_infer(
    body: Buffer,
    header_length: bytes | None,  # value of Inference-Header-Content-Length, None if it was not sent
    model_name: str,
    version: int,
    max_json: int,
    regions: TensorRegions = NO_REGIONS,
) -> tuple[InferRequest, ResponseFormat]:
    """Read a request whose JSON is the whole body or its first *header_length* bytes."""
    json_size = json_length(body, header_length, max_json)
    view = memoryview(body)
    return read_document(parse_json(view[:json_size]), view, json_size, model_name, version, regions)


def json_length(body: Buffer, header_length: bytes | None, max_json: int) -> int:
    """Bytes of JSON at the beginning of a body; the arguments are those of `parse_infer`."""
    size = len(body)
    json_size = size if header_length is None else parse_header_length(header_length, size)
    if json_size > max_json:
        raise json_too_long(json_size, max_json)
    return json_size


def read_document(
    document: Mapping[str, Any],
    body: RequestBody,  # the body: tensors in binary are slices of it
    json_size: int,  # where they begin
    model_name: str,
    version: int,
    regions: TensorRegions,
    limits: TensorLimits = NO_LIMITS,
) -> tuple[InferRequest, ResponseFormat]:
    """Read a request whose JSON has been parsed."""
    if "inputs" not in document and _is_response(document):
        document = {"id": document.get("id", ""), "inputs": document["outputs"]}
    request = InferRequest(model_name, version, ())
    form = ResponseFormat()
    parameters = document.get("parameters")
    if parameters is not None:
        form.binary_by_default = parse_parameters(as_object(parameters, "parameters"), request)
    request.requested_outputs = parse_outputs(document.get("outputs"), form, regions)
    if limits is not NO_LIMITS:
        limits.check_outputs(request.requested_outputs, model_name)
    request.inputs = _parse_inputs(document, body, json_size, model_name, regions, limits)
    if any("shared_memory_region" in entry.get("parameters", {}) for entry in document["inputs"]):
        form.requested = form.requested or RequestedOutputs()
        form.requested.has_region_inputs = True
    request.request_id = parse_id(document)
    return request, form


def _is_response(document: Mapping[str, Any]) -> bool:
    """Whether a request is the response of another model, whose outputs are then this model's inputs.

    KServe's InferenceGraph sends the response of one step unchanged to the next (`data: $response` of a Sequence). The
    reference rejects it, because it has no inputs. Outputs that a request asks for have no data.
    """
    outputs = document.get("outputs")
    return (
        "model_name" in document
        and isinstance(outputs, list)
        and bool(outputs)
        and all(isinstance(output, dict) and "data" in output and "datatype" in output for output in outputs)
    )


def parse_raw(
    body: Buffer, metadata: ModelMetadata, version: int, max_size: int, *, is_batched: bool
) -> tuple[InferRequest, ResponseFormat]:
    """Read a raw binary request: the body is the data of the model's only input, with batch size 1.

    InvalidRequestError if the body is too long, the model has another number of inputs, several dimensions are
    variable, or strings may have several elements.
    """
    if len(body) > max_size:
        raise InvalidRequestError(
            f"raw request size of {len(body)} bytes exceeds the maximum allowed input size of {max_size} bytes. "
            "Use --http-max-input-size to increase the limit."
        )
    if len(metadata.inputs) != 1:
        raise InvalidRequestError(
            f"{_NO_ID}Raw request must only have 1 input (found 1) to be deduced but got "
            f"{len(metadata.inputs)} inputs in '{metadata.name}' model configuration"
        )
    tensor = metadata.inputs[0]
    datatype = BY_NAME[tensor.datatype]
    data: Buffer = body
    if datatype is Datatype.BYTES:
        data = len(body).to_bytes(4, "little") + bytes(body)
    shape = _raw_shape(tensor.name, tensor.shape, len(body), datatype, is_batched=is_batched)
    request = InferRequest(metadata.name, version, [InputTensor(tensor.name, datatype, shape, data)])
    return request, ResponseFormat(binary_by_default=True)


def parse_header_length(value: bytes, size: int) -> int:
    """The number in Inference-Header-Content-Length; InvalidRequestError if it is none, or more than *size*."""
    text = value.decode("latin-1").strip(" \t")
    length = integer(text)
    if length is None:
        raise InvalidRequestError(f"Unable to parse Inference-Header-Content-Length, got: {text}")
    if not 0 <= length <= size:
        raise InvalidRequestError(f"inference header size should be in range (0, {size}), got: {text}")
    return length


def json_too_long(size: int, limit: int) -> InvalidRequestError:
    """The error for JSON of *size* bytes; *limit* bytes are allowed."""
    return InvalidRequestError(
        f"request JSON size of {size} bytes exceeds the maximum allowed input size of {limit} bytes. "
        "Use --http-max-input-size to increase the limit."
    )


def parse_id(document: Mapping[str, Any]) -> str:
    """The client's id of a request; empty without one. Raises MalformedRequestError for one that is not a string."""
    return as_string(document.get("id", ""), "Unable to parse 'id': ")


def _parse_inputs(
    document: Mapping[str, Any],
    body: RequestBody,
    offset: int,
    model_name: str,
    regions: TensorRegions,
    limits: TensorLimits,
) -> list[InputTensor]:
    if "inputs" not in document:
        raise MalformedRequestError("Unable to parse 'inputs': attempt to access non-existing object member 'inputs'")
    inputs = document["inputs"]
    if not isinstance(inputs, list):
        raise MalformedRequestError("Unable to parse 'inputs': attempt to access JSON non-array as array")
    if limits is not NO_LIMITS:
        limits.check_inputs(len(inputs), model_name, document.get("id"))
    tensors = []
    for entry in inputs:
        tensor, offset = _parse_input(as_object(entry, "inputs"), body, offset, model_name, regions)
        tensors.append(tensor)
    if offset != len(body):
        raise InvalidRequestError(f"unexpected additional input data for model '{model_name}'")
    return tensors


def _parse_input(
    entry: Mapping[str, Any], body: RequestBody, offset: int, model_name: str, regions: TensorRegions
) -> tuple[InputTensor, int]:
    parameters = as_object(entry.get("parameters", {}), "parameters")
    size = parameters.get("binary_data_size")
    _check_one_source("data" in entry, size is not None, "shared_memory_region" in parameters)
    name = string_member(entry, "name")
    type_name = string_member(entry, "datatype")
    datatype = BY_NAME.get(type_name)
    shape = _parse_shape(entry)
    if datatype is None:
        raise InvalidRequestError(f"invalid datatype for input {name}")
    if size is None and "data" not in entry:
        # Read before the request is checked (`frontends.region_inputs`).
        part = cast("Buffer", regions.part(*parse_region(parameters, regions)))
        return InputTensor(name, datatype, shape, part), offset
    if size is None:
        return InputTensor(name, datatype, shape, to_bytes(name, datatype, shape, entry["data"])), offset
    end = offset + as_unsigned(size, "Unable to parse 'binary_data_size': ")
    if end > len(body):
        raise InvalidRequestError(
            f"unexpected size for input '{name}', expecting {end - len(body)} additional bytes for model '{model_name}'"
        )
    return InputTensor(name, datatype, shape, body[offset:end]), end


def _check_one_source(*given: bool) -> None:
    if sum(given) == 1:
        return
    names = ("'data'", "'binary_data_size'", "'shared_memory_region'")
    found = [name for name, is_given in zip(names, given, strict=True) if is_given]
    raise InvalidRequestError(_ONE_OF + (f"set {' '.join(found)}" if found else "no field is set"))


def _parse_shape(entry: Mapping[str, Any]) -> tuple[int, ...]:
    if "shape" not in entry:
        raise MalformedRequestError("Unable to parse 'shape': attempt to access non-existing object member 'shape'")
    shape = entry["shape"]
    if not isinstance(shape, list):
        raise MalformedRequestError("Unable to parse 'shape': attempt to access JSON non-array as array")
    if len(shape) > MAX_DIMENSIONS:
        raise InvalidRequestError(
            f"cannot use 'shape': it has {len(shape)} dimensions; at most {MAX_DIMENSIONS} are supported"
        )
    for dimension in shape:
        if type(dimension) is not int or dimension < 0 or dimension >> 63:
            raise MalformedRequestError(
                "Unable to parse 'shape': attempt to access JSON non-unsigned-integer as unsigned-integer"
            )
    return tuple(shape)


def _raw_shape(
    name: str, configured: tuple[int, ...], size: int, datatype: Datatype, *, is_batched: bool
) -> tuple[int, ...]:
    """The shape of a raw input: batch size 1, and at most one variable dimension, computed from the size."""
    batch, shape = ((1,), list(configured[1:])) if is_batched else ((), list(configured))
    if datatype is Datatype.BYTES:
        # Without lengths of strings, a body is one string.
        if shape != [1]:
            raise InvalidRequestError(
                f"{_NO_ID}For BYTE datatype raw input '{name}', the model must have input shape [1]"
            )
        return (*batch, 1)
    variable = [index for index, dimension in enumerate(shape) if dimension == -1]
    if len(variable) > 1:
        raise InvalidRequestError(
            f"{_NO_ID}The shape of the raw input '{name}' can not be deduced because there are more than one "
            "variable-sized dimension"
        )
    for index in variable:
        known = prod(dimension for dimension in shape if dimension != -1)
        shape[index] = size // max(known * BYTE_SIZES[datatype], 1)
    return (*batch, *shape)
