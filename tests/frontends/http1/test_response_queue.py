"""Requests of one connection to responses in their order, without a loop and without sockets."""

from __future__ import annotations

import pytest
from fakes.connections import Transport
from fakes.submitted import Submitted

from naiad.core.turns import SHARE_SECONDS
from naiad.frontends.http1 import response_queue
from naiad.frontends.http1.heads import Head
from naiad.frontends.http1.messages import HttpExchange, response, stream_head
from naiad.frontends.http1.response_queue import ResponseQueue


class Connection:
    """A queue on a transport. Requests whose path begins with `/now` are answered at once, others by `respond`."""

    def __init__(self) -> None:
        self.handled: list[bytes] = []
        self.released: list[bytearray] = []
        self.closings = 0
        self.is_read = True
        self.transport = Transport()
        self.queue = ResponseQueue(
            self._handle,
            on_closing=self._on_closing,
            on_linger=self.transport.close,
            on_body_released=self.released.append,
            on_full=self._on_full,
            on_room=self._on_room,
        )
        self.queue.on_connection_made(self.transport)

    def submit(self, path: str, body=b"", *, method="GET", keep_alive=True, can_chunk=True) -> None:
        self.queue.submit(Head(method, path.encode(), {}, len(body), keep_alive, can_chunk), body)

    def submit_all(self, *paths: str) -> None:
        for path in paths:
            self.submit(path)

    def respond(self) -> None:
        self.queue.respond(response(200, [self.queue.request.path], b""))

    def bodies(self) -> list[bytes]:
        """What the responses written so far contain."""
        return [part.partition(b"\r\n\r\n")[2] for part in self.transport.written.split(b"HTTP/1.1 ")[1:]]

    def _handle(self, exchange: HttpExchange) -> None:
        self.handled.append(exchange.request.path)
        if exchange.request.path.startswith(b"/fails"):
            raise ZeroDivisionError
        if exchange.request.path.startswith(b"/now"):
            self.respond()

    def _on_full(self) -> None:
        self.is_read = False

    def _on_room(self) -> None:
        self.is_read = True

    def _on_closing(self) -> None:
        self.closings += 1


@pytest.fixture
def connection(monkeypatch) -> Connection:
    monkeypatch.setattr(response_queue, "perf_counter", lambda: 1.0)  # no share is used up because a machine is busy
    return Connection()


def test_requests_are_handled_one_at_a_time_and_in_order(connection):
    connection.submit_all("/later-1", "/now-2", "/later-3", "/now-4")
    assert connection.handled == [b"/later-1"]
    connection.respond()
    assert connection.handled == [b"/later-1", b"/now-2", b"/later-3"]
    connection.respond()
    assert connection.bodies() == [b"/later-1", b"/now-2", b"/later-3", b"/now-4"]
    assert connection.queue.is_idle


def test_a_small_response_is_one_write(connection):
    connection.submit("/now")

    assert connection.transport.writes == 1


LONG = bytes(range(256)) * (14 << 10)  # 3.5 MiB


def respond_at_length(connection: Connection) -> bytes:
    """Respond with `LONG`; what is written when all of it is."""
    parts = response(200, [LONG[:1000], LONG[1000:]], b"")
    connection.is_read = False
    connection.queue.respond(parts)
    return b"".join(parts)


def test_a_long_response_is_written_a_part_in_each_turn_and_the_next_request_waits_for_its_end(connection):
    connection.submit_all("/later", "/now")
    whole = respond_at_length(connection)
    turns = 0
    while connection.handled == [b"/later"]:
        assert len(connection.transport.written) == (turns + 1) << 20
        assert not connection.queue.is_idle
        assert connection.is_read, "a later turn was asked for"
        connection.queue.handle_queued()
        turns += 1
    assert turns == 3
    assert connection.transport.written.startswith(whole)
    assert connection.transport.written.endswith(b"/now")
    assert connection.queue.is_idle


def test_a_long_response_waits_for_a_client_that_does_not_read(connection):
    connection.submit("/later")
    connection.queue.pause_writing()
    whole = respond_at_length(connection)
    for _ in range(3):
        connection.queue.handle_queued()
    assert len(connection.transport.written) == 1 << 20
    assert not connection.is_read
    connection.queue.resume_writing()
    assert len(connection.transport.written) == 2 << 20
    while not connection.queue.is_idle:
        connection.queue.handle_queued()
    assert connection.transport.written == whole


@pytest.mark.parametrize("end", ["of its request", "when idle", "by a malformed request"])
def test_a_connection_closes_behind_the_end_of_a_long_response(connection, end):
    connection.submit("/later", keep_alive=end != "of its request")
    respond_at_length(connection)
    if end == "when idle":
        connection.queue.close_when_idle()
    elif end == "by a malformed request":
        connection.queue.reject(400, "malformed")
    assert not connection.transport.is_closed
    while not connection.queue.is_idle:
        connection.queue.handle_queued()
    assert connection.transport.written.endswith(LONG[-1000:])
    assert connection.transport.is_closed


