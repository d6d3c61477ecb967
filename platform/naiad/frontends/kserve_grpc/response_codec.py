"""Responses: the engine's `InferResponse` to the bytes of response messages. Pure; nothing here knows the transport."""

from __future__ import annotations

from naiad.core.errors import InvalidRequestError, fresh
from naiad.frontends.grpc.messages import MAX_MESSAGE_SIZE
from naiad.frontends.http1.compression import size_of
from naiad.frontends.kserve_grpc import parameters, wire_format
from naiad.frontends.kserve_grpc.service_pb2 import ModelInferRequest, ModelInferResponse, ModelStreamInferResponse
from naiad.frontends.requested_outputs import RequestedOutputs
from naiad.protocol.datatypes import Datatype
from naiad.protocol.inference import Buffer, InferResponse

RAW_OUTPUTS = ModelInferResponse.RAW_OUTPUT_CONTENTS_FIELD_NUMBER
_STREAMED_RESPONSE = ModelStreamInferResponse.INFER_RESPONSE_FIELD_NUMBER

_DATATYPE_NAMES = tuple("" if datatype is Datatype.INVALID else datatype.name for datatype in Datatype)


def encode_response(response: InferResponse, requested: RequestedOutputs | None = None) -> list[Buffer]:
    """The parts of a `ModelInferResponse`; tensors are not copied. Raises the error of a response that is one."""
    if response.error is not None:
        raise fresh(response.error)
    if requested is not None:
        response = requested.apply(response)
    return _parts(response, final=None)


def encode_streamed(response: InferResponse, requested: RequestedOutputs | None = None, *, final: bool) -> bytes:
    """The bytes of a `ModelStreamInferResponse`. Raises the error of a response that is one."""
    if response.error is not None:
        raise fresh(response.error)
    if requested is not None:
        response = requested.apply(response)
    parts = _parts(response, final=final)
    head = wire_format.field_head(_STREAMED_RESPONSE, sum(map(size_of, parts)))
    return b"".join([head, *parts])


def _parts(response: InferResponse, *, final: bool | None) -> list[Buffer]:
    """The parts of a message; *final* is the value of its end mark, None for no mark."""
    head = ModelInferResponse(
        model_name=response.model_name, model_version=str(response.model_version), id=response.request_id
    )
    if response.parameters:
        parameters.encode(response.parameters, head.parameters)
    if final is not None:
        head.parameters[parameters.FINAL_RESPONSE].bool_param = final
    for tensor in response.outputs:
        head.outputs.add(name=tensor.name, datatype=_DATATYPE_NAMES[tensor.datatype], shape=tensor.shape)
    parts = wire_format.with_field(head.SerializeToString(), RAW_OUTPUTS, [tensor.data for tensor in response.outputs])
    size = sum(map(size_of, parts))
    if size > MAX_MESSAGE_SIZE:
        raise InvalidRequestError(
            f"Response has byte size {size} which exceeds gRPC's byte size limit {MAX_MESSAGE_SIZE}."
        )
    return parts


def encode_stream_error(message: str, request: ModelInferRequest, *, final: bool | None) -> bytes:
    """An error on a stream; *final* is None where the request never reached the model: then the id alone is set."""
    response_message = ModelStreamInferResponse(error_message=message)
    response_message.infer_response.id = request.id
    if final is not None:
        _set_final(response_message.infer_response, request, final=final)
    return response_message.SerializeToString()


def encode_empty_final(request: ModelInferRequest) -> bytes:
    """The bytes of a response that only marks the end of a request."""
    response_message = ModelStreamInferResponse()
    response_message.infer_response.id = request.id
    _set_final(response_message.infer_response, request, final=True)
    return response_message.SerializeToString()


def _set_final(response: ModelInferResponse, request: ModelInferRequest, *, final: bool) -> None:
    response.model_name = request.model_name
    response.model_version = request.model_version
    response.parameters[parameters.FINAL_RESPONSE].bool_param = final
