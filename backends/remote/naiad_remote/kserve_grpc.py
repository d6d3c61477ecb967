"""KServe v2 over gRPC: messages of tritonclient from requests, and responses from messages."""

from __future__ import annotations

from typing import Any, Dict, Mapping, Union

from google.protobuf.json_format import MessageToDict
from tritonclient.grpc import service_pb2

from naiad_remote import kserve_json
from naiad_remote.wire import Description, Parameter, WireRequest, WireResponse, WireTensor


def encode_request(request: WireRequest, model: str, version: str) -> bytes:
    """A ModelInferRequest."""
    message = service_pb2.ModelInferRequest(model_name=model, model_version=version, id=request.request_id)
    for name, value in request.parameters.items():
        _set_parameter(message.parameters[name], value)
    for tensor in request.inputs:
        message.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        message.raw_input_contents.append(b"".join(tensor.parts))
    for name in request.outputs:
        message.outputs.add(name=name)
    content: bytes = message.SerializeToString()
    return content


def _set_parameter(message: Any, value: Parameter) -> None:
    if isinstance(value, bool):
        message.bool_param = value
    elif isinstance(value, str):
        message.string_param = value
    elif value < 1 << 63:
        message.int64_param = value
    else:
        message.uint64_param = value


def decode_response(message: Any) -> WireResponse:
    """The response in a ModelInferResponse; ValueError if it has not the bytes of each output."""
    if len(message.raw_output_contents) != len(message.outputs):
        raise ValueError(
            f"it has {len(message.outputs)} outputs and the raw contents of {len(message.raw_output_contents)}"
        )
    outputs = []
    for output, data in zip(message.outputs, message.raw_output_contents):
        tensor = WireTensor(output.name, output.datatype, tuple(output.shape), [data])
        tensor.check()
        outputs.append(tensor)
    return WireResponse(outputs, _parameters(message.parameters))


def _parameters(messages: Mapping[str, Any]) -> Dict[str, Parameter]:
    """Those that a response of this server can have."""
    found = ((name, message, message.WhichOneof("parameter_choice")) for name, message in messages.items())
    return {name: getattr(message, kind) for name, message, kind in found if kind and kind != "double_param"}


def decode_stream_response(message: Any) -> Union[str, WireResponse]:
    """The response in a ModelStreamInferResponse, or the text of its error."""
    return message.error_message or decode_response(message.infer_response)


def decode_config(message: Any) -> Description:
    """The interface in a ModelConfigResponse."""
    return kserve_json.describe_config(_document(message.config))


def decode_metadata(message: Any) -> Description:
    """The interface in a ModelMetadataResponse."""
    return kserve_json.describe_metadata(_document(message))


def _document(message: Any) -> Dict[str, Any]:
    """As the same message is in JSON over HTTP."""
    return MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
