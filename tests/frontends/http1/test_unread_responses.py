"""Responses of HTTP that their clients do not read: what they count, and when that ends."""

from __future__ import annotations

import json

import pytest
from fakes.connections import SlowTransport
from fakes.submitted import Submitted

from naiad.frontends.http1.heads import Head
from naiad.frontends.http1.messages import HttpExchange, response
from naiad.frontends.http1.response_queue import ResponseQueue
from naiad.frontends.http1.server_sent_events import EventWriter, SentCount, event, long_event
from naiad.frontends.request_budget import RequestBudget

MIB = 1 << 20
LIMIT = 8 * MIB
SHORT = 60_000
"""Bytes of a response that never counts."""


class Connection:
    """A queue whose client has *room* bytes of the kernel, and reads nothing."""

    def __init__(self, budget: RequestBudget, room: int = 0) -> None:
        self.handled: list[HttpExchange] = []
        self.transport = SlowTransport(room)
        self.is_deferred = False
        self.lingered = False
        self.queue = self.transport.writer = ResponseQueue(
            self.handled.append,
            on_closing=lambda: None,
            on_linger=lambda: setattr(self, "lingered", True),
            on_body_released=lambda _: None,
            on_full=lambda: None,
            on_room=lambda: setattr(self, "is_deferred", True),
            budget=budget,
        )
        self.queue.on_connection_made(self.transport)

    def submit(self, *, method: str = "GET", keep_alive: bool = True, body: object = b"") -> None:
        self.queue.submit(Head(method, b"/", {}, 0, keep_alive, True), body)

    def respond(self, size: int, **request: object) -> None:
        self.submit(**request)
        self.queue.respond(response(200, [bytes(size // 2), bytes(size - size // 2)]))
        self.run()

    def run(self) -> None:
        """Write in later turns, as far as the client reads."""
        while self.is_deferred:
            self.is_deferred = False
            self.queue.handle_queued()

    def read(self, size: int) -> None:
        self.transport.read(size)
        self.run()

    def lose(self) -> None:
        self.queue.on_connection_lost()

    @property
    def last(self) -> tuple[int, bytes]:
        """Status and body of the last response."""
        head, _, body = self.transport.written.rpartition(b"HTTP/1.1 ")[2].partition(b"\r\n\r\n")
        return int(head[:3]), body


@pytest.fixture
def budget() -> RequestBudget:
    return RequestBudget(LIMIT)


@pytest.mark.parametrize(("size", "room"), [(SHORT, 0), (1 << 16, 1 << 17), (5 * MIB, 6 * MIB)])
def test_short_responses_and_those_that_the_kernel_takes_whole_count_nothing(budget, size, room):
    connection = Connection(budget, room)
    connection.respond(size)
    assert budget.in_use == 0
    assert connection.queue.is_idle


@pytest.mark.parametrize("size", [(1 << 16) + 1, MIB - 1000, MIB + 1, 5 * MIB])
def test_a_response_counts_whole_until_the_kernel_has_its_last_byte(budget, size):
    connection = Connection(budget, 1000)
    connection.respond(size)
    assert size < budget.in_use < size + 200
    counted = budget.in_use
    connection.read(size - 2000)
    assert budget.in_use == counted
    rest = connection.queue.waiting
    connection.read(rest - 1)
    assert budget.in_use == counted
    connection.read(1)
    assert budget.in_use == 0
    assert connection.queue.is_idle
    assert not connection.queue.is_blocked


@pytest.mark.parametrize("size", [MIB - 1000, 5 * MIB])
def test_the_last_byte_of_a_response_counts_although_the_transport_is_not_full(budget, size):
    whole = sum(map(len, response(200, [bytes(size)])))
    connection = Connection(budget, whole - 1)
    connection.respond(size)
    assert budget.in_use == whole
    assert connection.queue.is_blocked
    connection.submit()
    assert len(connection.handled) == 1, "the next request waits"
    connection.read(1)
    assert budget.in_use == 0
    assert len(connection.handled) == 2
    assert connection.transport.limits == (1 << 16, 0)


def test_a_long_response_counts_from_its_beginning(budget):
    """It would be ended in the middle if others had used up the memory meanwhile."""
    connection = Connection(budget, 9 * MIB)
    connection.submit()
    connection.queue.respond(response(200, [bytes(5 * MIB)]))
    assert budget.in_use > 5 * MIB
    connection.run()
    assert budget.in_use == 0


def test_a_response_without_room_becomes_an_error(budget):
    others = [Connection(budget), Connection(budget)]
    for other in others:
        other.respond(5 * MIB)
    connection = Connection(budget, 10 * MIB)
    connection.respond(4 * MIB, keep_alive=False)
    status, body = connection.last
    assert (status, json.loads(body)["error"]) == (503, budget.refusal_to_send)
    assert b"Connection: close" in connection.transport.written
    assert connection.transport.is_closed
    assert budget.dropped == {"full": 1}
    others[0].lose()
    connection = Connection(budget, 10 * MIB)
    connection.respond(4 * MIB)
    assert connection.last[0] == 200


def test_short_responses_need_no_room(budget):
    for _ in range(2):
        Connection(budget).respond(9 * MIB)
    connection = Connection(budget, MIB)
    connection.respond(SHORT)
    connection.respond(5 * MIB, method="HEAD")
    assert connection.transport.written.count(b"HTTP/1.1 200 OK") == 2


def test_what_the_request_itself_holds_is_room_for_its_response(budget):
    class Receiver:
        def resume_receiving(self) -> None: ...

        def refuse(self, reason: str) -> None: ...

    other = Connection(budget)
    other.respond(6 * MIB)
    charge = budget.open(Receiver())
    charge.add(6 * MIB)
    charge.complete()
    connection = Connection(budget)
    connection.submit(body=memoryview(bytes(100)))
    connection.queue.replace_body(b"", charge)
    connection.queue.respond(response(200, [bytes(5 * MIB)]))
    assert connection.last[0] == 200
    assert budget.in_use < 12 * MIB


def test_nothing_counts_any_more_once_the_client_has_left(budget):
    connections = [Connection(budget) for _ in range(2)]
    connections[0].respond(2 * MIB)
    connections[1].respond(MIB // 2)
    for connection in connections:
        connection.lose()
    assert budget.in_use == 0


def test_the_connection_of_a_client_that_does_not_read_is_reset(budget):
    slow = Connection(budget)
    slow.respond(6 * MIB)
    for _ in range(5):
        budget.on_tick()
    slow.submit()
    larger = Connection(budget)
    larger.respond(7 * MIB)
    connection = Connection(budget)
    connection.respond(6 * MIB)
    assert slow.transport.is_aborted
    assert not larger.transport.is_aborted
    assert connection.last[0] == 200
    slow.queue.handle_queued()
    assert len(slow.handled) == 1
    slow.lose()


def test_a_client_that_reads_is_not_disconnected(budget):
    fast, larger = Connection(budget), Connection(budget)
    fast.respond(6 * MIB)
    larger.respond(7 * MIB)
    for _ in range(6):
        fast.read(MIB // 4)
        budget.on_tick()
    connection = Connection(budget)
    connection.respond(6 * MIB)
    assert (fast.transport.is_aborted, larger.transport.is_aborted) == (False, True)


def test_connections_that_close_behind_their_response_count_until_they_are_closed(budget):
    connection = Connection(budget)
    connection.respond(MIB // 2, keep_alive=False)
    assert connection.transport.is_closed
    assert budget.in_use > MIB // 2
    connection.lose()
    assert budget.in_use == 0


class Stream:
    """A stream of events on a connection."""

    def __init__(self, budget: RequestBudget, room: int = 0) -> None:
        self.connection = Connection(budget, room)
        self.connection.submit()
        self.submitted = Submitted()
        self._count = SentCount()
        self._count.of(self.submitted)
        self.events = EventWriter(self.connection.queue)
        self.events.begin(200)

    def send(self, size: int) -> None:
        if size > 1 << 16:
            self.events.add_long(long_event([bytes(size)]), self._count)
        else:
            self.events.add(event(bytes(size)), self._count)
        self.events.write()


def test_what_waits_of_a_stream_counts(budget):
    stream = Stream(budget, 1 << 17)
    stream.send(1000)
    assert budget.in_use == 0
    stream.send(1 << 20)
    first = budget.in_use
    assert (1 << 20) - (1 << 17) < first < 1 << 20
    for count in range(1, 4):
        stream.send(1 << 18)
        assert budget.in_use == pytest.approx(first + count * (1 << 18), abs=100)
    stream.send(1 << 16)
    assert budget.in_use == pytest.approx(first + 3 * (1 << 18) + (1 << 16), abs=100)
    stream.connection.read(stream.connection.queue.waiting)
    assert budget.in_use == pytest.approx(3 * (1 << 18) + (1 << 16), abs=100)
    stream.connection.read(4 << 18)
    assert budget.in_use == 0
    assert stream.submitted.confirmed == 6


def test_a_stream_without_room_for_a_long_event_is_reset(budget):
    for _ in range(2):
        Connection(budget).respond(8 * MIB - 1000)
    stream = Stream(budget)
    stream.send(1 << 18)
    assert stream.connection.transport.is_aborted
    stream.send(1 << 18)
    stream.connection.lose()
    assert budget.dropped == {"slow": 1}
    assert stream.submitted.confirmed == 2, "nothing holds up the model"
