"""ModelInfer with the real clients over a real socket."""

from __future__ import annotations

import asyncio
import contextlib
import queue

import grpc
import ml_dtypes
import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from support.client_inputs import input_of
from support.waiting import until
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

from naiad.core.errors import ModelError
from naiad.protocol.inference import InferResponse


def add_sub_inputs(module=triton):
    first, second = np.array([[1, 2, 3, 4]], np.float32), np.array([[4, 3, 2, 1]], np.float32)
    inputs = [module.InferInput("INPUT0", first.shape, "FP32"), module.InferInput("INPUT1", second.shape, "FP32")]
    inputs[0].set_data_from_numpy(first)
    inputs[1].set_data_from_numpy(second)
    return inputs


def identity_input(array, datatype):
    tensor = triton.InferInput("INPUT0", array.shape, datatype)
    tensor.set_data_from_numpy(array)
    return [tensor]


ONE = identity_input(np.zeros(1, np.float32), "FP32")


def test_outputs_come_back_with_model_version_and_id(client):
    result = client.infer("add_sub", add_sub_inputs(), request_id="seven", model_version="1")

    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), [[5, 5, 5, 5]])
    np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), [[-3, -1, 1, 3]])
    response = result.get_response()
    assert (response.model_name, response.model_version, response.id) == ("add_sub", "1", "seven")


@pytest.mark.parametrize(
    ("array", "datatype"),
    [
        (np.array([True, False]), "BOOL"),
        (np.array([[1], [255]], np.uint8), "UINT8"),
        (np.array([-5], np.int64), "INT64"),
        (np.array([0.5, -2], np.float16), "FP16"),
        (np.zeros((0, 3), np.float32), "FP32"),
        (np.array(["", "naïve", "x" * 70_000], np.object_), "BYTES"),
        (np.array([1.5, -0.25], ml_dtypes.bfloat16), "BF16"),
    ],
)
def test_datatypes_go_through_unchanged(client, array, datatype):
    result = client.infer("identity", identity_input(array, datatype))
    back = result.as_numpy("OUTPUT0")
    expected = [text.encode() for text in array] if datatype == "BYTES" else array
    np.testing.assert_array_equal(back, expected)  # tritonclient gives BF16 as FP32
    assert back.shape == array.shape


def test_tensors_far_beyond_grpcs_default_limit_of_4_mb_go_through(client):
    array = np.arange(6_000_000, dtype=np.float32)
    np.testing.assert_array_equal(client.infer("identity", identity_input(array, "FP32")).as_numpy("OUTPUT0"), array)


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_long_tensor_is_read_to_the_memory_of_its_model(client, served, is_streamed):
    """The first one of a connection once an eighth of it has arrived, the others from their beginning on."""
    found = queue.Queue()
    if is_streamed:
        client.start_stream(lambda result, error: found.put((result, error)))
    for number in range(3):
        array = np.full(1_000_000, number, np.float32)
        if is_streamed:
            client.async_stream_infer("identity", identity_input(array, "FP32"), model_version="1")
            result, error = found.get(timeout=30)
            assert error is None
        else:
            result = client.infer("identity", identity_input(array, "FP32"), model_version="1")
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), array)
        (version, size, ahead, memory) = served.engine.places[number]
        data = served.engine.requests[number].inputs[0].data
        assert data.obj is memory() is not None
        assert (version, size) == (1, ahead + array.nbytes)
        del data
    served.engine.requests.clear()
    if is_streamed:
        client.stop_stream()
    until(lambda: all(memory() is None for *_, memory in served.engine.places), "all places to be free")


def test_a_request_whose_tensors_have_to_be_laid_out_has_no_place(client, served):
    first = np.zeros((1, 500_000), np.float32)
    inputs = [triton.InferInput(name, first.shape, "FP32") for name in ("INPUT0", "INPUT1")]
    for tensor in inputs:
        tensor.set_data_from_numpy(first)
    with contextlib.suppress(InferenceServerException):  # the model's tensors have four elements
        client.infer("add_sub", inputs)
    assert served.engine.places == []


def test_raw_contents_before_other_fields_are_read_like_any(served):
    array = np.arange(300_000, dtype=np.float32)
    tensor = service_pb2.ModelInferRequest.InferInputTensor(name="INPUT0", datatype="FP32", shape=[len(array)])
    content = service_pb2.ModelInferRequest(raw_input_contents=[array.tobytes()]).SerializeToString()
    content += service_pb2.ModelInferRequest(model_name="identity", inputs=[tensor]).SerializeToString()
    with grpc.insecure_channel(served.url) as channel:
        call = channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            response_deserializer=service_pb2.ModelInferResponse.FromString,
        )
        for _ in range(2):
            response = call(content)
            assert response.raw_output_contents == [array.tobytes()]
    assert served.engine.places == []


def test_a_long_request_to_an_unknown_model_gets_the_usual_error(client, served):
    for _ in range(2):
        with pytest.raises(InferenceServerException, match="unknown model: 'none' is not found"):
            client.infer("none", identity_input(np.zeros(1_000_000, np.float32), "FP32"))
    assert served.engine.places == []


