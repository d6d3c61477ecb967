"""Inference messages to and from the engine's values. Pure functions, which know nothing of the transport.

Order of checks and texts are the reference's (SRV src/grpc/infer_handler.cc); what needs the model's metadata (names,
shapes, sizes) is the engine's to check.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError

from naiad.errors import Code, InvalidRequestError, NaiadError
from naiad.frontends.kserve_grpc import contents, outputs, parameters
from naiad.frontends.kserve_grpc import wire_format as framing
from naiad.frontends.kserve_grpc.service_pb2 import (
    ModelInferRequest,
    ModelInferResponse,
    ModelStreamInferResponse,
)
from naiad.frontends.regions import ClientRegions
from naiad.frontends.requested_outputs import RequestedOutputs
from naiad.protocol.datatypes import BY_NAME, Datatype
from naiad.protocol.inference import Buffer, InferRequest, InferResponse, InputTensor
from naiad.protocol.model_names import LATEST

MAX_MESSAGE_SIZE = 2**31 - 1
"""gRPC's own limit, and the reference's."""

NO_REGIONS = ClientRegions()

_CUT_RAW_FROM = 64 * 1024
"""Messages from this size have their raw tensors cut out before protobuf sees them; for smaller ones a walk over the
fields in Python costs more than protobuf's two copies."""

RAW_INPUTS = ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER
RAW_OUTPUTS = ModelInferResponse.RAW_OUTPUT_CONTENTS_FIELD_NUMBER
_STREAMED_RESPONSE = ModelStreamInferResponse.INFER_RESPONSE_FIELD_NUMBER

_INTEGER = re.compile(r"\s*[+-]?[0-9]+\s*")
_INT64_MAX = 2**63 - 1

_DATATYPE_NAMES = tuple("" if datatype is Datatype.INVALID else datatype.name for datatype in Datatype)


@dataclass(slots=True)
class InferMessage:
    """A parsed `ModelInferRequest`.

    Attributes:
        body: The message, without the raw contents where these were cut out.
        raw: The raw contents, in order.
    """

    body: ModelInferRequest
    raw: Any


def parse(data: bytes | bytearray) -> InferMessage:
    """Parse the bytes of a `ModelInferRequest`."""
    try:
        if len(data) < _CUT_RAW_FROM:
            body = ModelInferRequest.FromString(bytes(data))
            return InferMessage(body, body.raw_input_contents)
        head, raw = framing.cut_out(data, RAW_INPUTS)
        return InferMessage(ModelInferRequest.FromString(head), raw)
    except (DecodeError, framing.FramingError) as error:
        raise NaiadError("Unable to parse request", code=Code.INTERNAL) from error


def parse_version(text: str) -> int:
    """The number of a version as clients write it; empty means `LATEST`."""
    if not text:
        return LATEST
    version = int(text) if _INTEGER.fullmatch(text) else None
    if version is None or version > _INT64_MAX:
        raise InvalidRequestError(
            f"failed to get model version from specified version string '{text}' (details: stol), "
            "version should be an integral value > 0"
        )
    if version < 0:
        raise InvalidRequestError(f"invalid model version specified '{text}' , version should be an integral value > 0")
    return version


def decode_request(
    message: InferMessage, version: int, regions: ClientRegions = NO_REGIONS
) -> tuple[InferRequest, bool, RequestedOutputs | None]:
    """The engine's request, whether a stream shall end with an empty final response, and outputs in a special form."""
    body = message.body
    request = InferRequest(
        model_name=body.model_name,
        model_version=version,
        inputs=(),
        request_id=body.id,
    )
    enable_empty_final = False
    if body.parameters:
        decoded = parameters.decode(body.parameters)
        request.parameters = decoded.for_model
        request.correlation_id = decoded.correlation_id
        request.flags = decoded.flags
        request.priority = decoded.priority
        request.timeout_us = decoded.timeout_us
        enable_empty_final = decoded.enable_empty_final
    request.inputs = _decode_inputs(body, message.raw, regions)
    requested = None
    if body.outputs:
        request.requested_outputs, requested = outputs.decode(body, regions)
    return request, enable_empty_final, requested


