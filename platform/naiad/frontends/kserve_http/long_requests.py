"""Requests whose JSON is too long for the event loop, read in an offload process.

Parsing takes up to 0.08 µs for each byte. The functions here run in that process; they return what the same functions
return for short requests. Only the JSON is sent there. Tensors in binary, and regions of shared memory, stay with the
host; `Deferred` objects are their placeholders.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from naiad.core.errors import InvalidRequestError, MalformedRequestError
from naiad.frontends.kserve_http.generate_request import parse_generate
from naiad.frontends.kserve_http.infer_request import read_document
from naiad.frontends.kserve_http.json_document import parse_json
from naiad.frontends.kserve_http.json_structure import MAX_OBJECTS
from naiad.frontends.kserve_http.response_format import ResponseFormat
from naiad.frontends.offload.deferred import DeferredBody, DeferredRegions, check_parameter_count, prepare
from naiad.frontends.offload.messages import long_buffer
from naiad.frontends.tensor_limits import TensorLimits
from naiad.protocol.inference import Buffer, InferRequest
from naiad.protocol.metadata import ModelMetadata

LONG_JSON = 128 << 10  # longer JSON is read in the offload process; up to this it takes less than 10 ms


def read_infer(
    content: memoryview, body_size: int, model_name: str, version: int, limits: TensorLimits
) -> tuple[InferRequest, ResponseFormat]:
    """As `infer_request.parse_infer`; *content* is the JSON that begins the body, which has *body_size* bytes."""
    json_size = len(content)
    document = parse_json(content, max_objects=MAX_OBJECTS)
    content.release()
    request, form = read_document(
        document, DeferredBody(body_size), json_size, model_name, version, DeferredRegions(), limits
    )
    return prepare(request), form


def read_generate(content: memoryview, metadata: ModelMetadata, version: int, max_json: int) -> InferRequest:
    """Read a generate request. See `generate_request.parse_generate`."""
    return prepare(parse_generate(content, metadata, version, max_json, max_objects=MAX_OBJECTS))


def read_load_parameters(content: memoryview) -> Mapping[str, Any]:
    """Read the parameters of a load request. See `load_parameters`; files are long buffers."""
    parameters = load_parameters(content)
    check_parameter_count(len(parameters))
    return {key: value if isinstance(value, str) else long_buffer(value) for key, value in parameters.items()}


def load_parameters(body: Buffer) -> dict[str, str | bytes]:
    """The parameters of a load request: `config` is text, `file:<path>` is base64."""
    parameters = parse_json(body, max_objects=MAX_OBJECTS).get("parameters", {}) if body else {}
    if not isinstance(parameters, dict):
        raise MalformedRequestError("attempt to get members for non-object")
    read: dict[str, str | bytes] = {}
    for key, value in parameters.items():
        if not (key == "config" or key.startswith("file:")):
            raise MalformedRequestError("unexpected error on creating Triton parameter")
        if not isinstance(value, str):
            raise MalformedRequestError("attempt to access JSON non-string as string")
        try:
            read[key] = value if key == "config" else base64.b64decode(value, validate=True)
        except ValueError as problem:
            raise InvalidRequestError(
                f"cannot read load parameter '{key}': it is not base64; encode the file's bytes, with padding and "
                "without line breaks"
            ) from problem
    return read
