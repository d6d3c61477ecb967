"""Requests that were sent to another process, which has not their version any more: they go on to the coordinator."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from server.processes.pair import SILENT, Pair, Sink, request

from naiad.engine.open_request import OpenRequest
from naiad.protocol.device_bytes import DeviceUse
from naiad.server.processes.messages import TracedArrival

ROW = 4
ROUTE: Any = SimpleNamespace(number=1, row=ROW)


class Peer:
    """A link to another process. Implements `Holder` as far as it is asked."""

    def __init__(self) -> None:
        self.requests = self
        self.session = SimpleNamespace()
        self.request_count = 0
        self.opened: list[OpenRequest] = []
        self.cancelled: list[OpenRequest] = []
        self.confirmed: list[int] = []

    def route_to(self, load: int, *, is_decoupled: bool) -> Any:
        return load

    def send_request(self, opened: OpenRequest, _: Any) -> None:
        opened.holder = self  # type: ignore[assignment]
        self.opened.append(opened)

    def cancel_request(self, opened: OpenRequest) -> None:
        self.cancelled.append(opened)

    def confirm_responses(self, opened: OpenRequest, count: int) -> None:
        assert opened in self.opened
        self.confirmed.append(count)


def replicas(**values: Any) -> Any:
    """Those of this process, which has none of what is asked for."""
    return SimpleNamespace(find=lambda _: None, **values)


@pytest.mark.parametrize(
    ("process", "device", "arrival", "place"),
    [
        (None, None, None, "here"),
        (2, None, None, "there"),
        (3, None, None, "coordinator"),
        (None, DeviceUse(keeps_outputs=True), None, "coordinator"),
        (None, None, TracedArrival("HTTP", 5, {}), "coordinator"),
    ],
    ids=["here", "there", "a process that has exited", "GPU memory", "it may be traced"],
)
async def test_a_request_of_a_client_goes_to_a_replica_unless_it_needs_the_coordinator(
    pair: Pair, process: int | None, device: DeviceUse | None, arrival: TracedArrival | None, place: str
) -> None:
    here: list[OpenRequest] = []
    noted: list[tuple[int, int]] = []
    peer, own = Peer(), replicas(received=5, note_sent=lambda *each: noted.append(each))
    own.find = lambda _: SimpleNamespace(better_process=lambda: process, accept=here.append)
    pair.remote.replicas = own
    pair.remote.peers[2] = peer  # type: ignore[assignment]
    pair.engine.version.row = ROW
    pair.session._tracer = SimpleNamespace(start=lambda *_: None)  # type: ignore[assignment]
    opened = pair.remote.submit(replace(request(SILENT), device=device), Sink(), arrival)
    await pair.settle(lambda: place != "coordinator" or pair.engine.submitted)
    found = {"here": here == [opened], "there": peer.opened == [opened], "coordinator": bool(pair.engine.submitted)}
    assert [each for each, has_it in found.items() if has_it] == [place]
    assert own.received == (5 if place == "coordinator" else 6), "the coordinator counts what comes to it"
    assert noted == ([(ROW, 2)] if place == "there" else [])


async def test_it_stays_the_same_request_and_its_client_gets_the_responses(pair: Pair) -> None:
    peer, sink, opened = Peer(), Sink(), OpenRequest(request(SILENT), None)
    opened.sink = sink
    pair.remote.peers[2] = peer  # type: ignore[assignment]
    noted: list[tuple[int, int]] = []
    own = replicas(received=1, note_sent=lambda *each: noted.append(each))
    pair.remote.replicas = own
    known: Any = SimpleNamespace(load=1, is_decoupled=False, route=ROUTE, replica=None)
    assert pair.remote._send_near(2, known, opened)
    assert noted == [(ROW, 2)]
    opened.confirm_sent(3)
    assert peer.confirmed == [3]

    pair.remote._send_elsewhere(opened)
    assert own.received == 0  # the coordinator counts what comes to it
    await pair.settle(lambda: pair.session.request_count == 1)
    opened.cancel()
    await pair.settle(lambda: pair.engine.cancelled == [1])
    assert peer.cancelled == []
    pair.session.sink_of(1).send(None, True)
    await pair.settle(lambda: sink.responses == [None])


async def test_it_is_rejected_where_the_coordinator_has_exited(pair: Pair) -> None:
    pair.link.close()
    sink, pair.remote.replicas = Sink(), replicas(received=1)
    pair.remote._send_elsewhere(OpenRequest(request(SILENT), sink))
    assert pair.remote.replicas.received == 1
    ((error,),) = ([each.error for each in sink.responses if each is not None],)
    assert str(error) == "Server exiting"


async def test_the_process_that_it_moves_to_knows_that_its_responses_are_dropped_and_holds_no_guest_back(
    pair: Pair,
) -> None:
    sink = Sink()
    opened = OpenRequest(request(SILENT), sink)
    opened.drops_responses = True  # as where a call waits whose results the model discards
    pair.remote._send(opened)
    await pair.settle(lambda: pair.engine.submitted)
    await pair.settle(lambda: pair.engine.submitted[0].acts == ["drop_responses"])
    pair.session.sink_of(1).send(None, True)
    await pair.settle(lambda: sink.responses == [None])


async def test_one_that_was_cancelled_meanwhile_is_cancelled_where_it_goes_on(pair: Pair) -> None:
    opened = OpenRequest(request(SILENT), Sink())
    opened.is_cancelled = True
    pair.remote.replicas = replicas(received=1)
    pair.remote._send_elsewhere(opened)
    await pair.settle(lambda: pair.engine.submitted)
    await pair.settle(lambda: pair.engine.submitted[0].acts == ["cancel"])
