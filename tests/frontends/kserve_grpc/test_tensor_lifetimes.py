"""A tensor's bytes are let go as soon as they are on their way: a view held for longer keeps a guest's memory taken."""

from __future__ import annotations

import weakref

import numpy as np
import pytest
import tritonclient.grpc as triton
from naiad.protocol.datatypes import Datatype
from naiad.protocol.inference import InferResponse, OutputTensor


@pytest.fixture
def lent(served):
    """References to the buffers that the model `identity` lent to its responses."""
    references: list[weakref.ref] = []

    def answer(engine, request, sink):
        buffer = np.ones(1000, np.float32)
        references.append(weakref.ref(buffer))
        outputs = [OutputTensor("OUTPUT0", Datatype.FP32, (1000,), memoryview(buffer))]
        engine.requests.clear()
        sink.send(InferResponse(request.model_name, 1, request.request_id, outputs), True)

    served.engine.models["identity"].answer = answer
    return references


def one_input():
    tensor = triton.InferInput("INPUT0", [1], "FP32")
    tensor.set_data_from_numpy(np.zeros(1, np.float32))
    return [tensor]


def test_a_plain_response_lets_go_of_its_tensors(client, served, lent):
    for _ in range(3):
        assert client.infer("identity", one_input()).as_numpy("OUTPUT0").sum() == 1000
    served.loop.until(lambda: [reference() for reference in lent] == [None] * 3)


def test_a_streamed_response_lets_go_of_its_tensors_while_the_stream_goes_on(client, served, lent):
    results: list = []
    client.start_stream(lambda result, error: results.append(result))
    for _ in range(3):
        client.async_stream_infer("identity", one_input())
    served.loop.until(lambda: len(results) == 3)
    served.loop.until(lambda: [reference() for reference in lent] == [None] * 3)
    client.stop_stream()


def test_a_waiting_streamed_response_keeps_no_tensors_either(client, served, lent):
    """It is encoded when it comes, not when its turn comes."""
    client.start_stream(lambda result, error: None)
    client.async_stream_infer("held", one_input())
    client.async_stream_infer("identity", one_input())
    served.loop.until(lambda: lent)
    served.loop.until(lambda: lent[0]() is None)
    client.stop_stream(cancel_requests=True)
