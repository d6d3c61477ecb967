"""A loaded version of an ensemble whose members the test plays: which requests they get, and what becomes of them."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import weakref
from collections.abc import Callable, Collection, Sequence
from typing import Any

import pytest
from engine.submitting import submit
from fakes.clock import Clock
from fakes.guests import Answers
from google.protobuf import text_format

from naiad.config.model import model_config_pb2 as pb
from naiad.config.model.model_config import ModelConfig, freeze
from naiad.core.errors import Code, InvalidRequestError, ModelError, NaiadError, UnknownModelError
from naiad.engine.ensembles.step import StepTensor
from naiad.engine.ensembles.version import EnsembleVersion
from naiad.engine.open_request import OpenRequest
from naiad.engine.response_cache import ResponseCache
from naiad.engine.scheduling.ensembles.graph import EnsembleGraph, EnsembleStep
from naiad.protocol.datatypes import Datatype
from naiad.protocol.device_bytes import DeviceUse
from naiad.protocol.inference import (
    DEVICE_INPUTS,
    DEVICE_OUTPUTS,
    SEQUENCE_END,
    SEQUENCE_START,
    InferRequest,
    InferResponse,
    InputTensor,
    OutputTensor,
)
from naiad.protocol.metadata import Duration, ModelCondition

FP32 = Datatype.FP32
MS = 1_000_000
IO = 'input { name: "IN" data_type: TYPE_FP32 dims: 2 } output { name: "OUT" data_type: TYPE_FP32 dims: 2 } '


def config(text: str) -> ModelConfig:
    return freeze(text_format.Parse(text, pb.ModelConfig()))


def member_config(name: str, dims: int = 2, batch: int = 0) -> str:
    return f"""name: "{name}" backend: "python" max_batch_size: {batch}
    input {{ name: "IN" data_type: TYPE_FP32 dims: {dims} }}
    output {{ name: "OUT" data_type: TYPE_FP32 dims: {dims} }}"""


class Member:
    """The model of a step.

    Attributes:
        submitted: Its requests, their sinks, and whether each is a call.
        opened: Its requests in flight: number N has the key N.
        waiting: The keys of requests that wait for an instance.
        calls: Other calls of its methods.
        refusal: Raised by `submit`.
    """

    is_lost = False
    open_sequences = 2
    device = 0
    gpus = None

    def __init__(self, name: str, text: str = "", number: int = 1) -> None:
        self.name = name
        self.number = number
        self.config = config(text or member_config(name))
        self.submitted: list[tuple[InferRequest, Any, bool]] = []
        self.opened: list[OpenRequest] = []
        self.waiting: set[int] = set()
        self.calls: list[tuple[Any, ...]] = []
        self.refusal: Exception | None = None
        self.instances = [f"{name}_0"]
        self.conditions = [True, True]  # ready, all ready

    def accept(self, opened: OpenRequest) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.submitted.append((opened.request, opened.sink, opened.needs_idle))
        self.opened.append(opened)
        opened.holder, opened.key = self, len(self.submitted)

    def is_waiting(self, opened: OpenRequest) -> bool:
        return opened.key in self.waiting

    def waits_of(self, _: OpenRequest) -> list[Any]:
        return [[f"guest of {self.name}"]]

    def is_ready(self) -> bool:
        return self.conditions[0]

    def are_all_ready(self) -> bool:
        return self.conditions[1]

    def cancel_request(self, opened: OpenRequest) -> None:
        self.calls.append(("cancel", opened.key))

    def drop_responses(self, opened: OpenRequest) -> None:
        self.calls.append(("drop_responses", opened.key))

    def confirm_responses(self, opened: OpenRequest, count: int) -> None:
        self.calls.append(("confirm_sent", opened.key, count))

    # -- what a test does in its place

    @property
    def last(self) -> InferRequest:
        return self.submitted[-1][0]

    def respond(
        self, data: bytes = bytes(8), *, key: int = 0, final: bool = True, shape: Any = (2,), **more: Any
    ) -> None:
        """Respond to a request, the last one by default."""
        outputs = [OutputTensor("OUT", FP32, shape, data)]
        self.submitted[key - 1][1].send(InferResponse(self.name, 1, "", outputs, **more), final)

    def end(self, key: int = 0) -> None:
        """End a request without a further response."""
        self.submitted[key - 1][1].send(None, True)

    def fail(self, error: NaiadError, *, final: bool = True) -> None:
        """Answer the last request with an error."""
        self.submitted[-1][1].send(InferResponse(self.name, 1, error=error), final)


class Members:
    """The registry."""

    def __init__(self, *members: Member) -> None:
        self.members = {member.name: member for member in members}

    def find(self, name: str, version: int) -> Member:
        if name not in self.members:
            raise UnknownModelError(f"Request for unknown model: '{name}' is not found")
        return self.members[name]

    find_loaded = find


class Replies(Answers):
    """Gets the responses to one request."""

    @property
    def error(self) -> NaiadError:
        """The error that the request ended with."""
        response, final = self.responses[-1]
        assert final
        assert response is not None
        assert response.error is not None
        return response.error


def step(model: str, inputs: dict[str, str], outputs: dict[str, str], *, decoupled: bool = False) -> EnsembleStep:
    return EnsembleStep(model=model, version=-1, inputs=tuple(inputs.items()), outputs=outputs, decoupled=decoupled)


class Ensemble:
    """An ensemble; by default two steps, one after the other."""

    def __init__(
        self, *members: Member, steps: Any = None, text: str = "", outputs: tuple[str, ...] = ("OUT",), more: str = ""
    ) -> None:
        self.members = Members(*members)
        self.waits: list[Any] = []
        steps = steps or (step("a", {"IN": "IN"}, {"OUT": "MIDDLE"}), step("b", {"IN": "MIDDLE"}, {"OUT": "OUT"}))
        message = f'name: "e" platform: "ensemble" {text or IO} ensemble_scheduling {{ {more} }}'
        graph = EnsembleGraph(name="e", steps=tuple(steps), inputs=("IN",), outputs=outputs)
        self.version = EnsembleVersion(config(message), 4, graph, self.members, self._on_waiting)

    def _on_waiting(self, waits: Callable[[], Sequence[Collection[Any]]]) -> None:
        self.waits.append(waits())

    def ask(self, shape: tuple[int, ...] = (2,), **more: Any) -> tuple[OpenRequest, Replies]:
        """Submit a request; what it gets."""
        replies = Replies()
        needs_idle = more.pop("needs_idle", False)
        tensor = InputTensor("IN", FP32, shape, bytes(4 * shape[0] * (shape[1] if len(shape) > 1 else 1)))
        asked = InferRequest("e", -1, [tensor], **more)
        return submit(self.version, asked, replies, needs_idle=needs_idle), replies


@pytest.fixture
def a():
    return Member("a")


@pytest.fixture
def b():
    return Member("b")


@pytest.fixture
def ensemble(a, b):
    return Ensemble(a, b)


def test_a_request_goes_through_the_steps_with_its_own_fields(ensemble, a, b, caplog):
    caplog.set_level(logging.DEBUG)
    fields = {"request_id": "7", "parameters": {"p": 1}, "correlation_id": 5, "flags": SEQUENCE_START, "priority": 3}
    fields |= {"timeout_us": 900, "propagated": {"traceparent": "x"}}
    _, replies = ensemble.ask(**fields, needs_idle=True)
    asked, sink, needs_idle = a.submitted[0]
    assert needs_idle
    assert asked.trace is sink
    for member, data in ((a, bytes(8)), (b, b"12345678")):
        asked = member.last
        assert (asked.model_name, asked.model_version) == (member.name, -1)
        assert {name: getattr(asked, name) for name in fields} == fields
        assert asked.requested_outputs == ("OUT",)
        assert [(each.name, each.datatype, each.shape, each.data) for each in asked.inputs] == [
            ("IN", FP32, (2,), data)
        ]
        assert replies.responses == []
        member.respond(b"12345678")
    ((response, final),) = replies.responses
    assert final
    assert (response.model_name, response.model_version, response.request_id) == ("e", 4, "7")
    assert [(each.name, each.shape, each.data) for each in response.outputs] == [("OUT", (2,), b"12345678")]
    assert response.parameters == {"sequence_id": 5, "sequence_start": True, "sequence_end": False}
    assert not ensemble.version.is_finishing_requests()
    assert caplog.records == []


def test_requests_of_one_layout_have_one_key_until_a_member_is_loaded_again(ensemble, a):
    keys = []
    for shape in ((2,), (2,)):
        ensemble.ask(shape)
        keys.append(a.last.layout_key)
    assert keys[0] == keys[1]
    hash(keys[0])
    plan = ensemble.version._execution.submitter.plan(0, a)
    assert ensemble.version._execution.submitter.plan(0, a) is plan
    a.number = 2
    assert ensemble.version._execution.submitter.plan(0, a) is not plan


@pytest.mark.parametrize(
    ("shape", "batch_size", "dims", "is_batched", "seen"),
    [
        ((2,), 0, (2,), False, (2,)),
        ((2,), 0, (2,), True, (1, 2)),
        ((3, 2), 0, (2,), True, (3, 2)),
        ((3, 2), 0, (-1, 2), True, (1, 3, 2)),
        ((1, 2), 1, (2,), False, (2,)),
        ((1, 2), 1, (1, 2), False, (1, 2)),
        ((1, 2), 1, (3, 2), False, (2,)),
        ((3, 2), 3, (2,), False, (3, 2)),
        ((1, 2), 1, (2,), True, (1, 2)),
    ],
)
def test_a_batch_dimension_is_added_or_removed_between_models_that_differ_in_it(
    shape, batch_size, dims, is_batched, seen
):
    assert StepTensor(FP32, shape, b"", batch_size, None).shape_for(dims, is_batched) == seen


def test_members_with_and_without_batches_work_together():
    batched, plain = Member("a", member_config("a", batch=4)), Member("b")
    ensemble = Ensemble(batched, plain)
    _, replies = ensemble.ask()
    assert batched.last.inputs[0].shape == (1, 2)
    batched.respond(shape=(1, 2))
    assert plain.last.inputs[0].shape == (2,)
    plain.respond()
    assert replies.responses[0][0].outputs[0].shape == (2,)


def test_batches_keep_their_size_through_all_steps():
    members = [Member(name, member_config(name, batch=8)) for name in "ab"]
    ensemble = Ensemble(*members, text=IO + "max_batch_size: 8")
    _, replies = ensemble.ask((3, 2))
    for member in members:
        assert member.last.inputs[0].shape == (3, 2)
        member.respond(bytes(24), shape=(3, 2))
    assert replies.responses[0][0].outputs[0].shape == (3, 2)
    found = ensemble.version.statistics()
    assert found.inference_count == 3
    # As from a cache: nothing was computed.
    assert found.compute_input == found.compute_infer == found.compute_output == Duration(1, 0)


def test_the_error_of_a_member_ends_the_request(ensemble, a, b):
    _, replies = ensemble.ask(request_id="7")
    a.fail(ModelError("no luck"))
    assert replies.error.message == "in ensemble 'e', no luck"
    assert replies.responses[-1][0].request_id == "7"
    assert b.submitted == []
    assert ensemble.version.statistics().fail.count == 1


@pytest.mark.parametrize(
    ("problem", "text"),
    [
        (InvalidRequestError("wrong shape"), "wrong shape"),
        (
            ValueError("odd"),
            "cannot submit a step of the ensemble: unexpected ValueError: odd; see the log of the server",
        ),
    ],
)
def test_a_step_that_is_rejected_ends_the_request(ensemble, a, caplog, problem, text):
    a.refusal = problem
    _, replies = ensemble.ask()
    assert replies.error.message == f"in ensemble 'e', {text}"
    assert len(caplog.records) == (not isinstance(problem, NaiadError))
    assert not ensemble.version.is_finishing_requests()


def test_nothing_is_left_of_a_step_that_is_rejected(ensemble, a, b):
    """Its inputs may be in memory of the step before; they are freed without a collection."""
    ensemble.ask()
    b.refusal = InvalidRequestError("wrong shape")
    data = memoryview(bytes(8))
    gone = weakref.ref(data)
    gc.disable()
    try:
        a.respond(data)
        b.refusal = None  # with its frames
        del data
        assert gone() is None
    finally:
        gc.enable()


def test_a_member_that_is_gone_ends_the_request(ensemble):
    del ensemble.members.members["a"]
    _, replies = ensemble.ask()
    assert replies.error.message == "in ensemble 'e', Request for unknown model: 'a' is not found"


def test_the_trace_of_a_request_has_its_steps_as_children(ensemble, a, b):
    class Trace:
        context = b""

        def __init__(self) -> None:
            self.children: list[str] = []
            self.composed: list[tuple[int, ...]] = []
            self.rejected = 0

        def start_child(self, request: InferRequest, sink: Any) -> Any:
            self.children.append(request.model_name)
            request.trace = self
            return sink

        def on_rejected(self) -> None:
            self.rejected += 1

        def on_composed(self, *times: int) -> None:
            self.composed.append(times)

    trace = Trace()
    ensemble.ask(trace=trace)
    a.respond()
    b.respond()
    assert trace.children == ["a", "b"]
    assert len(trace.composed) == 1
    assert trace.rejected == 0
    a.refusal = InvalidRequestError("no")
    ensemble.ask(trace=trace)
    assert trace.rejected == 1
    a.refusal = None
    del ensemble.members.members["a"]
    ensemble.ask(trace=trace)  # there is no request to trace
    assert trace.rejected == 1


def test_the_times_of_the_steps_add_up(ensemble, a, b, monkeypatch):
    clock = Clock().install(monkeypatch)
    start = clock.monotonic_ns()
    times = []

    class Trace:
        context = b""

        def start_child(self, request: InferRequest, sink: Any) -> Any:
            return sink

        def on_composed(self, *found: int) -> None:
            times.extend(found)

    ensemble.ask(trace=Trace())
    for member in (a, b):
        clock.advance(0.01)
        member.last.trace.on_computed(0, 1 * MS, 2 * MS, 5 * MS, 7 * MS)
        member.respond()
    found = ensemble.version.statistics()
    assert (found.compute_input, found.compute_infer, found.compute_output) == (
        *(Duration(1, 2 * MS), Duration(1, 6 * MS), Duration(1, 4 * MS)),
    )
    assert found.success == Duration(1, 20 * MS)
    assert found.execution_count == 1
    assert times == [start, start, start + 2 * MS, start + 8 * MS, start + 12 * MS]


def test_a_response_that_was_kept_is_sent_again_without_the_members(a, b):
    ensemble = Ensemble(a, b, text=IO + "response_cache { enable: true }")
    ensemble.version.keep_responses(ResponseCache(1 << 20))
    ensemble.ask()
    a.respond()
    b.respond(b"12345678")
    _, replies = ensemble.ask()
    ((response, final),) = replies.responses
    assert final
    assert bytes(response.outputs[0].data) == b"12345678"
    assert len(a.submitted) == 1


def test_the_end_of_each_request_is_reported(ensemble, a, b):
    ended = []
    execution = ensemble.version._execution
    execution.observe_load(ended.append)
    ensemble.ask()
    ensemble.ask()
    a.respond(key=1)
    assert ended == []
    a.fail(ModelError("no"))
    assert ended == [1]
    b.respond()
    assert ended == [1, 0]


def test_a_failure_counts_since_the_request_was_queued(ensemble, a, monkeypatch):
    clock = Clock().install(monkeypatch)
    ensemble.ask()
    clock.advance(0.5)
    a.fail(ModelError("no"))
    assert ensemble.version.statistics().fail == Duration(1, 500 * MS)


# -- streams


@pytest.fixture
def stream(a):
    """One decoupled step."""
    return Ensemble(a, steps=[step("a", {"IN": "IN"}, {"OUT": "OUT"}, decoupled=True)])


def test_each_response_of_a_decoupled_step_leaves_and_is_confirmed(stream, a):
    opened, replies = stream.ask()
    a.respond(b"1" * 8, final=False)
    a.respond(b"2" * 8, final=False)
    assert [(each.outputs[0].data, final) for each, final in replies.responses] == [
        *((b"1" * 8, False), (b"2" * 8, False)),
    ]
    opened.confirm_sent()
    assert a.calls == [("confirm_sent", 1, 1)]
    opened.confirm_sent()
    assert len(a.calls) == 2
    a.end()
    assert replies.responses[-1] == (None, True)
    assert not stream.version.is_finishing_requests()
    assert stream.version.statistics().success.count == 1


@pytest.mark.parametrize("ends_alone", [True, False])
def test_dropped_responses_are_consumed_and_only_the_end_arrives(stream, a, ends_alone):
    opened, replies = stream.ask()
    a.respond(final=False)
    opened.drop_responses()
    assert a.calls == [("confirm_sent", 1, 1)]
    a.respond(final=False)
    assert a.calls == [("confirm_sent", 1, 1)] * 2
    assert len(replies.responses) == 1
    if ends_alone:
        a.end()
        assert replies.responses[1:] == [(None, True)]
    else:
        a.respond(b"last....", final=True)
        ((response, final),) = replies.responses[1:]
        assert (response.outputs[0].data, final) == (b"last....", True)


def test_the_first_response_is_timed_once(stream, a, monkeypatch):
    clock = Clock().install(monkeypatch)
    seen = []
    monkeypatch.setattr(stream.version.totals, "on_first_response", seen.append)
    stream.ask()
    clock.advance(0.25)
    a.respond(final=False)
    clock.advance(0.25)
    a.respond(final=False)
    a.end()
    assert seen == [250 * MS]


def test_cancelling_a_request_cancels_its_steps(stream, a):
    opened, replies = stream.ask()
    opened.cancel(drops_responses=False)
    assert a.calls == [("cancel", 1)]
    assert replies.responses == []
    a.fail(NaiadError("Request was cancelled", code=Code.CANCELLED))
    assert replies.error.code is Code.CANCELLED


def test_other_steps_of_a_request_that_has_failed_run_to_their_end(a, b):
    ensemble = Ensemble(
        a,
        b,
        steps=[step("a", {"IN": "IN"}, {"OUT": "X"}), step("b", {"IN": "IN"}, {"OUT": "OUT"})],
        outputs=("OUT", "X"),
        text=IO + 'output { name: "X" data_type: TYPE_FP32 dims: 2 }',
    )
    _, replies = ensemble.ask()
    a.fail(ModelError("no luck"))
    assert replies.error.message == "in ensemble 'e', no luck"
    assert b.calls == []
    assert ensemble.version.is_finishing_requests()
    b.respond()
    assert len(replies.responses) == 1
    assert not ensemble.version.is_finishing_requests()


def test_a_call_that_waits_is_rejected_to_break_a_deadlock(ensemble, a):
    opened, replies = ensemble.ask()
    opened.reject_waiting(ModelError("deadlock"))
    assert replies.error.message == "deadlock"
    assert a.calls == [("cancel", 1), ("drop_responses", 1)]


def test_what_is_done_with_a_request_that_has_ended_is_ignored(ensemble, a, b):
    opened, replies = ensemble.ask()
    a.respond()
    b.respond()
    opened.cancel()
    opened.reject_waiting(ModelError("no"))
    opened.confirm_sent()
    opened.drop_responses()
    assert not opened.is_waiting
    assert opened.waits() == ()
    assert (len(replies.responses), a.calls, b.calls) == (1, [], [])


def test_a_sink_that_fails_gets_an_error_as_its_last_response(ensemble, a, b, caplog):
    _, replies = ensemble.ask()
    a.respond()
    replies.problem = ValueError("closed")
    b.respond()
    assert "pass on a response of 'e'" in replies.error.message
    assert any("cannot carry out a request to ensemble 'e'" in each.getMessage() for each in caplog.records)
    assert not ensemble.version.is_finishing_requests()


def test_an_action_that_fails_unexpectedly_ends_the_request(ensemble, a, monkeypatch, caplog):
    _, replies = ensemble.ask()

    def broken(*_: object) -> None:
        raise ValueError("odd")

    monkeypatch.setattr(ensemble.version._execution.submitter, "begin", broken)
    a.respond()
    assert replies.error.message == (
        "cannot carry out the request to 'e': unexpected ValueError: odd; see the log of the server"
    )


# -- sequences


def sequences(response: InferResponse) -> tuple[Any, ...]:
    return tuple(response.parameters[f"sequence_{name}"] for name in ("id", "start", "end"))


def test_the_sequence_of_a_response_is_that_of_the_next_step_and_of_the_client(ensemble, a, b):
    _, replies = ensemble.ask(correlation_id=5, flags=SEQUENCE_START)
    a.respond(parameters={"sequence_id": 9, "sequence_end": True})
    assert (b.last.correlation_id, b.last.flags) == (9, SEQUENCE_END)
    b.respond(parameters={"other": 1})
    assert sequences(replies.responses[0][0]) == (9, False, True)
    ensemble.ask(correlation_id=5)
    a.respond(parameters={"sequence_start": True})
    assert (b.last.correlation_id, b.last.flags) == (5, SEQUENCE_START), "without an id, that of the request"


@pytest.mark.parametrize(("client", "model", "shown"), [(0, "x", 0), ("c", 7, ""), ("c", "x", "x"), (3, 7, 7)])
def test_the_client_gets_a_sequence_id_of_the_kind_that_it_sent(ensemble, a, b, client, model, shown):
    _, replies = ensemble.ask(correlation_id=client)
    a.respond(parameters={"sequence_id": model})
    b.respond()
    assert sequences(replies.responses[0][0]) == (shown, False, False)


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        (
            {"sequence_id": True},
            "expected parameter 'sequence_id' to be TRITONSERVER_PARAMETER_INT or TRITONSERVER_PARAMETER_STRING",
        ),
        ({"sequence_id": 1.5}, "expected parameter 'sequence_id' to be"),
        ({"sequence_start": 1}, "expect parameter 'sequence_start' to be TRITONSERVER_PARAMETER_BOOL"),
        ({"sequence_end": "x"}, "expect parameter 'sequence_end' to be TRITONSERVER_PARAMETER_BOOL"),
    ],
)
def test_a_sequence_in_a_response_must_have_the_right_types(ensemble, a, b, parameters, text):
    _, replies = ensemble.ask()
    a.respond(parameters=parameters)
    assert text in replies.error.message
    assert b.submitted == []


def test_inputs_of_different_sequences_are_logged_and_the_first_one_counts(a, b, caplog):
    c = Member(
        "c",
        'name: "c" backend: "python" input { name: "L" data_type: TYPE_FP32 dims: 2 } '
        'input { name: "R" data_type: TYPE_FP32 dims: 2 } output { name: "OUT" data_type: TYPE_FP32 dims: 2 }',
    )
    ensemble = Ensemble(
        a,
        b,
        c,
        steps=[
            step("a", {"IN": "IN"}, {"OUT": "X"}),
            step("b", {"IN": "IN"}, {"OUT": "Y"}),
            step("c", {"L": "X", "R": "Y"}, {"OUT": "OUT"}),
        ],
    )
    ensemble.ask()
    a.respond(parameters={"sequence_id": 1})
    b.respond(parameters={"sequence_id": 2})
    assert c.last.correlation_id == 1
    assert [each.getMessage() for each in caplog.records] == [
        "Different set of response parameters are set for 'c'. Parameter correlation ID 1, flags 0 is used."
    ]
    caplog.clear()
    ensemble.ask()
    a.respond(parameters={"sequence_id": 1})
    b.respond(parameters={"sequence_id": 1})
    assert caplog.records == []


# -- GPU memory


@pytest.mark.parametrize(
    ("first", "second", "stays"),
    [
        (DEVICE_OUTPUTS, DEVICE_INPUTS, True),
        (DEVICE_INPUTS, DEVICE_INPUTS, False),
        (DEVICE_OUTPUTS, DEVICE_OUTPUTS, False),
    ],
)
def test_tensors_stay_in_gpu_memory_between_steps_that_both_use_it(ensemble, a, b, first, second, stays):
    a.device, b.device = first, second
    _, replies = ensemble.ask()
    assert a.last.device.kept == {"OUT"} if stays else a.last.device is None
    a.respond()
    assert b.last.device is None, "these are bytes, and the client gets bytes"
    b.respond()
    assert not replies.responses[0][0].is_on_device


def test_outputs_stay_in_gpu_memory_if_the_client_takes_them_there(ensemble, a, b):
    a.device = b.device = DEVICE_INPUTS | DEVICE_OUTPUTS
    for use, kept in (
        (DeviceUse(keeps_outputs=True), True),
        (DeviceUse(kept=frozenset({"OUT"})), True),
        (DeviceUse(kept=frozenset({"other"})), False),
    ):
        _, replies = ensemble.ask(device=use)
        a.respond()
        assert (b.last.device is not None and b.last.device.kept == {"OUT"}) == kept
        b.respond()
        assert replies.responses[0][0].is_on_device


def test_an_ensemble_uses_gpu_memory_as_its_steps_do(ensemble, a, b):
    assert ensemble.version.device == DEVICE_OUTPUTS
    a.device = DEVICE_INPUTS
    assert ensemble.version.device == DEVICE_OUTPUTS | DEVICE_INPUTS
    del ensemble.members.members["a"]
    assert ensemble.version.device == DEVICE_OUTPUTS
    assert Ensemble(a, b, text=IO + "response_cache { enable: true }").version.device == 0


# -- turns


def test_steps_beyond_the_limit_wait_for_their_turn(a, b):
    ensemble = Ensemble(a, b, more="max_inflight_requests: 1")
    first, _ = ensemble.ask()
    assert ensemble.waits == []
    second, replies = ensemble.ask()
    assert (len(a.submitted), len(ensemble.waits)) == (1, 1)
    assert not first.is_waiting
    assert second.is_waiting
    assert first.waits() == [["guest of a"]]
    assert second.waits() == [{"guest of a"}]
    a.respond()
    assert len(a.submitted) == 2
    assert not second.is_waiting
    a.respond()
    b.respond(key=1)
    b.respond(key=2)
    assert replies.responses[0][1]


def test_a_step_that_waits_for_its_turn_is_cancelled_at_once(a, b):
    ensemble = Ensemble(a, b, more="max_inflight_requests: 1")
    ensemble.ask()
    opened, replies = ensemble.ask()
    opened.cancel()
    assert replies.error.message == "in ensemble 'e', Request was cancelled"
    assert a.calls == []
    a.respond()
    assert len(a.submitted) == 1


class HastyMember(Member):
    """Holds its first request, and responds to all others before `submit` returns, as from a cache."""

    def accept(self, opened: OpenRequest) -> None:
        super().accept(opened)
        if opened.key > 1:
            self.respond(key=opened.key)


@pytest.fixture
def hasty():
    return HastyMember("a")


@pytest.fixture
def limited(hasty):
    return Ensemble(hasty, steps=[step("a", {"IN": "IN"}, {"OUT": "OUT"})], more="max_inflight_requests: 1")


async def until_idle(version: EnsembleVersion) -> None:
    while version.is_finishing_requests():
        await asyncio.sleep(0)


async def test_any_number_of_waiting_steps_may_end_at_once(limited, hasty):
    count = 2 * sys.getrecursionlimit()
    replies = [limited.ask()[1] for _ in range(count)]
    assert len(hasty.submitted) == 1

    hasty.respond(key=1)
    assert len(hasty.submitted) < count  # the loop serves others in between
    await until_idle(limited.version)

    assert [len(each.responses) for each in replies] == [1] * count
    assert all(response.error is None and final for each in replies for response, final in each.responses)


async def test_a_step_is_cancelled_that_is_submitted_in_a_later_turn_of_the_loop(limited, hasty):
    asked = [limited.ask() for _ in range(200)]
    hasty.respond(key=1)
    opened, unanswered = next((opened, each) for opened, each in asked if not each.responses)
    assert opened.is_waiting
    assert opened.waits() == [()]

    opened.cancel()
    await until_idle(limited.version)

    assert unanswered.error.code is Code.CANCELLED
    assert len(hasty.submitted) == len(asked) - 1
    assert all(len(each.responses) == 1 for _, each in asked)


def test_a_step_that_waits_for_an_instance_is_reported(ensemble, a):
    a.waiting.add(1)
    opened, _ = ensemble.ask()
    assert ensemble.waits == [[["guest of a"]]]
    assert opened.is_waiting
    a.waiting.clear()
    assert not opened.is_waiting


def test_a_request_waits_if_one_of_its_steps_does(a, b):
    ensemble = Ensemble(a, b, steps=[step("a", {"IN": "IN"}, {"OUT": "X"}), step("b", {"IN": "IN"}, {"OUT": "OUT"})])
    b.waiting.add(1)
    opened, _ = ensemble.ask()
    assert opened.is_waiting
    assert opened.waits() == [["guest of a"], ["guest of b"]]


# -- life


@pytest.mark.parametrize(
    ("conditions", "condition"),
    [
        ([True, True], ModelCondition.READY),
        ([True, False], ModelCondition.DEGRADED),
        ([False, False], ModelCondition.NOT_SERVING),
    ],
)
def test_an_ensemble_is_as_ready_as_its_members(ensemble, b, conditions, condition):
    b.conditions = conditions
    found = ensemble.version.statistics()
    assert found.condition is condition
    assert (ensemble.version.is_ready(), ensemble.version.are_all_ready()) == (conditions[0], conditions[1])
    assert (found.name, found.version) == ("e", "4")
    assert ensemble.version.config.json["name"] == ensemble.version.metadata.name == "e"


def test_an_ensemble_without_a_member_is_lost(ensemble, a, b):
    assert not ensemble.version.is_lost
    assert ensemble.version.instances == ["a_0", "b_0"]
    assert ensemble.version.open_sequences == 4
    b.is_lost = True
    assert ensemble.version.is_lost
    b.is_lost = False
    del ensemble.members.members["a"]
    assert ensemble.version.is_lost
    assert not ensemble.version.is_ready()
    assert not ensemble.version.are_all_ready()
    assert ensemble.version.instances == ["b_0"]
    assert ensemble.version.open_sequences == 2
    twice = (step("a", {"IN": "IN"}, {"OUT": "MIDDLE"}), step("a", {"IN": "MIDDLE"}, {"OUT": "OUT"}))
    once = Ensemble(a, steps=twice).version
    assert (once.instances, once.open_sequences) == (["a_0"], 2), "a member of several steps counts once"


@pytest.mark.parametrize("answers", [True, False], ids=["they finish", "the time ends"])
def test_requests_in_flight_finish_before_an_ensemble_stops_or_fail(ensemble, a, b, answers):
    clock = Clock()

    async def stop() -> None:
        _, replies = ensemble.ask()
        started = clock.monotonic()
        stopping = asyncio.ensure_future(ensemble.version.stop(10))
        await asyncio.sleep(1)
        assert not stopping.done()
        assert ensemble.version.is_ready()
        for member in (a, b) if answers else ():
            member.respond()
        await stopping
        if answers:
            assert clock.monotonic() - started < 2
            assert replies.responses[0][0].error is None
        else:
            assert 10 <= clock.monotonic() - started < 10.1
            assert replies.error.message == "model 'e' is being unloaded"
            assert a.calls == [("cancel", 1), ("drop_responses", 1)]
        assert ensemble.version.reason == "it is being unloaded"
        assert not ensemble.version.is_ready()
        with pytest.raises(NaiadError, match="it is being unloaded"):
            ensemble.ask()

    clock.run(stop())


def test_outputs_have_the_shape_that_the_configuration_declares(a, b):
    text = """input { name: "IN" data_type: TYPE_FP32 dims: 2 }
    output { name: "OUT" data_type: TYPE_FP32 dims: [1, 2] reshape { shape: 2 } }"""
    ensemble = Ensemble(a, b, text=text)
    _, replies = ensemble.ask()
    a.respond()
    b.respond()
    assert replies.responses[0][0].outputs[0].shape == (1, 2)
