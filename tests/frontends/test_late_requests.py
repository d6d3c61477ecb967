"""Requests that arrive just as a server closes a connection or a port are answered, or may be sent elsewhere.

A loop that got no processor for a while runs its timers before it reads what arrived meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import select
import socket
import time
from collections.abc import AsyncIterator, Callable

import pytest
import uvloop
from fakes.engine import FakeEngine

from naiad.frontends import listening
from naiad.frontends.http1 import listener
from naiad.frontends.http1.listener import HttpListener
from naiad.frontends.http1.messages import HttpExchange, response
from naiad.frontends.http2.keepalive import GracefulShutdown, KeepaliveSettings
from naiad.frontends.kserve_grpc.frontend import GrpcFrontend
from naiad.frontends.unread_bytes import has_unread_bytes

REQUEST = b"POST /a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\na"


class Transport:
    """As far as `has_unread_bytes` is concerned."""

    def __init__(self, connection: socket.socket | None) -> None:
        self.connection = connection

    def get_extra_info(self, name: str) -> socket.socket | None:
        assert name == "socket"
        return self.connection


def test_bytes_that_wait_in_the_kernel_are_seen():
    near, far = socket.socketpair()
    with far, near:
        transport = Transport(near)
        assert not has_unread_bytes(transport)
        far.sendall(b"a")
        assert has_unread_bytes(transport)
        near.recv(1)
        assert not has_unread_bytes(transport)
    assert not has_unread_bytes(transport)  # closed
    assert not has_unread_bytes(Transport(None))
    assert not has_unread_bytes(None)


def respond(exchange: HttpExchange) -> None:
    exchange.respond(response(200, [b"ok"], b"text/plain"))


def http_listener(handle: Callable[[HttpExchange], None] = respond) -> HttpListener:
    return HttpListener(handle, address="127.0.0.1", port=0, advice="")


@contextlib.asynccontextmanager
async def serving(handle: Callable[[HttpExchange], None]) -> AsyncIterator[tuple[HttpListener, socket.socket]]:
    """A listener, and a connection to it."""
    http = http_listener(handle)
    with socket.create_connection(("127.0.0.1", await http.start())) as client:
        client.setblocking(False)
        yield http, client
    await http.stop(20)


async def answer_to(client: socket.socket, request: bytes) -> bytes:
    """What the client gets, or why it gets nothing."""
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(client, request)
    try:
        return await asyncio.wait_for(loop.sock_recv(client, 1 << 16), 20)
    except OSError as error:
        return str(error).encode()


def test_a_request_on_an_idle_connection_that_arrives_in_a_stall_of_a_stopping_server_is_answered(monkeypatch):
    """The connection was reset: it had been idle for the time after which it is closed."""

    async def run() -> list[bytes]:
        async with serving(respond) as (http, client), serving(lambda exchange: stall(exchange, client)) as (_, other):
            received = [await answer_to(client, REQUEST)]
            stopping = asyncio.ensure_future(http.stop(20))
            await asyncio.sleep(0.05)  # it looks at the connection every 0.01 s
            await answer_to(other, REQUEST)
            received.append(await answer_to(client, b""))
            await stopping
        return received

    def stall(exchange: HttpExchange, client: socket.socket) -> None:
        """The loop gets no processor while it reads sockets. Its timers are next, then it reads again."""
        client.sendall(REQUEST)
        monkeypatch.setattr(listener, "_QUIET_SECONDS", 0)
        time.sleep(0.05)
        respond(exchange)

    monkeypatch.setattr(listener, "_QUIET_SECONDS", 60)
    first, second = uvloop.run(run())
    assert first.startswith(b"HTTP/1.1 200 ")
    assert second.startswith(b"HTTP/1.1 200 "), second
    assert b"\r\nConnection: close\r\n" in second


class Connection:
    """As far as its graceful shutdown is concerned: connected, and without HTTP/2's preface."""

    has_preface = False
    has_unread_bytes = True
    is_aborted = False

    def abort(self) -> None:
        self.is_aborted = True


class Loop:
    """Keeps the last timer."""

    def call_later(self, delay: float, callback: Callable[[], None]) -> None:
        self.timer = callback


def test_a_preface_that_waits_to_be_read_when_its_time_is_over_is_read():
    """A client that connected just before a busy server stopped lost its request."""
    connection, loop = Connection(), Loop()
    GracefulShutdown(connection, KeepaliveSettings(), loop).begin()
    loop.timer()
    assert not connection.is_aborted
    connection.has_unread_bytes = False
    loop.timer()
    assert connection.is_aborted


@pytest.mark.parametrize("kind", ["HTTP", "gRPC"])
def test_a_connection_that_is_made_as_the_port_closes_is_refused_rather_than_reset(kind, monkeypatch):
    """The kernel accepted it after the last `accept`, and reset it: its client had sent a request, and lost it."""
    late: list[socket.socket] = []

    def accept_all_and_connect(listening_socket: socket.socket) -> list[socket.socket]:
        accepted = accept_all(listening_socket)
        late.append(socket.socket())
        late[-1].setblocking(False)
        late[-1].connect_ex(listening_socket.getsockname())
        return accepted

    async def run() -> None:
        served = http_listener() if kind == "HTTP" else GrpcFrontend(FakeEngine(), address="127.0.0.1", port=0)
        await served.start()
        await served.stop(20)

    accept_all = listening._accept_all
    monkeypatch.setattr(listening, "_accept_all", accept_all_and_connect)
    uvloop.run(run())
    (client,) = late
    with client:
        assert select.select([], [client], [], 20)[1]
        assert client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNREFUSED
