"""The asyncio protocol that joins reader and queue."""

from __future__ import annotations

import gc
import json
import socket
import weakref
from time import perf_counter

import pytest
from fakes.connections import Loop, Transport

from naiad.core.turns import SHARE_SECONDS, LoopTurns
from naiad.frontends.http1.connection import HttpConnection
from naiad.frontends.http1.heads import HeadCache
from naiad.frontends.http1.messages import response
from naiad.frontends.http1.request_reader import READ_SIZE, RequestLimits
from naiad.frontends.http1.timeouts import HttpTimeouts
from naiad.frontends.open_connections import ConnectionCount, OpenConnections


def connect(handle, loop=None, timeouts=None, connections=None):
    """A connection, the open connections, and the transport."""
    connections = OpenConnections() if connections is None else connections
    connection = HttpConnection(
        handle,
        connections,
        RequestLimits(),
        HeadCache(),
        memoryview(bytearray(READ_SIZE)),
        LoopTurns(loop or Loop()),
        timeouts=timeouts,
    )
    transport = Transport()
    connection.connection_made(transport)
    return connection, connections, transport


def receive(connection: HttpConnection, data: bytes) -> None:
    while data:
        buffer = connection.get_buffer(-1)
        size = min(len(buffer), len(data))
        buffer[:size] = data[:size]
        connection.buffer_updated(size)
        data = data[size:]


def answer(exchange) -> None:
    exchange.respond(response(200, [exchange.request.path]))


def answer_slowly(exchange) -> None:
    """As costly as what a share of a turn of the loop has room for."""
    end = perf_counter() + SHARE_SECONDS
    while perf_counter() < end:
        pass
    answer(exchange)


def numbered(count: int, template: bytes = b"GET /%d HTTP/1.1\r\nHost: h\r\n\r\n") -> bytes:
    return b"".join(template % number for number in range(count))


def answered(transport: Transport) -> list[int]:
    """The numbers in the responses written so far."""
    return [int(part.partition(b"\r\n\r\n/")[2]) for part in transport.written.split(b"HTTP/1.1 ")[1:]]


PLAIN = b"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nhi"
LONG = b"POST /b HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%b" % (2 * READ_SIZE, bytes(2 * READ_SIZE))
CHUNKED = b"POST /c HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n"


def test_received_bytes_become_responses():
    connection, _, transport = connect(lambda exchange: exchange.respond(response(200, [exchange.request.path])))
    receive(connection, PLAIN + LONG + CHUNKED + b"0\r\n\r\n" + PLAIN)

    assert [part[-2:] for part in transport.written.split(b"HTTP/1.1 ")[1:]] == [b"/a", b"/b", b"/c", b"/a"]


PIPELINED = pytest.mark.parametrize(
    "template",
    [
        b"GET /%d HTTP/1.1\r\nHost: h\r\n\r\n",
        b"GET /%d HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nX: %%b\r\n\r\n0\r\n\r\n",
    ],
    ids=["by heads", "by the parser"],
)


@PIPELINED
@pytest.mark.usefixtures("short_shares")
def test_requests_sent_ahead_are_answered_in_several_turns_of_the_loop(template):
    """The second of two requests that take a share each begins a turn later, and the socket is not read before."""
    loop = Loop()
    connection, _, transport = connect(answer_slowly, loop)
    template = template.replace(b"%%b", b"x" * 20_000)  # beyond a step of the parser
    receive(connection, numbered(6, template))
    assert len(answered(transport)) < 6  # none, if the machine is so busy that reading them took the share
    assert not transport.is_reading
    turns = 0
    while not transport.is_reading:
        before = len(answered(transport))
        loop.run_turn()
        assert len(answered(transport)) - before <= 3
        turns += 1
    assert answered(transport) == list(range(6))
    assert turns > 1
    assert not loop.ready


def test_a_socket_that_fills_the_receive_buffer_is_read_again_in_the_next_turn():
    """libuv would read it up to 32 times before any other."""
    loop = Loop()
    connection, _, transport = connect(answer, loop)
    count = READ_SIZE // 1024
    receive(connection, numbered(count, b"GET /%06d HTTP/1.1\r\nHost: h\r\nX: " + b"x" * (1024 - 38) + b"\r\n\r\n"))
    assert not transport.is_reading
    while not transport.is_reading:
        loop.run_turn()
    assert answered(transport) == list(range(count))


def test_no_more_requests_are_read_while_many_wait_for_a_slow_one():
    waiting = []
    loop = Loop()
    connection, _, transport = connect(waiting.append, loop)
    receive(connection, numbered(100))
    assert len(waiting) == 1
    assert not transport.is_reading
    for number in range(100):
        assert len(waiting) == number + 1
        answer(waiting[number])
        loop.run_turn()
    assert answered(transport) == list(range(100))
    assert transport.is_reading


@pytest.mark.usefixtures("short_shares")
def test_bytes_that_tls_delivers_after_the_pause_keep_their_order():
    """TLS delivers what it has already decrypted."""
    loop = Loop()
    connection, _, transport = connect(answer_slowly, loop)
    receive(connection, numbered(5))
    assert not transport.is_reading
    receive(connection, b"GET /5 HTTP/1.1\r\nHost: h\r\n\r\nGET /6 HT")
    receive(connection, b"TP/1.1\r\nHost: h\r\n\r\n")
    while not transport.is_reading:
        loop.run_turn()
    assert answered(transport) == list(range(7))


@pytest.mark.usefixtures("short_shares")
def test_a_lost_connection_is_not_resumed():
    loop = Loop()
    connection, _, transport = connect(answer_slowly, loop)
    receive(connection, numbered(5))
    before = transport.written
    connection.connection_lost(None)
    loop.run_turn()
    assert transport.written == before
    assert not loop.ready


@pytest.mark.parametrize("data", [PLAIN, LONG, LONG[:-1], CHUNKED], ids=["whole", "long", "cut off", "in the parser"])
def test_a_lost_connection_is_freed_without_the_garbage_collector(data):
    """Its buffers may be large, and the collector runs seldom."""
    connection, connections, _ = connect(lambda exchange: exchange.respond(response(200, [])))
    receive(connection, data)
    assert list(connections) == [connection]
    freed = [weakref.ref(connection), weakref.ref(connection.reader), weakref.ref(connection.responses)]
    gc.disable()
    try:
        connection.connection_lost(None)
        del connection
        assert [each() for each in freed] == [None, None, None]
    finally:
        gc.enable()
    assert not connections


LIMITS = HttpTimeouts(header=10, body=20, keepalive=30, send=40)


def status_and_error(transport: Transport) -> tuple[int, str]:
    head, _, body = transport.written.partition(b"\r\n\r\n")
    assert b"\r\nConnection: close\r\n" in head
    return int(head.split()[1]), json.loads(body)["error"]


def test_a_head_that_is_sent_too_slowly_is_answered_with_408():
    connection, connections, transport = connect(answer, timeouts=LIMITS)
    for now, data in enumerate([b"GET / HTTP/1.1\r\nHost: h\r\n", *[b"X: y\r\n"] * 9]):
        receive(connection, data)
        connection.check_time(now)
    assert transport.written == b""
    connection.check_time(10)
    assert status_and_error(transport) == (
        408,
        "cannot read the request: its head was not complete within 10 s (--client-timeout)",
    )
    assert connections.count.timed_out == {"header": 1}


@pytest.mark.parametrize(
    "begin",
    [
        b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n20\r\n",
        b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000\r\nExpect: 100-continue\r\n\r\n",
    ],
    ids=["short", "long", "chunked", "expected"],
)
def test_a_body_that_stalls_is_answered_with_408(begin):
    connection, connections, transport = connect(answer, timeouts=LIMITS)
    receive(connection, begin)
    connection.check_time(0)
    receive(connection, b"abc")
    connection.check_time(19)
    receive(connection, b"def")
    connection.check_time(38)
    connection.check_time(57)
    transport.written = b""  # `100 Continue`
    connection.check_time(58)
    assert status_and_error(transport) == (
        408,
        "cannot read the request: no byte of its body arrived within 20 s (--client-timeout)",
    )
    assert connections.count.timed_out == {"body": 1}


def test_an_idle_connection_is_closed_after_its_time():
    connection, connections, transport = connect(answer, timeouts=LIMITS)
    receive(connection, PLAIN + b"\r\n")  # an empty line begins no request
    written = transport.written
    connection.check_time(0)
    connection.check_time(29)
    receive(connection, PLAIN)
    connection.check_time(31)
    connection.check_time(60)
    assert not transport.is_closed
    connection.check_time(61)
    assert transport.is_closed
    assert transport.written == 2 * written
    assert connections.count.timed_out == {"keepalive": 1}


def test_an_idle_connection_whose_next_request_was_not_read_yet_is_kept():
    """Where the process had to wait for a processor, timers run before sockets are read. The client was reset."""
    connection, connections, transport = connect(answer, timeouts=LIMITS)
    receive(connection, PLAIN)
    connection.check_time(0)
    transport.socket, client = socket.socketpair()
    with client, transport.socket:
        client.sendall(PLAIN)
        connection.check_time(31)
        assert not transport.is_closed
        transport.socket.recv(len(PLAIN))
        connection.check_time(31)
    assert transport.is_closed
    assert connections.count.timed_out == {"keepalive": 1}


def test_a_connection_that_sends_nothing_is_closed_after_the_time_of_a_head():
    connection, _, transport = connect(answer, timeouts=LIMITS)
    connection.check_time(0)
    connection.check_time(10)
    assert (transport.is_closed, transport.written) == (True, b"")


def test_a_client_that_does_not_read_is_disconnected():
    connection, connections, transport = connect(answer, timeouts=LIMITS)
    receive(connection, PLAIN)
    for now, unsent in enumerate([300_000, 200_000, 150_000]):  # 80 KiB in 40 s are enough
        transport.unsent = unsent
        connection.check_time(now * 30)
    assert not transport.is_aborted
    connection.check_time(70)
    assert transport.is_aborted
    assert connections.count.timed_out == {"send": 1}


def test_a_client_that_reads_a_few_bytes_now_and_then_is_disconnected():
    """4 KB each ten seconds kept a response of 50 MB for days."""
    connection, connections, transport = connect(answer, timeouts=LIMITS)
    receive(connection, PLAIN)
    for read in range(4):
        transport.unsent = 50_000_000 - 4096 * read
        connection.check_time(read * 10)
    assert not transport.is_aborted
    transport.unsent -= 4096
    connection.check_time(40)
    assert transport.is_aborted
    assert connections.count.timed_out == {"send": 1}


def test_time_in_which_nothing_waits_for_the_client_does_not_count():
    connection, _, transport = connect(answer, timeouts=LIMITS)
    receive(connection, PLAIN)
    for now, unsent in ((0, 100_000), (29, 100_000), (30, 0), (31, 100_000), (69, 100_000)):
        transport.unsent = unsent
        connection.check_time(now)
    assert not transport.is_aborted
    connection.check_time(72)
    assert transport.is_aborted


def test_a_request_that_is_being_answered_may_take_any_time():
    connection, _, transport = connect(lambda exchange: None, timeouts=LIMITS)
    receive(connection, PLAIN + b"GET / HT")
    for now in range(0, 1000, 100):
        connection.check_time(now)
    assert (transport.is_closed, transport.is_aborted, transport.written) == (False, False, b"")


def test_a_limit_of_0_disables_the_timeout():
    connection, _, transport = connect(answer, timeouts=HttpTimeouts(header=0, body=0, keepalive=0, send=0))
    for data in (b"", PLAIN, b"GET / HT"):
        receive(connection, data)
        connection.check_time(0)
        connection.check_time(1e9)
    assert not transport.is_closed


def test_a_refused_connection_gets_a_response_with_the_reason():
    connections = OpenConnections(ConnectionCount(total=1))
    connect(answer, connections=connections)
    connection, _, transport = connect(answer, connections=connections)
    assert status_and_error(transport)[0] == 503
    written = transport.written
    receive(connection, PLAIN)
    assert transport.written == written


def test_a_connection_that_drains_ends_with_its_next_response():
    connection, _, transport = connect(answer)
    receive(connection, PLAIN)
    assert b"Connection:" not in transport.written
    connection.responses.begin_drain()
    receive(connection, PLAIN)
    assert transport.written.count(b"\r\nConnection: close\r\n") == 1
    assert connection._linger_timer is not None


def test_requests_that_were_sent_ahead_are_answered_while_a_connection_drains():
    waiting = []
    connection, _, transport = connect(waiting.append)
    receive(connection, numbered(3))
    connection.responses.begin_drain()
    for number in range(3):
        answer(waiting[number])
    assert answered(transport) == [0, 1, 2]
    assert transport.written.count(b"\r\nConnection: close\r\n") == 1


@pytest.mark.parametrize("protocol", ["", "http/1.1"], ids=["plain", "tls"])
def test_a_client_that_may_still_be_sending_has_time_to_read_the_last_response(protocol):
    loop = Loop()
    connection, _, transport = connect(answer, loop)
    transport.protocol = protocol
    receive(connection, b"\x16\x03\x01\x02\x00")
    assert status_and_error(transport)[0] == 400
    assert connection._linger_timer is not None
    assert transport.is_reading
    written = transport.written
    receive(connection, PLAIN)
    loop.advance(1.9)
    assert transport.ends == ([] if protocol else ["write_eof"])
    loop.advance(0.2)
    assert transport.ends[-1] == "close"
    assert transport.written == written
    connection.connection_lost(None)
    assert connection._linger_timer is None


def test_a_client_that_leaves_while_its_last_response_is_written_is_not_waited_for():
    loop = Loop()
    connection, _, transport = connect(answer, loop)
    receive(connection, b"\x16\x03\x01\x02\x00")
    connection.connection_lost(None)
    assert (loop.timers, connection._linger_timer, connection.eof_received()) == ([], None, False)
    connection, _, transport = connect(answer, loop)
    transport.ends.append("close")
    receive(connection, b"\x16\x03\x01\x02\x00")
    assert (loop.timers, connection._linger_timer) == ([], None)
