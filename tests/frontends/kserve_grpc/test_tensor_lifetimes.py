"""References to tensors are released once they are sent: each view keeps memory of a guest allocated."""

from __future__ import annotations

import weakref

import numpy as np
import pytest
import tritonclient.grpc as triton
from support.client_inputs import input_of

from naiad.protocol.datatypes import Datatype
from naiad.protocol.inference import InferResponse, OutputTensor


@pytest.fixture
def borrowed(served):
    """Weak references to the buffers of responses of the model `identity`."""
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
    return [input_of(triton, "INPUT0", np.zeros(1, np.float32))]


def test_a_plain_response_releases_its_tensors(client, served, borrowed):
    for _ in range(3):
        assert client.infer("identity", one_input()).as_numpy("OUTPUT0").sum() == 1000
    served.loop.until(lambda: [reference() for reference in borrowed] == [None] * 3)


def test_a_streamed_response_releases_its_tensors_while_the_stream_is_open(client, served, borrowed):
    results: list = []
    client.start_stream(lambda result, error: results.append(result))
    for _ in range(3):
        client.async_stream_infer("identity", one_input())
    served.loop.until(lambda: len(results) == 3)
    served.loop.until(lambda: [reference() for reference in borrowed] == [None] * 3)
    client.stop_stream()


def test_a_waiting_streamed_response_keeps_no_tensors_either(client, served, borrowed):
    """A response is encoded when it arrives, rather than when it is sent."""
    client.start_stream(lambda result, error: None)
    client.async_stream_infer("held", one_input())
    client.async_stream_infer("identity", one_input())
    served.loop.until(lambda: borrowed)
    served.loop.until(lambda: borrowed[0]() is None)
    client.stop_stream(cancel_requests=True)
