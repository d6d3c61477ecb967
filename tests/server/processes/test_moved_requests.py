"""Requests that wait in a branch and move to another process: where they go, and how their tickets stay valid."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from server.processes.pair import SILENT, Pair, Sink, request, run

from naiad.core.errors import NaiadError, NotReadyError
from naiad.engine.lifecycle.placement import COORDINATOR
from naiad.engine.tickets import ticket_of
from naiad.protocol.inference import InferResponse

LOAD, KEY = 1, 7
TICKET = ticket_of(LOAD, KEY)


class Peer:
    """A link to another process, which takes requests or does not."""

    def __init__(self) -> None:
        self.requests = self
        self.request_count = 0
        self.problem: NaiadError | None = None
        self.sinks: list[Any] = []
        self.cancelled: list[int] = []
        self.confirmed: list[tuple[int, int]] = []

    def route_to(self, route: Any) -> Any:
        return route

    def submit(self, _: Any, sink: Any, __: Any, ___: Any) -> int:
        if self.problem is not None:
            raise self.problem
        self.sinks.append(sink)
        return 50 + len(self.sinks)

    def cancel(self, number: int) -> None:
        self.cancelled.append(number)

    def confirm_sent(self, number: int, count: int) -> None:
        self.confirmed.append((number, count))


class Waiting:
    """A request of a client that waits in the branch of this process.

    Attributes:
        given: Whether the branch has given it away.
        noted: The processes that the load board knows to have got it.
    """

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self.remote = pair.remote
        self.sink = Sink()
        self.given: list[Any] = []
        self.noted: list[int] = []
        self.branch: Any = SimpleNamespace(
            version=SimpleNamespace(number=LOAD, give_away=self.given.append), note_moved=self.noted.append
        )
        self.pending: Any = SimpleNamespace(key=KEY, request=request(SILENT), sink=self.sink, worker=None)
        self.branches: Any = SimpleNamespace(
            find=lambda _: self.branch, find_ensemble=lambda _: None, received=1, cancel=lambda _: None
        )
        self.remote.branches = self.branches
        self.peer = Peer()
        self.remote.peers[2] = self.peer  # type: ignore[assignment]

    def move(self, process: int) -> bool:
        return self.remote._move(self.branch, process, self.pending)


def waiting(test: Callable[[Waiting], Awaitable[None]]) -> None:
    async def with_request(pair: Pair) -> None:
        await test(Waiting(pair))

    run(with_request)


def test_its_ticket_names_it_at_the_process_that_has_it_until_its_end() -> None:
    async def test(made: Waiting) -> None:
        assert made.move(2)
        assert (made.given, made.noted, made.branches.received) == ([made.pending], [2], 1)
        made.remote.confirm_sent(TICKET, 3)
        made.remote.cancel(TICKET)
        assert (made.peer.confirmed, made.peer.cancelled) == ([(51, 3)], [51])
        (sink,) = made.peer.sinks
        for final in (False, True):
            sink.send(InferResponse("m", 1), final)
        assert len(made.sink.responses) == 2
        made.remote.cancel(TICKET)
        assert made.peer.cancelled == [51]
        assert made.remote._sent_elsewhere == {}

    waiting(test)


def test_where_the_version_is_gone_it_goes_on_to_the_coordinator_under_the_same_ticket() -> None:
    async def test(made: Waiting) -> None:
        assert made.move(2)
        made.remote._send_elsewhere(2, 51, made.pending.request, made.peer.sinks[0])
        await made.pair.settle(lambda: made.pair.session.requests.request_count == 1)
        made.remote.cancel(TICKET)
        await made.pair.settle(lambda: made.pair.engine.cancelled == [1])
        assert made.peer.cancelled == []
        made.pair.session.requests.sink_of(1).send(None, True)
        await made.pair.settle(lambda: made.sink.responses == [None])
        assert made.remote._sent_elsewhere == {}

    waiting(test)


def test_the_coordinator_counts_what_has_moved_to_it() -> None:
    async def test(made: Waiting) -> None:
        assert made.move(COORDINATOR)
        await made.pair.settle(lambda: made.pair.session.requests.received_count == 1)
        assert (made.branches.received, made.given, made.noted) == (0, [made.pending], [COORDINATOR])

    waiting(test)


@pytest.mark.parametrize("reason", ["process", "link", "version", "dispatched"])
def test_what_cannot_move_stays(reason: str) -> None:
    async def test(made: Waiting) -> None:
        process = 2
        if reason == "process":
            process = 3
        elif reason == "link":
            made.peer.problem = NotReadyError("Server exiting")
        elif reason == "dispatched":
            made.pending.worker = object()
        else:
            made.branches.find = lambda _: None
        await asyncio.sleep(0)
        assert not made.move(process)
        assert (made.given, made.noted, made.remote._sent_elsewhere) == ([], [], {})

    waiting(test)
