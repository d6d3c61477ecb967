"""What arrives at the owner of a request: everything that its client sent, by the cheapest message that has room for it."""

from __future__ import annotations

import struct
import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from fakes.submitted import Submitted
from naiad_stub import wire
from server.processes.pair import SILENT, Pair, Sink, request

from naiad.core.errors import NaiadError, UnknownModelError
from naiad.engine.open_request import ForwardedRequest
from naiad.guests.memory.instance import COPY_LIMIT, InstanceMemory
from naiad.guests.tensors import TensorLayout
from naiad.protocol.datatypes import Datatype
from naiad.protocol.inference import InferRequest, InferResponse, InputTensor, OutputTensor, StringScan
from naiad.server.processes import request_link
from naiad.server.processes.messages import MAX_SHORT_TEXT, SHORT_REQUEST, FrameKind, FullRequest, pack

TRACE = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "tracestate": "a=1,b=é"}
BYTES = b"\x01\x00\x00\x00a"
STRING = InputTensor("S", Datatype.BYTES, (1,), BYTES, StringScan(1, 5))
LONG = 1 << 20
LARGE = 5_000
"""Elements of FP32 that do not travel in messages."""


def kinds_of(pair: Pair) -> list[int]:
    """The kinds of requests that the owner has got."""
    return [kind for kind in pair.kinds if kind in (FrameKind.SHORT_REQUEST, FrameKind.REQUEST)]


async def arrived(pair: Pair, sent: InferRequest) -> InferRequest:
    sink = Sink()
    pair.remote.submit(sent, sink)
    await pair.settle(lambda: sink.responses)
    return pair.engine.requests[-1]


def comparable(found: InferRequest) -> InferRequest:
    inputs = [replace(each, data=bytes(each.data)) for each in found.inputs]
    return replace(
        found,
        inputs=inputs,
        requested_outputs=tuple(found.requested_outputs),
        parameters=dict(found.parameters),
        propagated=dict(found.propagated),
        layout_key=None,
    )


