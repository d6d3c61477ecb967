"""Messages between a frontend process and the owner take effect in their order, also where a call blocks meanwhile."""

from __future__ import annotations

import asyncio
import socket
import threading

import pytest
from naiad_stub import wire
from server.processes.pair import Pair

from naiad.guests.memory.instance import InstanceMemory
from naiad.protocol.datatypes import Datatype
from naiad.protocol.inference import InferResponse, OutputTensor
from naiad.server.processes.messages import CallResult, FrameKind, RemoteCall, VersionRoute, pack, unpack
from naiad.server.processes.remote_engine import RemoteEngine

LARGE = 200_000


def respond_from_guest(pair: Pair, number: int) -> InstanceMemory:
    """Respond with an output that stays in the segment of a guest."""
    guest = InstanceMemory("guest", capacity=1 << 24, shared=pair.memory)
    output = OutputTensor("A", Datatype.UINT8, (LARGE,), guest.borrow(0, 0, LARGE))
    pair.session.sink_of(number).send(InferResponse("m", 1, "", [output], layout=("large", number)), True)
    return guest


def respond(pair: Pair, number: int) -> None:
    outputs = [OutputTensor("A", Datatype.UINT8, (2,), b"ab")]
    pair.session.sink_of(number).send(InferResponse("m", 1, "", outputs, layout=("small",)), True)


async def test_a_response_is_read_before_the_segment_of_its_exited_guest_is_dropped(pair: Pair) -> None:
    sinks = [pair.sink(1), pair.sink(2)]
    respond_from_guest(pair, 1).close()
    pair.session.on_routes_changed()  # arrives together with the response
    respond(pair, 2)
    await pair.settle(lambda: all(sink.responses for sink in sinks))
    (large,), (small,) = (sink.responses for sink in sinks)
    assert bytes(large.outputs[0].data) == bytes(LARGE)
    assert bytes(small.outputs[0].data) == b"ab"
    assert pair.held.segments == 0


async def test_a_response_that_waits_for_a_blocking_call_keeps_the_segment_it_names(pair: Pair) -> None:
    sink = pair.sink(1)
    respond_from_guest(pair, 1).close()
    pair.session.on_routes_changed()
    pair.remote.receive()  # as a frontend does before it looks at a kept route
    assert sink.responses == []
    assert pair.held.segments == 1
    await pair.settle(lambda: sink.responses)
    assert bytes(sink.responses[0].outputs[0].data) == bytes(LARGE)
    assert pair.held.segments == 0


async def test_the_segment_of_an_exited_guest_is_unmapped_without_a_change_of_routes(pair: Pair) -> None:
    """Guests restart, and instances come and go with the load, while routes stay the same."""
    for number in (1, 2, 3):
        sink = pair.sink(number)
        guest = respond_from_guest(pair, number)
        await pair.settle(lambda sink=sink: sink.responses)
        (response,) = sink.responses
        guest.close()
        await pair.settle(lambda: not pair.held.segments)
        assert bytes(response.outputs[0].data) == bytes(LARGE)  # mapped while a response refers to it
    assert len(pair.session._segments) == 0


async def test_responses_keep_their_order_when_one_of_them_causes_a_blocking_call(pair: Pair) -> None:
    order: list[int] = []
    pair.sink(1, lambda: (respond(pair, 3), pair.owner.flush(), pair.remote.receive(), order.append(1)))
    for number in (2, 3):
        pair.sink(number, lambda number=number: order.append(number))
    respond(pair, 1)
    respond(pair, 2)
    await pair.settle(lambda: len(order) == 3)
    assert order == [1, 2, 3]


async def test_a_failing_sink_does_not_affect_other_responses(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    pair.sink(1, lambda: 1 // 0)
    other = pair.sink(2)
    respond(pair, 1)
    respond(pair, 2)
    await pair.settle(lambda: other.responses)
    assert "cannot pass on a response of 'm'" in caplog.text


async def test_a_request_whose_sink_fails_is_cancelled_and_forgotten(pair: Pair) -> None:
    pair.sink(1, lambda: 1 // 0)
    pair.session.sink_of(1).send(InferResponse("m", 1), False)
    await pair.settle(lambda: pair.engine.submitted[0].acts == ["cancel", "drop_responses"])
    assert pair.held.requests == 0
    assert pair.opened[1].is_ended


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_a_sink_that_does_not_take_the_end_of_its_responses_gets_an_error(
    pair: Pair, is_cancelled: bool, caplog: pytest.LogCaptureFixture
) -> None:
    sink = pair.sink(1, lambda: len(sink.responses) > 1 or 1 // 0)
    opened = pair.opened[1]
    if is_cancelled:
        opened.cancel()
    pair.session.sink_of(1).send(None, True)
    await pair.settle(lambda: len(sink.responses) == 2)
    end, error = sink.responses
    assert end is None
    assert error.error.message.startswith("cannot pass on a response of 'silent'")
    assert opened.is_ended
    assert "cannot handle a message" not in caplog.text


def test_a_route_that_changes_while_its_answer_arrives_is_asked_for_again() -> None:
    owner, frontend = socket.socketpair()
    owner.settimeout(30)

    def answer() -> None:
        """Reply to two calls; together with the first reply comes the news that it does not hold any more."""
        reader = wire.FrameReader()
        for load in (1, 2):
            calls: list[tuple[int, bytes]] = []
            while not calls:
                calls += reader.feed(owner.recv(1 << 16))
            ((kind, payload),) = calls
            assert kind == FrameKind.CALL
            route = VersionRoute(load, False, None, {"load": load})
            frames = pack(FrameKind.RESULT, CallResult(unpack(payload).number, route, None))
            if load == 1:
                frames += pack(FrameKind.CALL, RemoteCall(0, "routes_changed", (), {}))
            owner.sendall(frames)

    async def test() -> None:
        remote = RemoteEngine(frontend, lambda: None)
        try:
            assert remote.model_config("m") == {"load": 2}
            assert remote.model_config("m") == {"load": 2}  # kept
        finally:
            remote.coordinator.link.close()

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        asyncio.run(test())
    finally:
        owner.close()
        thread.join(30)
