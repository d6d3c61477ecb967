"""The engine's response to the bytes that tritonclient parses."""

from __future__ import annotations

import pytest
from tritonclient.grpc import service_pb2 as wire

from naiad.core.errors import Code, ModelError, NaiadError
from naiad.frontends.kserve_grpc import response_codec as codec
from naiad.frontends.kserve_grpc.service_pb2 import ModelInferRequest
from naiad.protocol.datatypes import Datatype
from naiad.protocol.inference import InferResponse, OutputTensor


def response(**fields):
    outputs = [
        OutputTensor("OUT0", Datatype.FP32, (1, 2), memoryview(bytearray(range(8))).cast("f")),
        OutputTensor("OUT1", Datatype.BYTES, (0,), b""),
        OutputTensor("OUT2", Datatype.BF16, (), b"\x80\x3f"),
    ]
    return InferResponse("m", 12, "id-1", outputs, **fields)


def encoded(answer):
    return b"".join(codec.encode_response(answer))


def test_outputs_and_raw_contents_are_in_the_same_order():
    message = wire.ModelInferResponse.FromString(encoded(response()))

    assert (message.model_name, message.model_version, message.id) == ("m", "12", "id-1")
    assert [(o.name, o.datatype, list(o.shape)) for o in message.outputs] == [
        ("OUT0", "FP32", [1, 2]),
        ("OUT1", "BYTES", [0]),
        ("OUT2", "BF16", []),
    ]
    assert list(message.raw_output_contents) == [bytes(range(8)), b"", b"\x80\x3f"]
    assert not message.parameters


def test_parameters_keep_their_types():
    given = {"b": True, "i": -3, "u": 2**63, "s": "text", "d": 0.25}
    message = wire.ModelInferResponse.FromString(encoded(response(parameters=given)))
    kinds = {key: value.WhichOneof("parameter_choice") for key, value in message.parameters.items()}
    assert kinds == {
        "b": "bool_param",
        "i": "int64_param",
        "u": "uint64_param",
        "s": "string_param",
        "d": "double_param",
    }
    assert {key: getattr(message.parameters[key], kind) for key, kind in kinds.items()} == given


@pytest.mark.parametrize("encode", [codec.encode_response, lambda r: codec.encode_streamed(r, final=True)])
def test_an_error_response_is_raised(encode):
    error = ModelError("no", code=Code.UNAVAILABLE)
    with pytest.raises(ModelError) as caught:
        encode(InferResponse("m", 1, error=error))
    assert (caught.value.message, caught.value.code) == ("no", Code.UNAVAILABLE)


def test_a_response_that_grpc_cannot_carry_is_refused(monkeypatch):
    size = len(encoded(response()))
    monkeypatch.setattr(codec, "MAX_MESSAGE_SIZE", size - 1)
    with pytest.raises(NaiadError) as caught:
        encoded(response())
    assert caught.value.message == f"Response has byte size {size} which exceeds gRPC's byte size limit {size - 1}."
    assert caught.value.code is Code.INVALID_ARG


@pytest.mark.parametrize("final", [True, False])
def test_streamed_responses_say_whether_they_are_the_last(final):
    encoded = codec.encode_streamed(response(parameters={"mine": "x"}), final=final)
    message = wire.ModelStreamInferResponse.FromString(encoded)
    assert message.error_message == ""
    assert message.infer_response.parameters["triton_final_response"].bool_param is final
    assert message.infer_response.parameters["mine"].string_param == "x"
    assert message.infer_response.raw_output_contents[0] == bytes(range(8))


def test_an_empty_final_response_names_the_request_as_the_client_did():
    request = ModelInferRequest(model_name="m", model_version="3", id="q")
    message = wire.ModelStreamInferResponse.FromString(codec.encode_empty_final(request))
    answer = message.infer_response
    assert (answer.model_name, answer.model_version, answer.id, len(answer.outputs)) == ("m", "3", "q", 0)
    assert answer.parameters["triton_final_response"].bool_param


def test_an_error_before_the_model_has_the_id_alone():
    request = ModelInferRequest(model_name="m", id="q")
    message = wire.ModelStreamInferResponse.FromString(codec.encode_stream_error("why", request, final=None))
    assert message == wire.ModelStreamInferResponse(error_message="why", infer_response={"id": "q"})


@pytest.mark.parametrize("final", [True, False])
def test_an_error_of_the_model_names_the_model_and_is_marked(final):
    request = ModelInferRequest(model_name="m", model_version="", id="q")
    message = wire.ModelStreamInferResponse.FromString(codec.encode_stream_error("why", request, final=final))
    assert message.error_message == "why"
    assert (message.infer_response.model_name, message.infer_response.id) == ("m", "q")
    assert message.infer_response.parameters["triton_final_response"].bool_param is final
