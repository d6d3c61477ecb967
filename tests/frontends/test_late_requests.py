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

import pytest
import uvloop
from fakes.engine import FakeEngine
from naiad.frontends import listening
from naiad.frontends.http1.listener import HttpListener
from naiad.frontends.http1.messages import HttpExchange, response
from naiad.frontends.http1.timeouts import HttpTimeouts
from naiad.frontends.http2 import frames
from naiad.frontends.kserve_grpc.frontend import GrpcFrontend
from naiad.frontends.unread_bytes import has_unread_bytes

REQUEST = b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\na"


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


def listener(**timeouts: float) -> HttpListener:
    return HttpListener(
        respond, lambda _: None, address="127.0.0.1", port=0, advice="", timeouts=HttpTimeouts(**timeouts)
    )


async def answer_to(client: socket.socket, request: bytes) -> bytes:
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(client, request)
    return await loop.sock_recv(client, 1 << 16)


async def after_a_stall(client: socket.socket, data: bytes, seconds: float) -> bytes:
    """What the client gets for *data* that it sends while the loop of the server gets no processor.

    The loop stalls while it reads sockets. Its timers are next, then it reads again.
    """

    def stall(exchange: HttpExchange) -> None:
        client.sendall(data)
        time.sleep(seconds)
        respond(exchange)

    other = HttpListener(stall, lambda _: None, address="127.0.0.1", port=0, advice="")
    with connected(await other.start()) as staller:
        await answer_to(staller, REQUEST)
    try:
        return await asyncio.wait_for(asyncio.get_running_loop().sock_recv(client, 1 << 16), 20)
    except OSError as error:
        return str(error).encode()
    finally:
        await other.stop(20)


@contextlib.contextmanager
def connected(port: int):
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.setblocking(False)
        yield client


def test_a_request_on_an_idle_connection_that_arrives_in_a_stall_of_a_stopping_server_is_answered():
    """The connection was reset: it had been idle for the time after which it is closed."""

    async def run() -> bytes:
        http = listener()
        with connected(await http.start()) as client:
            assert (await answer_to(client, REQUEST)).startswith(b"HTTP/1.1 200 ")
            stopping = asyncio.ensure_future(http.stop(20))
            await asyncio.sleep(0.05)  # it has looked at the connection
            received = await after_a_stall(client, REQUEST, 0.3)
        await stopping
        return received

    received = uvloop.run(run())
    assert received.startswith(b"HTTP/1.1 200 ")
    assert b"\r\nConnection: close\r\n" in received


def test_a_request_that_arrives_in_a_stall_as_its_connection_becomes_too_old_is_answered():
    async def run() -> bytes:
        http = listener(keepalive=0.3)
        with connected(await http.start()) as client:
            assert (await answer_to(client, REQUEST)).startswith(b"HTTP/1.1 200 ")
            await asyncio.sleep(0.1)  # the check of time limits has looked at it
            received = await after_a_stall(client, REQUEST, 0.4)
        await http.stop(20)
        return received

    assert uvloop.run(run()).startswith(b"HTTP/1.1 200 ")


def test_a_preface_that_arrives_in_a_stall_of_a_stopping_server_is_answered():
    async def run() -> bytes:
        grpc = GrpcFrontend(FakeEngine(), address="127.0.0.1", port=0)
        with connected(await grpc.start()) as client:
            connections = grpc._server.connections
            while not connections:
                await asyncio.sleep(0.01)
            stopping = asyncio.ensure_future(grpc.stop(20))
            while not any(connection._shutdown.has_begun for connection in connections):
                await asyncio.sleep(0.01)
            received = await after_a_stall(client, frames.PREFACE + frames.settings([]), 0.3)
        await stopping
        return received

    received = uvloop.run(run())
    assert received[3:4] == bytes([frames.SETTINGS]), received


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
        served = listener() if kind == "HTTP" else GrpcFrontend(FakeEngine(), address="127.0.0.1", port=0)
        await served.start()
        await served.stop(20)

    accept_all = listening._accept_all
    monkeypatch.setattr(listening, "_accept_all", accept_all_and_connect)
    uvloop.run(run())
    (client,) = late
    with client:
        assert select.select([], [client], [], 20)[1]
        assert client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNREFUSED
