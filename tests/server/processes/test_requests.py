"""What arrives at the owner of a request: everything that its client sent, by the cheapest message that has room for it."""

from __future__ import annotations

import struct
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from fakes.submitted import Submitted
from server.processes.pair import Pair, Sink, request

from naiad.core.errors import NaiadError, UnknownModelError
from naiad.engine.open_request import ForwardedRequest
from naiad.protocol.datatypes import Datatype
from naiad.protocol.inference import InferRequest, InferResponse, InputTensor, StringScan
from naiad.server.processes import request_link
from naiad.server.processes.messages import FrameKind

TRACE = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "tracestate": "a=1,b=é"}
BYTES = b"\x01\x00\x00\x00a"
STRING = InputTensor("S", Datatype.BYTES, (1,), BYTES, StringScan(1, 5))
LONG = 1 << 20


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
    "a long id": ({"request_id": "7" * 70_000}, FrameKind.REQUEST),
    "a long trace": ({"propagated": {"tracestate": "x" * 70_000}}, FrameKind.REQUEST),
    "parameters": ({"parameters": {"p": 1}, "propagated": TRACE}, FrameKind.REQUEST),
    "a sequence": ({"correlation_id": 5, "flags": 3}, FrameKind.REQUEST),
    "a named sequence": ({"correlation_id": "five"}, FrameKind.REQUEST),
    "an empty name of a sequence": ({"correlation_id": ""}, FrameKind.REQUEST),
    "a priority": ({"priority": 2}, FrameKind.REQUEST),
    "a timeout": ({"timeout_us": 100}, FrameKind.REQUEST),
    "counted strings": ({"inputs": [STRING]}, FrameKind.REQUEST),
    "strings": ({"inputs": [replace(STRING, strings=None)]}, FrameKind.SHORT_REQUEST),
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


async def test_a_request_of_a_known_form_may_have_what_the_others_did_not(pair: Pair) -> None:
    """A frontend adds parameters and a trace to requests after their form was recognised."""
    pair.know_route("m")
    for fields in ({}, {"parameters": {"header": "x"}}, {"propagated": TRACE}, {"request_id": "7"}, {}):
        sent = replace(request("m"), **fields)
        assert comparable(await arrived(pair, sent)) == comparable(sent)
    assert kinds_of(pair) == [FrameKind.SHORT_REQUEST, FrameKind.REQUEST, *[FrameKind.SHORT_REQUEST] * 3]


class Forwarding:
    """Takes every request, answers it with its inputs, and keeps it."""

    def __init__(self) -> None:
        self.forwarded: list[ForwardedRequest] = []

    def known_layout(self, key: object, size: int) -> Any:
        return object()

    def forward(self, forwarded: ForwardedRequest, layout: object) -> Submitted:
        self.forwarded.append(forwarded)
        forwarded.source.sink_of(forwarded.number).send(InferResponse("m", 1), True)
        return Submitted()


async def test_a_traced_request_is_forwarded_with_its_context(pair: Pair) -> None:
    forwarding = pair.engine.version.forwarding = Forwarding()
    pair.know_route("m")
    sink = Sink()
    sent = replace(request("m"), request_id="7", propagated=TRACE)
    pair.remote.submit(sent, sink)
    await pair.settle(lambda: sink.responses)
    (forwarded,) = forwarding.forwarded
    assert (forwarded.request_id, forwarded.inputs) == (b"7", bytes(4))
    assert comparable(forwarded.source.request_of(forwarded)) == comparable(sent)


LARGE = 5_000
"""Elements of FP32 that do not travel in messages."""


def place_and_unload(pair: Pair, sink: Any) -> None:
    """Submit a request whose inputs are in the segment of a version, which is unmapped before the owner reads it."""
    shared = pair.engine.version.shared_inputs = pair.memory.add_inputs("m")
    pair.know_route("m")
    pair.remote.submit(replace(request("m", LARGE), request_id="7"), sink)
    assert pair.remote.held.requests == 1
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
    assert pair.remote.held.requests == 0


async def test_a_request_for_a_model_that_is_gone_is_rejected_like_any_other(pair: Pair) -> None:
    errors: list[NaiadError] = []

    class Rejectable(Sink):
        def reject(self, error: NaiadError) -> None:
            errors.append(error)

    place_and_unload(pair, Rejectable())
    pair.engine.refusal = UnknownModelError("Request for unknown model: 'm' is not found")
    await pair.settle(lambda: errors)
    assert [type(error) for error in errors] == [UnknownModelError]
    assert pair.remote.held.requests == 0
