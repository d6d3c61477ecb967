"""Requests that were sent to another process, which has not their version any more: they go on to the coordinator."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from server.processes.pair import SILENT, Pair, Sink, request

ROW = 4
ROUTE: Any = SimpleNamespace(number=1, row=ROW)


class Peer:
    """A link to another process."""

    def __init__(self) -> None:
        self.requests = self
        self.request_count = 0
        self.sinks: list[Any] = []
        self.cancelled: list[int] = []
        self.confirmed: list[tuple[int, int]] = []

    def route_to(self, route: Any) -> Any:
        return route

    def submit(self, _: Any, sink: Any, __: Any, ___: Any) -> int:
        self.sinks.append(sink)
        return 50 + len(self.sinks)

    def cancel(self, number: int, *, drops_responses: bool = True) -> None:
        self.cancelled.append(number)

    def confirm_sent(self, number: int, count: int) -> None:
        self.confirmed.append((number, count))


async def test_it_keeps_its_ticket_and_its_client_gets_the_responses(pair: Pair) -> None:
    peer, sink, sent = Peer(), Sink(), request(SILENT)
    pair.remote.peers[2] = peer  # type: ignore[assignment]
    noted: list[tuple[int, int]] = []
    pair.remote.branches = SimpleNamespace(  # type: ignore[assignment]
        note_sent=lambda *each: noted.append(each), find=lambda _: None, find_ensemble=lambda _: None
    )
    ticket = pair.remote._submit_to(2, ROUTE, sent, sink)
    assert noted == [(ROW, 2)]
    pair.remote.confirm_sent(ticket, 3)
    assert peer.confirmed == [(51, 3)]

    pair.remote._send_elsewhere(2, 51, sent, peer.sinks[0])
    await pair.settle(lambda: pair.session.requests.request_count == 1)
    pair.remote.cancel(ticket)
    await pair.settle(lambda: pair.engine.cancelled == [1])
    assert peer.cancelled == []
    pair.session.requests.sink_of(1).send(None, True)
    await pair.settle(lambda: sink.responses == [None])
    assert pair.remote._sent_elsewhere == {}


async def test_it_is_rejected_where_the_coordinator_has_exited(pair: Pair) -> None:
    pair.link.close()
    sink = Sink()
    pair.remote._send_elsewhere(2, 51, request(SILENT), sink)
    ((error,),) = ([each.error for each in sink.responses if each is not None],)
    assert str(error) == "Server exiting"
    assert pair.remote._sent_elsewhere == {}
