"""ModelStreamInfer with the real clients over a real socket."""

from __future__ import annotations

import contextlib
import queue

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from tritonclient.grpc import service_pb2


def number_input(model, value, module=triton):
    name, dtype, datatype = ("IN", np.int32, "INT32") if model == "repeat" else ("INPUT0", np.float32, "FP32")
    tensor = module.InferInput(name, [1], datatype)
    tensor.set_data_from_numpy(np.array([value], dtype))
    return [tensor]


@pytest.fixture
def answers(client):
    """Results and errors of the client's stream, as they come."""
    received = queue.Queue()
    client.start_stream(lambda result, error: received.put((result, error)))
    yield received
    client.stop_stream(cancel_requests=True)


def test_requests_to_several_models_share_a_stream(client, answers):
    client.async_stream_infer("identity", number_input("identity", 5), request_id="a")
    client.async_stream_infer("repeat", number_input("repeat", 2), request_id="b", enable_empty_final_response=True)

    received = [answers.get(timeout=10) for _ in range(4)]

    assert [error for _, error in received] == [None] * 4
    responses = [result.get_response() for result, _ in received]
    assert [(r.id, r.parameters["triton_final_response"].bool_param) for r in responses] == [
        ("a", True),
        ("b", False),
        ("b", False),
        ("b", True),
    ]
    assert received[0][0].as_numpy("OUTPUT0").tolist() == [5]
    assert received[2][0].as_numpy("OUT").tolist() == [1]


def test_a_stream_that_the_client_ends_waits_for_its_last_response(client, answers, served):
    client.async_stream_infer("held", number_input("held", 1), request_id="late")
    served.loop.until(lambda: served.engine.held)
    served.loop.loop.call_soon_threadsafe(served.loop.loop.call_later, 0.05, served.engine.release)
    client.stop_stream()
    result, error = answers.get(timeout=10)
    assert (result.get_response().id, error) == ("late", None)


def test_the_asyncio_client_streams_too(served):
    async def run():
        async def requests():
            for value in range(3):
                yield {
                    "model_name": "repeat",
                    "inputs": number_input("repeat", value, triton_aio),
                    "request_id": str(value),
                }

        async with triton_aio.InferenceServerClient(served.url) as client:
            return [(result.get_response().id, error) async for result, error in client.stream_infer(requests())]

    assert served.loop.run(run()) == [("1", None), ("2", None), ("2", None)]


def stream(served, *requests, metadata=()):
    """A stream of a plain stub: its messages and its final status."""
    with grpc.insecure_channel(served.url) as channel:
        call = channel.stream_stream(
            "/inference.GRPCInferenceService/ModelStreamInfer",
            request_serializer=service_pb2.ModelInferRequest.SerializeToString,
            response_deserializer=service_pb2.ModelStreamInferResponse.FromString,
        )(iter(requests), metadata=metadata, timeout=20)
        messages = []
        with contextlib.suppress(grpc.RpcError):
            messages.extend(call)
        return messages, call.code(), call.details()


def identity_request(identity, model="identity", size=1):
    request = service_pb2.ModelInferRequest(model_name=model, id=identity)
    request.inputs.add(name="INPUT0", datatype="FP32", shape=[size])
    request.raw_input_contents.append(bytes(4 * size))
    return request


def test_an_empty_stream_ends_well(served):
    assert stream(served) == ([], grpc.StatusCode.OK, "")


@pytest.mark.parametrize("value", ["true", "false"])
def test_metadata_turns_the_first_error_into_the_streams_status(served, value):
    requests = identity_request("a"), identity_request("b", "failing"), identity_request("c")
    messages, code, details = stream(served, *requests, metadata=[("triton_grpc_error", value)])
    if value == "true":
        assert [m.infer_response.id for m in messages] == ["a"]
        assert code is grpc.StatusCode.INTERNAL
        assert details == "Failed to process the request(s) for model 'failing_0', message: ValueError: no luck"
    else:
        assert [m.infer_response.id for m in messages] == ["a", "b", "c"]
        assert code is grpc.StatusCode.OK


def test_many_large_messages_on_one_stream_arrive_in_order(served):
    requests = [identity_request(str(n), "later" if n % 2 else "identity", 50_000) for n in range(40)]
    messages, code, _ = stream(served, *requests)
    assert [m.infer_response.id for m in messages] == [str(n) for n in range(40)]
    assert {len(m.infer_response.raw_output_contents[0]) for m in messages} == {200_000}
    assert code is grpc.StatusCode.OK