def test_the_rest_of_a_long_response_is_dropped_with_the_connection(connection):
    connection.submit("/later")
    respond_at_length(connection)
    connection.queue.on_connection_lost()
    connection.queue.handle_queued()
    assert len(connection.transport.written) == 1 << 20
    assert connection.queue.is_idle


def test_thousands_of_queued_requests_need_no_deeper_stack(connection):
    connection.submit_all("/later", *["/now"] * 5000)
    connection.respond()
    while not connection.queue.is_idle:  # the share of a turn is used up several times
        connection.queue.handle_queued()

    assert len(connection.bodies()) == 5001


def test_no_more_requests_are_read_while_many_are_queued(connection):
    connection.submit_all(*["/later"] * 16)
    assert connection.is_read
    connection.submit("/later")
    assert not connection.is_read
    assert connection.queue.is_full
    for _ in range(7):
        connection.respond()
    assert not connection.is_read, "reading resumes when half of them are answered"
    connection.respond()
    assert connection.is_read
    assert not connection.queue.is_full


def test_no_request_is_handled_while_the_client_does_not_read(connection):
    connection.queue.pause_writing()
    connection.submit_all("/now-1", "/now-2")
    assert connection.queue.is_blocked
    assert connection.handled == []
    connection.queue.resume_writing()
    assert connection.bodies() == [b"/now-1", b"/now-2"]


def test_a_streamed_response_is_written_part_by_part_and_resumes_when_the_client_reads(connection):
    resumed = []
    connection.submit("/later")
    connection.queue.on_resume(lambda: resumed.append(connection.queue.is_blocked))
    connection.queue.write(stream_head(200, b"text/plain", is_chunked=True))
    connection.queue.pause_writing()
    connection.queue.resume_writing()
    assert resumed == [False]
    connection.queue.respond([b"0\r\n\r\n"])
    connection.queue.pause_writing()
    connection.queue.resume_writing()
    assert resumed == [False], "only while the exchange is open"
    assert connection.transport.written.endswith(b"chunked\r\n\r\n0\r\n\r\n")


def test_a_client_that_disconnects_cancels_the_current_request_alone(connection):
    answered, *current = requests = [Submitted(), Submitted(), Submitted()]
    connection.submit("/now")
    connection.queue.on_disconnect(answered)
    connection.submit("/later")
    for submitted in current:
        connection.queue.on_disconnect(submitted)
    connection.submit("/later")
    connection.queue.on_connection_lost()
    assert [each.acts for each in requests] == [[], [("cancel", True)], [("cancel", True)]]
    written = connection.transport.written
    connection.respond()
    assert connection.transport.written == written
    assert connection.handled == [b"/now", b"/later"]


def test_a_lost_connection_resumes_a_stream_so_that_it_ends(connection):
    resumed = []
    connection.submit("/later")
    connection.queue.pause_writing()
    connection.queue.on_resume(lambda: resumed.append(connection.queue.is_blocked))
    connection.queue.on_connection_lost()

    assert resumed == [False]


def test_a_request_that_ends_the_connection_closes_it_after_its_response(connection):
    connection.submit("/later", keep_alive=False)
    connection.submit("/now")
    assert not connection.transport.is_closed
    connection.respond()
    assert connection.transport.is_closed
    assert connection.closings == 1
    assert connection.handled == [b"/later"]
    assert b"\r\nConnection: close\r\n" in connection.transport.written


def test_a_client_of_http_1_0_is_told_that_its_connection_is_kept(connection):
    connection.submit("/now", can_chunk=False)

    assert b"\r\nConnection: keep-alive\r\n" in connection.transport.written
    assert not connection.transport.is_closed


def test_a_response_to_head_has_no_body(connection):
    connection.submit("/now", method="HEAD")

    assert connection.bodies() == [b""]
    assert b"Content-Length: 4\r\n" in connection.transport.written


def test_a_rejection_is_written_when_no_response_is_due(connection):
    connection.queue.reject(400, "malformed")

    assert connection.transport.written.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert b"\r\nConnection: close\r\n" in connection.transport.written
    assert connection.transport.is_closed


def test_a_rejection_waits_for_the_responses_that_are_due(connection):
    connection.submit_all("/later-1", "/later-2")
    connection.queue.reject(400, "malformed")
    connection.submit("/now")
    connection.respond()
    assert not connection.transport.is_closed
    connection.respond()
    assert connection.transport.is_closed
    assert connection.bodies() == [b"/later-1", b"/later-2"]


def test_a_rejection_does_not_overtake_requests_that_wait_for_the_client_to_read(connection):
    connection.queue.pause_writing()
    connection.submit("/now")
    connection.queue.reject(400, "malformed")
    assert connection.transport.written == b""
    connection.queue.resume_writing()
    assert connection.bodies() == [b"/now"]
    assert connection.transport.is_closed


