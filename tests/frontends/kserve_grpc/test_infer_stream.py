"""The logic of a stream without a transport: order, marks, errors, cancellation."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from fakes.engine import FakeEngine, FakeModel
from tritonclient.grpc import service_pb2 as wire

from naiad.core.errors import Code
from naiad.frontends.grpc.gate import SHUTTING_DOWN, AdmissionGate
from naiad.frontends.kserve_grpc.infer_stream import InferStream
from naiad.protocol.datatypes import Datatype
from naiad.protocol.inference import InferResponse, OutputTensor


class Stream:
    """A stream over the fake engine; `sent` removes its messages."""

    def __init__(self, **options):
        self.engine = FakeEngine()
        self.gate = AdmissionGate()
        self.wakes = 0
        self.stream = InferStream(self.engine, self.gate, self._wake, **options)

    def _wake(self):
        self.wakes += 1

    def ask(self, model, identity, value=1.0, empty_final=False, version="", **parameters):
        request = wire.ModelInferRequest(model_name=model, id=identity, model_version=version)
        name, dtype, datatype = ("IN", np.int32, "INT32") if model == "repeat" else ("INPUT0", np.float32, "FP32")
        request.inputs.add(name=name, datatype=datatype, shape=[1])
        request.raw_input_contents.append(np.array([value], dtype).tobytes())
        if empty_final:
            request.parameters["triton_enable_empty_final_response"].bool_param = True
        self.stream.feed(request.SerializeToString())

    def sent(self):
        messages = [wire.ModelStreamInferResponse.FromString(m) for m, _ in self.stream.outgoing]
        self.stream.outgoing.clear()
        return messages

    def summary(self):
        """(id, final mark, error) of each message."""
        return [(m.infer_response.id, final_mark(m.infer_response), m.error_message) for m in self.sent()]


def final_mark(response):
    marks = response.parameters
    return marks["triton_final_response"].bool_param if "triton_final_response" in marks else None


@pytest.fixture
def stream():
    return Stream()


def test_a_plain_request_has_one_response_and_it_is_the_last(stream):
    stream.ask("identity", "a")
    assert stream.summary() == [("a", True, "")]
    assert stream.wakes
    assert stream.stream.is_idle


def test_plain_responses_leave_in_the_order_of_the_requests(stream):
    stream.ask("held", "first")
    stream.ask("identity", "second")
    stream.ask("held", "third")
    assert stream.summary() == []

    stream.engine.release()  # responds to the third before the first

    assert [identity for identity, _, _ in stream.summary()] == ["first", "second", "third"]


def test_decoupled_responses_overtake_waiting_plain_ones(stream):
    stream.ask("held", "slow")
    stream.ask("repeat", "fast", 2)
    assert stream.summary() == [("fast", False, ""), ("fast", False, "")]
    stream.engine.release()
    assert stream.summary() == [("slow", True, "")]


def test_an_empty_final_response_is_sent_only_where_asked_for(stream):
    stream.ask("repeat", "a", 1)
    stream.ask("repeat", "b", 1, empty_final=True)
    stream.ask("repeat", "c", 0, empty_final=True)
    stream.ask("identity", "d", empty_final=True)
    assert stream.summary() == [("a", False, ""), ("b", False, ""), ("b", True, ""), ("c", True, ""), ("d", True, "")]


def test_a_response_that_ends_its_request_is_marked_itself(stream):
    def answer(engine, request, sink):
        sink.send(InferResponse(request.model_name, 1, request.request_id), False)
        sink.send(InferResponse(request.model_name, 1, request.request_id), True)

    stream.engine.models["repeat"].answer = answer
    stream.ask("repeat", "a", empty_final=True)
    assert stream.summary() == [("a", False, ""), ("a", True, "")]


def test_the_mark_is_on_the_last_plain_response_even_if_the_end_comes_separately(stream):
    def answer(engine, request, sink):
        sink.send(InferResponse(request.model_name, 1, request.request_id), False)
        sink.send(None, True)

    stream.engine.models["identity"].answer = answer
    stream.ask("identity", "a")
    assert stream.summary() == [("a", True, "")]


def test_errors_are_messages_and_the_stream_stays_open(stream):
    stream.ask("nope", "a")
    stream.ask("identity", "b", version="x")
    stream.ask("failing", "c")
    stream.ask("identity", "d")
    messages = stream.sent()
    assert [(m.infer_response.id, m.error_message[:40]) for m in messages] == [
        ("a", "Request for unknown model: 'nope' is not"),
        ("b", "failed to get model version from specifi"),
        ("c", "Failed to process the request(s) for mod"),
        ("d", ""),
    ]
    # The error of a request that was never submitted has the id alone; an error of the model has the end mark.
    assert messages[0].infer_response == wire.ModelInferResponse(id="a")
    assert messages[2].infer_response.model_name == "failing"
    assert final_mark(messages[2].infer_response)


def test_errors_of_plain_requests_keep_the_order_too(stream):
    stream.ask("held", "a")
    stream.ask("nope", "b")
    stream.ask("failing", "c")
    assert stream.summary() == []
    stream.engine.release()
    assert [identity for identity, _, _ in stream.summary()] == ["a", "b", "c"]


def test_an_error_of_a_decoupled_model_ends_its_request(stream):
    stream.ask("repeat", "a", -1, empty_final=True)
    assert stream.summary() == [("a", False, ""), ("a", True, "the model gave up")]


def test_a_refused_request_to_a_decoupled_model_is_answered_at_once(stream):
    stream.ask("held", "slow")
    request = wire.ModelInferRequest(model_name="repeat", id="b", inputs=[{"name": "IN", "datatype": "INT32"}])
    stream.stream.feed(request.SerializeToString())
    assert stream.summary() == [("b", None, "unable to find data for input tensor 'IN' for model 'repeat' in request.")]


def test_bytes_that_are_no_message_are_an_error_without_an_id(stream):
    stream.stream.feed(b"\xff\xff")
    assert stream.summary() == [("", None, "Unable to parse request")]


def test_a_stream_is_finished_after_its_last_message(stream):
    stream.ask("held", "a")
    stream.stream.end_requests()
    assert not stream.stream.is_finished
    stream.engine.release()
    assert not stream.stream.is_finished
    stream.sent()
    assert stream.stream.is_finished


def test_cancelling_cancels_requests_and_discards_later_responses(stream):
    stream.engine.cancel = stream.engine.cancelled.append  # an engine that cannot cancel the request any more
    stream.ask("held", "a")
    stream.ask("identity", "b")
    stream.ask("held", "c")
    held = set(stream.engine.held)

    stream.stream.cancel()
    stream.engine.release()

    assert set(stream.engine.cancelled) == held
    assert stream.summary() == []


def test_cancelling_counts_requests_out_once(stream):
    stream.ask("held", "a")
    stream.stream.cancel()
    assert repr(stream.gate) == "<AdmissionGate open running=0>"
    stream.stream.cancel()
    assert repr(stream.gate) == "<AdmissionGate open running=0>"


@pytest.mark.parametrize(
    ("model", "value", "code"),
    [("nope", 1, Code.NOT_FOUND), ("failing", 1, Code.INTERNAL), ("repeat", -1, Code.INTERNAL)],
)
def test_where_errors_end_the_stream_the_first_error_cancels_all_requests(model, value, code):
    stream = Stream(errors_end_stream=True)
    stream.ask("identity", "a")
    stream.ask("held", "b")
    (waiting,) = stream.engine.held
    stream.ask(model, "c", value)
    stream.ask("identity", "d")

    assert stream.stream.failure is not None
    assert stream.stream.failure.code is code
    assert waiting in stream.engine.cancelled
    answered = ["a", "c"] if model == "repeat" else ["a"]
    assert [identity for identity, _, error in stream.summary() if not error] == answered
    assert repr(stream.gate) == "<AdmissionGate open running=0>"


def test_a_request_that_ends_the_stream_within_submit_is_cancelled():
    stream = Stream(errors_end_stream=True)
    stream.ask("failing", "a")
    assert stream.engine.cancelled == [1]


def test_a_closed_gate_refuses_messages_in_band(stream):
    stream.gate.is_closed = True
    stream.ask("identity", "a")
    assert stream.summary() == [("a", None, SHUTTING_DOWN)]


def test_an_unexpected_exception_of_the_engine_is_the_error_of_its_request_alone(stream, caplog):
    def answer(engine, request, sink):
        raise ZeroDivisionError("by nought")

    stream.engine.models["failing"].answer = answer
    stream.ask("held", "a")
    stream.ask("failing", "b")
    stream.ask("identity", "c")
    stream.engine.release()
    assert stream.summary() == [
        ("a", True, ""),
        ("b", None, "Unexpected <class 'ZeroDivisionError'>: by nought"),
        ("c", True, ""),
    ]
    assert repr(stream.gate) == "<AdmissionGate open running=0>"
    assert "cannot serve a request" in caplog.text


def test_repr_counts_requests_and_messages(stream):
    stream.ask("held", "a")
    stream.ask("repeat", "b", 2)
    assert repr(stream.stream) == "<InferStream in-flight=1 outgoing=2>"


def test_responses_of_decoupled_models_are_confirmed_once_sent(stream):
    """The engine holds a model back while too many responses are not confirmed."""
    stream.engine.models["held"].decoupled = True
    stream.ask("held", "many")
    stream.ask("identity", "one")
    stream.engine.release()
    for _, submitted in stream.stream.outgoing:
        stream.stream.on_sent(submitted)
    assert stream.engine.confirmed_counts == {1: 1}


LONG = 20_000
"""Elements of an output whose classes are made in slices."""


def ask_for_classes(stream, identity, model="identity", size=LONG, datatype="FP32", dtype=np.float32):
    request = wire.ModelInferRequest(model_name=model, id=identity)
    request.inputs.add(name="INPUT0", datatype=datatype, shape=[size])
    request.raw_input_contents.append(np.arange(size).astype(dtype).tobytes())
    request.outputs.add(name="OUTPUT0").parameters["classification"].int64_param = 2
    stream.stream.feed(request.SerializeToString())


async def until_idle(stream):
    """The messages that the stream sends until no request is in flight."""
    messages = []
    for _ in range(1000):
        messages += stream.sent()
        if stream.stream.is_idle:
            return messages
        await asyncio.sleep(0)
    raise AssertionError(f"{stream.stream} is never idle")


def told(messages):
    """(id, final mark, last two bytes of the output or the error) of each message."""
    found = []
    for message in messages:
        response = message.infer_response
        (data,) = response.raw_output_contents or [b""]
        found.append((response.id, final_mark(response), message.error_message or data[-2:]))
    return found


async def test_classes_of_long_outputs_are_made_later_and_responses_keep_their_order(stream):
    ask_for_classes(stream, "long")
    ask_for_classes(stream, "short", size=15)
    ask_for_classes(stream, "unfit", datatype="BF16", dtype=np.uint16, size=2 * LONG)
    ask_for_classes(stream, "last", size=16)
    assert stream.summary() == []

    error = "class result not available for output due to unsupported type 'BF16'"
    assert told(await until_idle(stream)) == [
        ("long", True, b"98"),
        ("short", True, b"13"),
        ("unfit", True, error),
        ("last", True, b"14"),
    ]
    assert repr(stream.gate) == "<AdmissionGate open running=0>"


async def test_responses_of_a_decoupled_model_wait_for_the_classes_of_an_earlier_one(stream):
    def answer(engine, request, sink):
        for size in (LONG, 10, LONG + 7, 11):
            data = np.arange(size, dtype=np.float32).tobytes()
            output = OutputTensor("OUTPUT0", Datatype.FP32, (size,), data)
            sink.send(InferResponse("parts", 1, request_id=request.request_id, outputs=[output]), final=False)
        sink.send(None, final=True)

    identity = stream.engine.models["identity"]
    stream.engine.models["parts"] = FakeModel("parts", answer, identity.inputs, identity.outputs, decoupled=True)
    ask_for_classes(stream, "a", model="parts", size=1)
    assert stream.summary() == []

    assert told(await until_idle(stream)) == [("a", False, text) for text in (b"98", b":8", b"05", b":9")]


async def test_cancelling_ends_the_work_for_classes(stream):
    ask_for_classes(stream, "a")
    ask_for_classes(stream, "b")
    stream.stream.cancel()
    for _ in range(100):
        await asyncio.sleep(0)
    assert stream.summary() == []
    assert stream.stream.is_idle
    assert repr(stream.gate) == "<AdmissionGate open running=0>"