CASES = {
    "nothing else": ({}, FrameKind.SHORT_REQUEST),
    "an id": ({"request_id": "é \udc80"}, FrameKind.SHORT_REQUEST),
    "a trace": ({"propagated": TRACE}, FrameKind.SHORT_REQUEST),
    "an id and a trace": ({"request_id": "7", "propagated": TRACE}, FrameKind.SHORT_REQUEST),
    "the longest id": ({"request_id": "7" * MAX_SHORT_TEXT}, FrameKind.SHORT_REQUEST),
    "a longer id": ({"request_id": "7" * (MAX_SHORT_TEXT + 1)}, FrameKind.REQUEST),
    "the longest trace": ({"propagated": {"t": "x" * (MAX_SHORT_TEXT - 8)}}, FrameKind.SHORT_REQUEST),
    "a longer trace": ({"propagated": {"t": "x" * (MAX_SHORT_TEXT - 7)}}, FrameKind.REQUEST),
    "parameters": ({"parameters": {"p": 1}, "propagated": TRACE}, FrameKind.REQUEST),
    "a sequence": ({"correlation_id": 5, "flags": 3}, FrameKind.REQUEST),
    "a named sequence": ({"correlation_id": "five"}, FrameKind.REQUEST),
    "an empty name of a sequence": ({"correlation_id": ""}, FrameKind.REQUEST),
    "a priority": ({"priority": 2}, FrameKind.REQUEST),
    "a timeout": ({"timeout_us": 100}, FrameKind.REQUEST),
    "counted strings": ({"inputs": [STRING]}, FrameKind.REQUEST),
    "strings": ({"inputs": [replace(STRING, strings=None)]}, FrameKind.SHORT_REQUEST),
    "counted strings beside others": (
        {"inputs": [replace(STRING, name="T", strings=None), STRING]},
        FrameKind.REQUEST,
    ),
    "counted strings beside numbers": (
        {"inputs": [InputTensor("A", Datatype.UINT8, (1,), b"a"), STRING]},
        FrameKind.REQUEST,
    ),
    "long inputs": (
        {"inputs": [InputTensor("A", Datatype.UINT8, (LONG,), bytes(range(256)) * (LONG >> 8))]},
        FrameKind.SHORT_REQUEST,
    ),
    "long inputs and parameters": (
        {
            "inputs": [
                InputTensor("A", Datatype.UINT8, (3,), b"abc"),
                InputTensor("B", Datatype.UINT8, (LONG,), b"b" * LONG),
                InputTensor("C", Datatype.UINT8, (1,), b"c"),
            ],
            "parameters": {"p": 1},
        },
        FrameKind.REQUEST,
    ),
    "a gap between inputs": (
        {"inputs": [InputTensor("A", Datatype.UINT8, (3,), b"abc"), InputTensor("B", Datatype.UINT8, (1,), b"d")]},
        FrameKind.SHORT_REQUEST,
    ),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("is_known", [False, True], ids=["by its parts", "by its key"])
async def test_a_request_arrives_as_it_was_sent(pair: Pair, case: str, is_known: bool) -> None:
    fields, kind = CASES[case]

    pair.know_route("m")
    sent = replace(request("m"), layout_key=case if is_known else None, **fields)
    for _ in range(3):
        assert comparable(await arrived(pair, sent)) == comparable(sent)
    assert kinds_of(pair) == [kind] * 3
    assert len(pair.session._templates) == 1
    assert pair.held.templates == 1 + is_known


@pytest.mark.parametrize(
    ("fields", "has_key"),
    [
        ({}, True),
        ({"parameters": {"p": 1}}, True),
        ({"parameters": {"p": 1}, "request_id": "7" * 1023}, True),
        ({"parameters": {"p": 1}, "request_id": "7" * 1024}, False),
        ({"correlation_id": 5}, True),
        ({"correlation_id": "five"}, False),
    ],
)
async def test_a_request_is_checked_once_for_all_of_its_template_unless_its_own_fields_matter(
    pair: Pair, fields: dict[str, Any], has_key: bool
) -> None:
    pair.know_route("m")
    found = await arrived(pair, replace(request("m"), **fields))
    assert (found.layout_key is not None) is has_key


async def test_a_request_of_a_known_form_may_have_what_the_others_did_not(pair: Pair) -> None:
    """A frontend adds parameters and a trace to requests after their form was recognised."""
    pair.know_route("m")
    for fields in ({}, {"parameters": {"header": "x"}}, {"propagated": TRACE}, {"request_id": "7"}, {}):
        sent = replace(request("m"), **fields)
        assert comparable(await arrived(pair, sent)) == comparable(sent)
    assert kinds_of(pair) == [FrameKind.SHORT_REQUEST, FrameKind.REQUEST, *[FrameKind.SHORT_REQUEST] * 3]


class Forwarding:
    """Takes every request, and keeps it.

    Attributes:
        asked: How often it was asked for a layout.
        knows_layout: Whether it knows one.
    """

    def __init__(self, *, knows_layout: bool = True) -> None:
        self.forwarded: list[ForwardedRequest] = []
        self.submitted = Submitted()
        self.asked = 0
        self.knows_layout = knows_layout

    def known_layout(self, key: object, size: int) -> Any:
        self.asked += 1
        return object() if self.knows_layout else None

    def forward(self, forwarded: ForwardedRequest, layout: object) -> Submitted:
        self.forwarded.append(forwarded)
        return self.submitted


async def test_a_traced_request_is_forwarded_with_its_context(pair: Pair) -> None:
    forwarding = pair.engine.version.forwarding = Forwarding()
    pair.know_route("m")
    sink = Sink()
    sent = replace(request("m"), request_id="7", propagated=TRACE)
    opened = pair.remote.submit(sent, sink)
    await pair.settle(lambda: forwarding.forwarded)
    (forwarded,) = forwarding.forwarded
    assert (forwarded.request_id, forwarded.inputs) == (b"7", bytes(4))
    assert comparable(forwarded.source.request_of(forwarded)) == comparable(sent)
    assert pair.session.request_count == 1
    opened.cancel(drops_responses=False)
    await pair.settle(lambda: forwarding.submitted.acts)
    assert forwarding.submitted.acts == [("cancel", False)]
    layout = TensorLayout([("Y", Datatype.UINT8, (2,), 0, 2)], 2)
    forwarded.source.respond(forwarded.number, ("m", 1), layout, b"ab")
    assert pair.session.request_count == 0
    await pair.settle(lambda: sink.responses)
    (response,) = sink.responses
    assert response is not None
    assert [bytes(each.data) for each in response.outputs] == [b"ab"]


async def test_a_request_is_forwarded_to_the_version_that_serves_when_it_arrives(pair: Pair) -> None:
    first, second = Forwarding(), Forwarding()
    pair.engine.version.forwarding = first
    pair.know_route("m")
    pair.remote.submit(request("m"), Sink())
    await pair.settle(lambda: first.forwarded)
    pair.remote.submit(request("m"), Sink())
    pair.engine.version.forwarding = second
    pair.session.on_routes_changed()
    await pair.settle(lambda: second.forwarded)
    assert len(first.forwarded) == 1


@pytest.mark.parametrize("is_decoupled", [False, True])
async def test_a_layout_is_looked_for_a_few_times(pair: Pair, is_decoupled: bool) -> None:
    forwarding = pair.engine.version.forwarding = Forwarding(knows_layout=False)
    pair.engine.version.config.decoupled = is_decoupled
    pair.know_route("m")
    for _ in range(5):
        await arrived(pair, request("m"))
    assert forwarding.asked == (0 if is_decoupled else 3)


@pytest.mark.parametrize("is_exiting", [False, True])
async def test_a_request_is_not_forwarded_if_its_inputs_are_in_shared_memory_or_the_server_exits(
    pair: Pair, is_exiting: bool
) -> None:
    forwarding = pair.engine.version.forwarding = Forwarding()
    if is_exiting:
        pair.engine.is_exiting = True
    else:
        pair.engine.version.shared_inputs = pair.memory.add_inputs("m")
    pair.know_route("m")
    sent = request("m") if is_exiting else request("m", LARGE)
    found = await arrived(pair, sent)
    assert bytes(found.inputs[0].data) == sent.inputs[0].data
    assert forwarding.forwarded == []


async def test_inputs_in_shared_memory_are_found_in_the_part_of_their_process(pair: Pair) -> None:
    shared = pair.engine.version.shared_inputs = pair.memory.add_inputs("m")
    assert shared.take_part() == 0, "another process has it"
    pair.know_route("m")
    starts = []
    for number in (1, 2):
        sent = request("m", LARGE)
        sent.inputs = [replace(sent.inputs[0], data=bytes([number]) * 4 * LARGE)]
        found = await arrived(pair, sent)
        assert found.place is not None
        start = found.place.start
        assert found.place.segment == shared.number
        assert bytes(shared.view[start : start + 4 * LARGE]) == bytes(found.inputs[0].data) == sent.inputs[0].data
        starts.append(start)
    assert shared.part_size <= starts[0] < starts[1]
    pair.process.close()
    pair.engine.requests.clear()
    del found
    await pair.settle(lambda: sorted(shared._free) == [1, 2, 3])


def place_and_unload(pair: Pair, sink: Any) -> None:
    """Submit a request whose inputs are in the segment of a version, which is unmapped before the owner reads it."""
    shared = pair.engine.version.shared_inputs = pair.memory.add_inputs("m")
    pair.know_route("m")
    pair.remote.submit(replace(request("m", LARGE), request_id="7"), sink)
    assert pair.held.requests == 1
    shared.close()
    pair.engine.version.number += 1
    pair.engine.version.shared_inputs = None


async def test_a_request_for_a_version_that_is_gone_is_sent_to_the_next_one(pair: Pair) -> None:
    sink = Sink()
    place_and_unload(pair, sink)
    await pair.settle(lambda: sink.responses)
    (found,) = pair.engine.requests
    assert comparable(found) == replace(comparable(request("m", LARGE)), request_id="7")
    assert [each.error for each in sink.responses] == [None]
    assert pair.session.received_count == 1


async def test_a_request_that_cannot_be_sent_to_the_next_version_is_rejected(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    def faulty(*_: object) -> bytes:
        raise struct.error("a fault of the test")

    sink = Sink()
    place_and_unload(pair, sink)
    monkeypatch.setattr(request_link, "SHORT_REQUEST_FRAME", SimpleNamespace(pack=faulty))
    await pair.settle(lambda: sink.responses)
    ((error,),) = ([each.error for each in sink.responses if each is not None],)
    cause = "unexpected struct.error: a fault of the test; see the log of the server"
    assert str(error) == f"cannot submit the request to 'm': {cause}"
    assert pair.held.requests == 0


async def test_a_request_for_a_model_that_is_gone_is_rejected_like_any_other(pair: Pair) -> None:
    errors: list[NaiadError] = []

    class Rejectable(Sink):
        def reject(self, error: NaiadError) -> None:
            errors.append(error)

    place_and_unload(pair, Rejectable())
    pair.engine.refusal = UnknownModelError("Request for unknown model: 'm' is not found")
    await pair.settle(lambda: errors)
    assert [type(error) for error in errors] == [UnknownModelError]
    assert pair.held.requests == 0


class Rejectable(Sink):
    """Keeps why its request was rejected."""

    def __init__(self) -> None:
        super().__init__()
        self.rejections: list[str] = []

    def reject(self, error: NaiadError) -> None:
        self.rejections.append(error.message)


async def test_a_request_that_cannot_be_read_is_rejected(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    rejectable = Rejectable()
    first, second = pair.sink(1), pair.remote.submit(request(SILENT), rejectable)
    await pair.settle(lambda: len(pair.engine.submitted) == 2)
    unknown = SHORT_REQUEST.pack(first_number := 1, 99, -1, 0, 0)
    pair.link.send(wire.frame(FrameKind.SHORT_REQUEST, unknown))
    full = FullRequest(second.key, 99, "", {}, (0, 0, 0, 0), (None,), -1, 0, {}, None)
    pair.link.send(pack(FrameKind.REQUEST, full))
    await pair.settle(lambda: first.responses and rejectable.rejections)
    (response,) = first.responses
    assert response is not None
    assert response.error is not None
    assert response.error.message.startswith("cannot take a request of another process: unexpected KeyError")
    assert rejectable.rejections == [response.error.message]
    assert pair.opened[first_number].is_ended
    assert not pair.session.request_count
    assert "cannot handle a message of another process" in caplog.text


async def test_a_request_that_a_third_process_does_not_accept_is_rejected_once(pair: Pair) -> None:
    rejectable = Rejectable()
    opened = pair.remote.submit(request(SILENT), rejectable)
    await pair.settle(lambda: pair.engine.submitted)
    sink: Any = pair.session.sink_of(opened.key)
    sink.reject(NaiadError("its queue is full"))
    sink.reject(NaiadError("again"))
    await pair.settle(lambda: rejectable.rejections)
    other = Sink()
    pair.remote.submit(request("m"), other)
    await pair.settle(lambda: other.responses)
    assert rejectable.rejections == ["its queue is full"]
    assert rejectable.responses == []
    assert not pair.held.requests


async def test_an_unexpected_error_of_a_submit_is_an_error_of_the_request_and_nothing_is_kept(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pair.know_route("m")
    monkeypatch.setattr(request_link, "_parts_of", lambda *_: 1 // 0)
    sink = Sink()
    with pytest.raises(NaiadError, match="cannot submit the request to 'm': unexpected ZeroDivisionError"):
        pair.remote.submit(request("m"), sink)
    assert not pair.held.requests
    assert not pair.remote.requests._counts
    assert sink.responses == []
    assert "cannot submit a request to 'm'" in caplog.text


@pytest.mark.parametrize("is_unexpected", [False, True])
async def test_what_the_owner_cannot_submit_is_rejected(
    pair: Pair, is_unexpected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = ZeroDivisionError("oh") if is_unexpected else NaiadError("its queue is full")

    def submit(*_: object) -> None:
        raise error

    monkeypatch.setattr(pair.engine.version, "accept", submit)
    rejectable = Rejectable()
    pair.remote.submit(request("m"), rejectable)
    await pair.settle(lambda: rejectable.rejections)
    expected = (
        "cannot take a request of another process: unexpected ZeroDivisionError: oh" if is_unexpected else "its queue"
    )
    assert rejectable.rejections[0].startswith(expected)
    assert pair.session.received_count == 1
    assert not pair.session.request_count


async def test_a_request_for_a_model_that_became_decoupled_on_its_way_is_rejected(pair: Pair) -> None:
    pair.know_route("m")
    pair.engine.version.number += 1
    pair.engine.version.config.decoupled = True
    rejectable = Rejectable()
    pair.remote.submit(request("m"), rejectable)
    await pair.settle(lambda: rejectable.rejections)
    assert "was loaded again with another transaction policy" in rejectable.rejections[0]


async def test_memory_is_given_back_that_another_thread_refers_to_last(pair: Pair) -> None:
    pair.engine.version.shared_inputs = pair.memory.add_inputs("m")
    pair.know_route("m")
    guest = InstanceMemory("guest", capacity=1 << 24, shared=pair.memory)
    sink = pair.sink(1)
    size = COPY_LIMIT + 4
    outputs = [OutputTensor("X", Datatype.UINT8, (size,), guest.borrow(0, 0, size))]
    pair.session.sink_of(1).send(InferResponse("m", 1, "", outputs), True)
    del outputs
    answered = Sink()
    pair.remote.submit(request("m", 1 << 10), answered)
    await pair.settle(lambda: sink.responses and answered.responses)
    assert guest.borrowed_count
    assert pair.held.input_bytes
    for held in (sink.responses, pair.engine.requests):
        thread = threading.Thread(target=held.clear)
        thread.start()
        thread.join(30)
    await pair.settle(lambda: not guest.borrowed_count and not pair.held.input_bytes)
    guest.close()


async def test_pages_are_given_back_while_any_link_has_some(pair: Pair) -> None:
    answers = {"to the coordinator": False, "to another process": True}
    pair.remote.requests.trim = lambda: answers["to the coordinator"]  # type: ignore[method-assign]
    peer: Any = SimpleNamespace(
        requests=SimpleNamespace(trim=lambda: answers["to another process"], request_count=2),
        session=SimpleNamespace(),
    )
    pair.remote.peers[2] = peer
    assert pair.remote.trim()
    assert pair.remote.request_count == 2
    answers["to another process"] = False
    assert not pair.remote.trim()
    pair.remote.peers.clear()