def test_a_long_request_that_the_client_gives_up_frees_its_place(served):
    """Half of a message, after a whole one, and the end of the connection."""
    array = np.zeros(1_000_000, np.float32)
    with triton.InferenceServerClient(served.url) as client:
        client.infer("identity", identity_input(array, "FP32"))
        with pytest.raises(InferenceServerException):
            client.infer("identity", identity_input(np.zeros(40_000_000, np.float32), "FP32"), client_timeout=0.001)
    served.engine.requests.clear()
    until(lambda: all(memory() is None for *_, memory in served.engine.places), "all places to be free")


def test_a_response_of_a_later_turn_of_the_loop_arrives(client):
    result = client.infer("later", identity_input(np.array([7], np.float32), "FP32"))
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), [7])


NO_VERSION = (
    "failed to get model version from specified version string 'two' (details: stol), "
    "version should be an integral value > 0"
)
FAILED = "Failed to process the request(s)"


@pytest.mark.parametrize(
    ("model", "version", "status", "text"),
    [
        ("nope", "", "NOT_FOUND", "Request for unknown model: 'nope' is not found"),
        ("identity", "2", "NOT_FOUND", "Request for unknown model: 'identity' version 2 is not found"),
        ("identity", "two", "INVALID_ARGUMENT", NO_VERSION),
        ("repeat", "", "UNIMPLEMENTED", "ModelInfer RPC doesn't support models with decoupled transaction policy"),
        ("add_sub", "", "INVALID_ARGUMENT", "missing required input 'INPUT1' for model 'add_sub'"),
        ("failing", "", "INTERNAL", f"{FAILED} for model 'failing_0', message: ValueError: no luck"),
    ],
)
def test_errors_have_the_status_and_text_of_their_cause(client, model, version, status, text):
    with pytest.raises(InferenceServerException) as caught:
        client.infer(model, ONE, model_version=version)
    assert caught.value.status() == f"StatusCode.{status}"
    assert caught.value.message() == text


def test_a_long_error_arrives_with_its_beginning_and_its_end(client, served):
    """Uncut, a traceback would exceed the client's limit on headers and arrive as RESOURCE_EXHAUSTED."""
    text = "Failed\n" + "  File ünïcödé, line\n" * 2000 + "ValueError: the reason"
    served.engine.models["failing"].answer = refusal(text)
    with pytest.raises(InferenceServerException) as caught:
        client.infer("failing", ONE)
    assert caught.value.status() == "StatusCode.INTERNAL"
    assert caught.value.message().startswith("Failed\n  File ünïcödé")
    assert caught.value.message().endswith("ValueError: the reason")
    assert " [...] " in caught.value.message()


def refusal(text):
    def answer(_engine, _request, _sink):
        raise ModelError(text)

    return answer


@pytest.mark.parametrize(
    ("responses", "text"),
    [(0, "received an unexpected null response"), (2, "expected a single response, got 2")],
)
def test_a_model_that_does_not_respond_exactly_once_is_an_error(client, served, responses, text):
    def answer(engine, request, sink):
        for _ in range(responses):
            sink.send(InferResponse(request.model_name, 1), False)
        sink.send(None, True)

    served.engine.models["identity"].answer = answer
    with pytest.raises(InferenceServerException) as caught:
        client.infer("identity", ONE)
    assert (caught.value.status(), caught.value.message()) == ("StatusCode.INTERNAL", text)


def test_a_response_after_a_cancellation_is_discarded(client, served):
    served.engine.cancel = served.engine.cancelled.append  # an engine that cannot cancel the request in time
    call = client.async_infer("held", ONE, callback=lambda result, error: None)
    served.loop.until(lambda: served.engine.held)
    call.cancel()
    served.loop.until(lambda: served.engine.cancelled)
    served.loop.call(served.engine.release)
    assert client.is_server_live()


def test_a_typed_request_of_a_plain_stub_is_answered_with_raw_contents(served):
    request = service_pb2.ModelInferRequest(model_name="identity")
    request.inputs.add(name="INPUT0", datatype="INT32", shape=[2], contents={"int_contents": [1, -2]})
    with grpc.insecure_channel(served.url) as channel:
        call = channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            request_serializer=service_pb2.ModelInferRequest.SerializeToString,
            response_deserializer=service_pb2.ModelInferResponse.FromString,
        )
        response = call(request)
    assert np.frombuffer(response.raw_output_contents[0], np.int32).tolist() == [1, -2]
    assert not response.outputs[0].HasField("contents")


def test_concurrent_calls_of_the_asyncio_client_get_their_own_responses(served):
    async def run():
        async with triton_aio.InferenceServerClient(served.url) as client:

            async def one(number):
                array = np.array([number], np.float32)
                tensor = input_of(triton_aio, "INPUT0", array)
                result = await client.infer("later", [tensor], request_id=str(number))
                return result.get_response().id, result.as_numpy("OUTPUT0").tolist()

            return await asyncio.gather(*(one(number) for number in range(100)))

    assert served.loop.run(run()) == [(str(number), [float(number)]) for number in range(100)]
