"""The asyncio protocol that joins reader and queue."""

from __future__ import annotations

import gc
import weakref

import pytest
from naiad.frontends.http1.connection import HttpConnection
from naiad.frontends.http1.heads import HeadCache
from naiad.frontends.http1.messages import response
from naiad.frontends.http1.request_reader import READ_SIZE, RequestLimits


class Transport:
    """Records what is written."""

    def __init__(self) -> None:
        self.written = b""

    def write(self, data) -> None:
        self.written += data

    def writelines(self, parts) -> None:
        self.written += b"".join(parts)


def connect(handle):
    """A connection, the open connections, and the transport."""
    connections: set[HttpConnection] = set()
    connection = HttpConnection(
        handle, lambda _: None, connections, RequestLimits(), HeadCache(), memoryview(bytearray(READ_SIZE))
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


PLAIN = b"POST /a HTTP/1.1\r\nContent-Length: 2\r\n\r\nhi"
LONG = b"POST /b HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b" % (2 * READ_SIZE, bytes(2 * READ_SIZE))
CHUNKED = b"POST /c HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n"


def test_received_bytes_become_responses():
    connection, _, transport = connect(lambda exchange: exchange.respond(response(200, [exchange.request.path])))
    receive(connection, PLAIN + LONG + CHUNKED + b"0\r\n\r\n" + PLAIN)

    assert [part[-2:] for part in transport.written.split(b"HTTP/1.1 ")[1:]] == [b"/a", b"/b", b"/c", b"/a"]


@pytest.mark.parametrize("data", [PLAIN, LONG, LONG[:-1], CHUNKED], ids=["whole", "long", "cut off", "in the parser"])
def test_a_lost_connection_is_freed_without_the_garbage_collector(data):
    """Its buffers may be large, and the collector runs seldom."""
    connection, connections, _ = connect(lambda exchange: exchange.respond(response(200, [])))
    receive(connection, data)
    assert connections == {connection}
    freed = [weakref.ref(connection), weakref.ref(connection.reader), weakref.ref(connection.responses)]
    gc.disable()
    try:
        connection.connection_lost(None)
        del connection
        assert [each() for each in freed] == [None, None, None]
    finally:
        gc.enable()
    assert not connections