def test_a_handler_that_fails_is_an_internal_error_and_the_connection_continues(connection, caplog):
    connection.submit_all("/fails", "/now")

    assert connection.transport.written.startswith(b"HTTP/1.1 500 ")
    assert connection.handled == [b"/fails", b"/now"]
    assert "cannot answer GET b'/fails'" in caplog.text


def test_closing_when_idle_waits_for_the_current_response_only(connection):
    connection.submit_all("/later", "/now")
    connection.queue.close_when_idle()
    assert not connection.transport.is_closed
    connection.respond()
    assert connection.transport.is_closed
    assert connection.bodies() == [b"/later"]


def test_the_buffer_of_a_body_is_released_with_its_response(connection):
    buffer = bytearray(10)
    connection.submit("/later", memoryview(buffer))
    connection.submit("/now", memoryview(bytes(10)))
    assert connection.released == []
    connection.respond()
    assert connection.released == [buffer]


def test_continue_comes_after_the_responses_that_are_due(connection):
    connection.submit_all("/first", "/second")
    connection.queue.write_continue()
    assert connection.transport.written == b""

    connection.respond()
    assert b"100 Continue" not in connection.transport.written
    connection.respond()
    assert connection.transport.written.endswith(b"/secondHTTP/1.1 100 Continue\r\n\r\n")


def test_continue_is_not_written_to_a_client_that_has_sent_the_body(connection):
    connection.submit("/first")
    connection.queue.write_continue()
    connection.submit("/second")
    connection.respond()
    connection.respond()

    assert b"100 Continue" not in connection.transport.written


class Ticks:
    """A clock that each request advances by *cost* seconds."""

    def __init__(self, connection: Connection, cost: float) -> None:
        self._connection = connection
        self._cost = cost

    def __call__(self) -> float:
        return 100 + self._cost * len(self._connection.handled)


@pytest.mark.parametrize(
    ("cost", "shares"),
    [
        (0.5 * SHARE_SECONDS, [2, 4, 6, 7]),  # the second one ends with the share, and further ones wait
        (0.75 * SHARE_SECONDS, [2, 4, 6, 7]),
        (3 * SHARE_SECONDS, [1, 2, 3, 4, 5, 6, 7]),  # one request is always handled
        (0.1 * SHARE_SECONDS, [7]),
    ],
)
@pytest.mark.usefixtures("short_shares")
def test_queued_requests_are_handled_until_the_share_of_the_connection_is_used_up(
    connection, monkeypatch, cost, shares
):
    connection.submit("/later")
    for number in range(7):
        connection.submit(f"/now-{number}")
    monkeypatch.setattr(response_queue, "perf_counter", Ticks(connection, cost))
    handled, connection.is_read = [], False
    connection.respond()
    while True:
        handled.append(len(connection.handled) - 1)
        assert connection.is_read is (handled[-1] < 7), "the owner is told that requests wait for a later turn"
        if handled[-1] == 7:
            break
        connection.is_read = False
        connection.queue.handle_queued()
    assert handled == shares


class Charge:
    """Counts how often it was released."""

    def __init__(self) -> None:
        self.released = 0

    def release(self) -> None:
        self.released += 1


def test_a_body_that_is_replaced_is_released_at_once_and_its_charge_with_the_response(connection):
    buffer, charge = bytearray(10), Charge()
    connection.submit("/later", memoryview(buffer))
    connection.queue.replace_body(b"shorter", charge)
    assert connection.released == [buffer]
    assert connection.queue.request.body == b"shorter"
    assert charge.released == 0
    connection.respond()
    assert charge.released == 1


def test_the_charge_of_a_request_is_released_when_its_client_disconnects(connection):
    charge = Charge()
    connection.submit("/later")
    connection.queue.replace_body(b"", charge)
    connection.queue.on_connection_lost()
    assert charge.released == 1


def test_what_an_answered_request_submitted_is_not_cancelled_with_the_next(connection):
    connection.submit("/later-1")
    requests = [Submitted(), Submitted(), Submitted()]
    for submitted in requests[:2]:
        connection.queue.on_disconnect(submitted)
    connection.submit("/later-2")
    connection.respond()
    connection.queue.on_disconnect(requests[2])
    connection.queue.on_connection_lost()
    assert [each.is_cancelled for each in requests] == [False, False, True]
    assert connection.queue.request_count == 2


def test_a_connection_that_drains_tells_its_client_with_the_last_response_that_is_due(connection):
    connection.submit_all("/later-1", "/later-2")
    connection.queue.begin_drain()
    connection.respond()
    assert b"Connection: close" not in connection.transport.written
    connection.respond()
    assert connection.transport.written.count(b"Connection: close") == 1
    assert connection.transport.is_closed


def test_a_streamed_response_of_a_connection_that_drains_says_that_it_is_the_last(connection):
    connection.submit("/later")
    connection.queue.begin_drain()
    connection.queue.write(stream_head(200, b"text/plain", is_chunked=True))
    assert b"Connection: close" in connection.transport.written