def _decode_inputs(body: ModelInferRequest, raw: Any, regions: ClientRegions) -> list[InputTensor]:
    inputs: list[InputTensor] = []
    raw_count = len(raw)
    next_raw = 0
    for tensor in body.inputs:
        region = outputs.region_of(tensor.name, tensor.parameters) if tensor.parameters else None
        datatype = BY_NAME.get(tensor.datatype, Datatype.INVALID)
        data: Buffer
        if region is not None:
            if tensor.HasField("contents"):
                raise InvalidRequestError(
                    f"unexpected 'content' provided when using shared memory for input tensor '{tensor.name}' for "
                    f"model '{body.model_name}'"
                )
            data = regions.view(*region)
        elif tensor.HasField("contents"):
            if raw_count:
                raise InvalidRequestError(
                    "contents field must not be specified when using raw_input_contents for "
                    f"'{tensor.name}' for model '{body.model_name}'"
                )
            data = contents.to_bytes(tensor.contents, datatype, tensor.name, body.model_name)
        elif next_raw < raw_count:
            data = raw[next_raw]
            next_raw += 1
        else:
            raise InvalidRequestError(
                f"unable to find data for input tensor '{tensor.name}' for model '{body.model_name}' in request."
            )
        inputs.append(InputTensor(tensor.name, datatype, tuple(tensor.shape), data))
    return inputs


def response_parts(response: InferResponse, requested: RequestedOutputs | None = None) -> list[Buffer]:
    """The bytes of a `ModelInferResponse`, tensors as they are; raises the response's error where it is one."""
    if response.error is not None:
        raise response.error
    if requested is not None:
        response = requested.apply(response)
    return _parts(response, final=None)


def encode_streamed(response: InferResponse, requested: RequestedOutputs | None = None, *, final: bool) -> bytes:
    """The bytes of a `ModelStreamInferResponse` with a response in it; raises where the response is an error."""
    if response.error is not None:
        raise response.error
    if requested is not None:
        response = requested.apply(response)
    parts = _parts(response, final=final)
    head = framing.field_head(_STREAMED_RESPONSE, sum(map(framing.size_of, parts)))
    return b"".join([head, *parts])


def _parts(response: InferResponse, *, final: bool | None) -> list[Buffer]:
    head = ModelInferResponse(
        model_name=response.model_name, model_version=str(response.model_version), id=response.request_id
    )
    if response.parameters:
        parameters.encode(response.parameters, head.parameters)
    if final is not None:
        head.parameters[parameters.FINAL_RESPONSE].bool_param = final
    for tensor in response.outputs:
        head.outputs.add(name=tensor.name, datatype=_DATATYPE_NAMES[tensor.datatype], shape=tensor.shape)
    parts = framing.with_field(head.SerializeToString(), RAW_OUTPUTS, [tensor.data for tensor in response.outputs])
    size = sum(map(framing.size_of, parts))
    if size > MAX_MESSAGE_SIZE:
        raise InvalidRequestError(
            f"Response has byte size {size} which exceeds gRPC's byte size limit {MAX_MESSAGE_SIZE}."
        )
    return parts


def encode_stream_error(message: str, request: ModelInferRequest, *, final: bool | None) -> bytes:
    """An error on a stream.

    Args:
        message: What went wrong.
        request: The request it went wrong with.
        final: Whether the request is over with it; None where the request never reached the model, which the
            reference answers with the id alone.
    """
    answer = ModelStreamInferResponse(error_message=message)
    answer.infer_response.id = request.id
    if final is not None:
        _mark(answer.infer_response, request, final=final)
    return answer.SerializeToString()


def encode_empty_final(request: ModelInferRequest) -> bytes:
    """The end mark of a request whose last response is already sent."""
    answer = ModelStreamInferResponse()
    answer.infer_response.id = request.id
    _mark(answer.infer_response, request, final=True)
    return answer.SerializeToString()


def _mark(response: ModelInferResponse, request: ModelInferRequest, *, final: bool) -> None:
    response.model_name = request.model_name
    response.model_version = request.model_version
    response.parameters[parameters.FINAL_RESPONSE].bool_param = final
