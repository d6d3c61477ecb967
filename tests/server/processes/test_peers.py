"""The link between two processes beside the coordinator: what each sends to the replicas of the other."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from server.processes.pair import Pair, Sink, Taken, request
from support.links import held_by
from support.waiting import until_async

from naiad.core.errors import Code, NaiadError
from naiad.engine.open_request import OpenRequest
from naiad.guests.memory.link_memory import LinkMemory
from naiad.protocol.inference import InferRequest, InferResponse
from naiad.server.processes.peer import Peer, exited_error
from naiad.server.processes.request_session import GoneError
from naiad.server.processes.traces import RemoteTrace

LOAD = 7
TIMES = tuple((1 << 60) + number for number in range(5))


class Trace:
    """Keeps what it is told, and how many responses there were before that."""

    def __init__(self, context: bytes | None, sink: Sink) -> None:
        self.context = context
        self.computed: list[tuple[tuple[int, ...], int]] = []
        self._sink = sink

    def on_computed(self, *times: int) -> None:
        self.computed.append((times, len(self._sink.responses)))

    def start_child(self, request: InferRequest, sink: Any) -> Any:
        return sink

    def on_rejected(self) -> None:
        pass

    on_composed = on_computed


class Models:
    """The replicas of a process: one version, which answers with the bytes of its inputs, or is gone."""

    is_exiting = False

    def __init__(self, memory: LinkMemory) -> None:
        self.version = SimpleNamespace(number=LOAD, config=SimpleNamespace(decoupled=False), forwarding=None)
        self.version.shared_inputs = memory.add_inputs("m")
        self.version.direct = self.version
        self.version.accept = self.accept
        self.requests: list[InferRequest] = []
        self.submitted: list[Taken] = []
        self.is_gone = False
        self.is_idle = True
        self.sinks: list[Any] = []
        self.is_answering = True

    def admitted_target(self, request: InferRequest, load: int) -> Any:
        return self.find_target(request.model_name, request.model_version, load)

    def find_target(self, name: str, version: int, load: int) -> Any:
        if self.is_gone or load != LOAD:
            raise GoneError("gone")
        return self.version

    def accept(self, opened: OpenRequest) -> None:
        if opened.needs_idle and not self.is_idle:
            raise GoneError("not idle")
        opened.holder = taken = Taken()
        opened.worker = SimpleNamespace(spec=SimpleNamespace(name="m_0_1"))  # type: ignore[assignment]
        self.submitted.append(taken)
        request, sink = opened.request, opened.sink
        self.requests.append(request)
        self.sinks.append(sink)
        if request.trace is not None:
            request.trace.on_computed(*TIMES)
        if self.is_answering:
            sink.send(InferResponse(request.model_name, 1, request.request_id), True)


class Ends:
    """Both ends, on one loop; the second has the models."""

    def __init__(self) -> None:
        one, two = socket.socketpair()
        memory = LinkMemory(1)
        self.models = Models(memory)
        self.elsewhere: list[OpenRequest] = []
        self.ended = 0
        self.here = Peer(
            one,
            self._on_end,
            Models(LinkMemory(1)),
            LinkMemory(1),
            {},
            exited_error(2),
            self.elsewhere.append,
        )
        self.there = Peer(two, self._on_other_end, self.models, memory, {}, exited_error(1), lambda _: None)

    def _on_end(self) -> None:
        self.ended += 1
        self.here.close()

    def _on_other_end(self) -> None:
        self.there.close()

    def send(self, sent: InferRequest, sink: Any, *, needs_idle: bool = False) -> OpenRequest:
        opened = OpenRequest(sent, sink, needs_idle)
        self.here.requests.send_request(opened, self.here.requests.route_to(LOAD, is_decoupled=False))
        return opened

    def close(self) -> None:
        self.here.close()
        self.there.close()


def run(test: Callable[[Ends], Awaitable[None]]) -> None:
    async def with_ends() -> None:
        ends = Ends()
        try:
            await asyncio.wait_for(test(ends), 30)
        finally:
            ends.close()

    asyncio.run(with_ends())


def numbered(elements: int) -> InferRequest:
    sent = request("m", elements)
    (tensor,) = sent.inputs
    return replace(sent, inputs=[replace(tensor, data=bytes(range(256)) * (elements // 64))], request_id="id")


def test_a_request_is_answered_by_the_version_that_was_meant() -> None:
    async def test(ends: Ends) -> None:
        sink = Sink()
        ends.send(numbered(64), sink)
        await until_async(lambda: sink.responses)
        (response,) = sink.responses
        assert response is not None
        assert (response.model_name, response.request_id, response.error) == ("m", "id", None)
        assert ends.here.requests.request_count == ends.there.session.request_count == 0

    run(test)


@pytest.mark.parametrize("elements", [64, 256, 320, 4_096, 1 << 21])
def test_long_inputs_are_in_shared_memory_from_the_second_template_on(elements: int) -> None:
    async def test(ends: Ends) -> None:
        sent = numbered(elements)
        for count in (1, 2, 3):
            sink = Sink()
            ends.send(sent, sink)
            await until_async(lambda sink=sink: sink.responses)
            received = ends.models.requests[-1]
            assert bytes(received.inputs[0].data) == sent.inputs[0].data
            assert (received.place is not None) is (count > 1 and elements > 256)
            del received
            ends.models.requests.clear()
        await until_async(lambda: not held_by(ends.here.requests).input_bytes)

    run(test)


@pytest.mark.parametrize("context", [None, b"", b'{"traceparent": "00-1-2-01"}'])
@pytest.mark.parametrize("fields", [{}, {"parameters": {"a": 1}}], ids=["short", "full"])
def test_a_traced_request_has_its_context_there_and_its_times_come_back_before_the_response(
    context: bytes | None, fields: dict[str, Any]
) -> None:
    async def test(ends: Ends) -> None:
        sink, untraced = Sink(), Sink()
        trace = Trace(context, sink)
        opened = ends.send(replace(numbered(64), trace=trace, **fields), sink)
        ends.send(replace(numbered(64), **fields), untraced)
        await until_async(lambda: sink.responses and untraced.responses)
        found, other = (each.trace for each in ends.models.requests)
        assert isinstance(found, RemoteTrace)
        assert found.start_child(ends.models.requests[0], sink) is sink, "the coordinator has the trace"
        assert (found.context, found.number, other) == (context, opened.key, None)
        assert trace.computed == [(TIMES, 0)]

    run(test)


def test_a_trace_of_a_request_that_is_refused_is_not_that_of_the_next_one() -> None:
    async def test(ends: Ends) -> None:
        ends.models.is_gone = True
        ends.send(replace(numbered(64), trace=Trace(None, Sink())), Sink())
        await until_async(lambda: ends.elsewhere)
        ends.models.is_gone = False
        ends.send(numbered(64), Sink())
        await until_async(lambda: ends.models.requests)
        assert ends.models.requests[0].trace is None

    run(test)


def test_a_request_to_a_version_that_is_gone_goes_elsewhere() -> None:
    async def test(ends: Ends) -> None:
        ends.models.is_gone = True
        sink = Sink()
        opened = ends.send(numbered(64), sink)
        await until_async(lambda: ends.elsewhere)
        assert ends.elsewhere == [opened]
        assert (opened.request.request_id, opened.sink, sink.responses) == ("id", sink, [])
        assert ends.here.requests.count_of(LOAD) == 0

    run(test)


def test_a_request_whose_responses_are_dropped_is_rejected_where_its_version_is_gone() -> None:
    async def test(ends: Ends) -> None:
        ends.models.is_gone = True
        sink = Sink()
        opened = ends.send(numbered(64), sink)
        opened.drop_responses()
        await until_async(lambda: sink.responses)
        assert [each and each.error and each.error.message for each in sink.responses] == ["Request was cancelled"]
        assert (sink.ends, opened.is_ended, ends.elsewhere) == (1, True, [])

    run(test)


def test_a_cancelled_request_gets_its_end_and_no_response() -> None:
    async def test(ends: Ends) -> None:
        ends.models.is_answering = False
        sink = Sink()
        opened = ends.send(numbered(64), sink)
        await until_async(lambda: ends.models.requests)
        assert ends.here.requests.count_of(LOAD) == 1
        opened.cancel()
        await until_async(lambda: ends.models.submitted[0].acts == ["cancel", "drop_responses"])

    run(test)


def test_requests_fail_when_the_process_exits() -> None:
    async def test(ends: Ends) -> None:
        ends.models.is_answering = False
        sink = Sink()
        ends.send(numbered(64), sink)
        await until_async(lambda: ends.models.requests)
        ends.there.close()
        await until_async(lambda: sink.responses)
        (response,) = sink.responses
        assert response is not None
        assert isinstance(response.error, NaiadError)
        assert response.error.code is Code.UNAVAILABLE  # 503: another attempt may succeed
        assert response.error.message == (
            "cannot finish the request: process 2 of the server, which had it, has exited; send it again"
        )
        assert ends.ended == 1
        assert ends.models.submitted[0].is_cancelled

    run(test)


def test_memory_of_a_version_that_is_gone_is_unmapped() -> None:
    async def test(ends: Ends) -> None:
        for _ in range(2):
            sink = Sink()
            ends.send(numbered(4_096), sink)
            await until_async(lambda sink=sink: sink.responses)
        ends.models.requests.clear()
        ends.models.version.shared_inputs.close()
        ends.there.session.on_routes_changed()
        await until_async(lambda: not ends.here.requests.routes)
        assert held_by(ends.here.requests).templates == 0

    run(test)


def test_a_call_is_taken_by_an_idle_instance_or_comes_back() -> None:
    async def test(ends: Ends) -> None:
        guest: Any = object()
        ends.here.requests.find_guest = lambda load, instance: guest if (load, instance) == (LOAD, "m_0_1") else None
        ends.models.is_answering = False
        sink, late = Sink(), Sink()
        taken = ends.send(numbered(64), sink, needs_idle=True)
        assert (taken.waits(), taken.is_waiting) == ((), False)
        await until_async(lambda: taken.instance)
        assert taken.waits() == ((guest,),)
        find_guest, ends.here.requests.find_guest = ends.here.requests.find_guest, None
        assert taken.waits() == (), "deadlocks are looked for elsewhere"
        ends.here.requests.find_guest = find_guest
        ends.models.sinks[0].send(None, True)
        await until_async(lambda: sink.responses)
        assert taken.waits() == ()
        ends.models.is_idle = False
        opened = ends.send(numbered(64), late, needs_idle=True)
        await until_async(lambda: ends.elsewhere)
        assert ends.elsewhere == [opened]
        assert (opened.instance, late.responses, ends.there.session.request_count) == ("", [], 0)

    run(test)


@pytest.mark.parametrize("elements", [64, 1 << 21])
def test_the_responses_to_a_cancelled_call_come_until_they_are_dropped(elements: int) -> None:
    """The inputs of a long one are still copied when it is cancelled."""

    async def test(ends: Ends) -> None:
        ends.models.is_answering = False
        first = Sink()
        ends.send(numbered(elements), first, needs_idle=True)  # its template brings a part for the next one
        await until_async(lambda: ends.models.requests)
        sink = Sink()
        opened = ends.send(numbered(elements), sink, needs_idle=True)
        opened.confirm_sent(0)
        opened.cancel(drops_responses=False)
        await until_async(lambda: len(ends.models.submitted) == 2 and ends.models.submitted[1].is_cancelled)
        assert ends.models.submitted[1].acts == ["cancel"]
        ends.models.sinks[1].send(InferResponse("m", 1, "still"), False)
        await until_async(lambda: sink.responses)
        opened.drop_responses()
        ends.models.sinks[1].send(InferResponse("m", 1, "on its way"), False)
        await until_async(lambda: "drop_responses" in ends.models.submitted[1].acts)
        ends.models.sinks[1].send(None, True)
        await until_async(lambda: len(sink.responses) == 2)
        assert [each and each.request_id for each in sink.responses] == ["still", None]

    run(test)


async def test_every_process_is_told_of_replicas_that_have_ended(pair: Pair) -> None:
    told: list[str] = []

    def peer(name: str) -> Any:
        return SimpleNamespace(session=SimpleNamespace(on_routes_changed=lambda: told.append(name)))

    pair.remote.coordinator.session = peer("coordinator").session
    pair.remote.peers[2] = peer("process 2")
    pair.remote.on_replica_closed()
    assert told == ["coordinator", "process 2"]
    pair.remote.peers.clear()


async def test_memory_knows_the_processes_that_share_it_until_they_exit(pair: Pair) -> None:
    assert pair.memory.users == [pair.session]
    pair.process.close()
    pair.process.close()
    assert pair.memory.users == []


async def test_a_process_takes_the_place_of_one_that_has_exited_and_is_gone_once_it_has(pair: Pair) -> None:
    pairs = [socket.socketpair() for _ in range(2)]
    peers = []
    for own, _ in pairs:
        pair.remote.services["peer"](own.detach(), 2)
        peers.append(pair.remote.peers[2])
    assert [each.link.is_open for each in peers] == [False, True]
    peers[0].link._on_end()
    assert pair.remote.peers == {2: peers[1]}
    pairs[1][1].close()
    await pair.settle(lambda: not pair.remote.peers)
    assert not peers[1].link.is_open
    pairs[0][1].close()
