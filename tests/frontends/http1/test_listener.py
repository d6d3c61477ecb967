"""A listener that stops: how long each connection is kept, without sockets and on a clock of the test."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fakes.clock import Clock
from fakes.connections import Transport

from naiad.core.turns import LoopTurns
from naiad.frontends.http1.connection import HttpConnection
from naiad.frontends.http1.heads import HeadCache
from naiad.frontends.http1.listener import HttpListener
from naiad.frontends.http1.messages import response
from naiad.frontends.http1.request_reader import READ_SIZE, RequestLimits

REQUEST = b"GET /%b HTTP/1.1\r\nHost: h\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: %b\r\n\r\n"
GRACE = 5.0


class Client:
    """A connection of a listener. Requests for /later are answered by the test.

    Attributes:
        waiting: The exchanges of these.
        ended: When the connection ended, in seconds since it was made.
    """

    def __init__(self, listener: HttpListener) -> None:
        loop = asyncio.get_running_loop()
        self.waiting: list[Any] = []
        self.ended: float | None = None
        self.transport = transport = Transport()
        self.connection = connection = HttpConnection(
            self._handle,
            listener._connections,
            RequestLimits(),
            HeadCache(),
            memoryview(bytearray(READ_SIZE)),
            LoopTurns(loop),
        )
        began = loop.time()

        def end(how: str) -> None:
            transport.ends.append(how)
            if self.ended is None:
                self.ended = round(loop.time() - began, 2)
                connection.connection_lost(None)

        transport.close, transport.abort = lambda: end("close"), lambda: end("abort")  # type: ignore[method-assign]
        connection.connection_made(transport)  # type: ignore[arg-type] # a fake

    def send(self, data: bytes) -> None:
        self.connection.get_buffer(-1)[: len(data)] = data
        self.connection.buffer_updated(len(data))

    def _handle(self, exchange: Any) -> None:
        if exchange.request.path == b"/later":
            self.waiting.append(exchange)
        else:
            exchange.respond(response(200, []))


@pytest.fixture
def run_coroutine():
    return Clock().run


@pytest.mark.parametrize(
    ("sent", "later", "ended", "how", "is_told"),
    [
        (b"", [], 0.2, "close", False),
        (REQUEST % b"now", [], 0.2, "close", False),
        (b"\r\n", [], 1.0, "close", False),
        (b"GET / HT", [], 1.0, "close", False),
        (REQUEST % b"now" + b"GET / HT", [], 1.0, "close", False),
        (POST % b"9" + b"x", [], 1.0, "close", False),
        (b"GET / HT", [(0.9, b"TP/1.1\r\n"), (0.95, b"Host: h\r\n\r\n")], 2.95, "close", True),
        (b"", [(0.1, REQUEST % b"now")], 2.1, "close", True),
        (REQUEST % b"later", [(3.0, None)], 5.0, "close", True),
        (REQUEST % b"later", [], GRACE, "abort", False),
        (POST % b"999", [(n / 2, b"x") for n in range(1, 20)], GRACE, "abort", False),
    ],
)
async def test_a_connection_is_kept_while_a_response_is_due_or_a_request_arrives(sent, later, ended, how, is_told):
    """An idle one is closed after a moment: its client may just have sent a request."""
    loop = asyncio.get_running_loop()
    listener = HttpListener(lambda _: None, address="127.0.0.1", port=0, advice="")
    client = Client(listener)
    client.send(sent)
    stopping = asyncio.ensure_future(listener.stop(GRACE))
    began = loop.time()
    for when, data in later:
        await asyncio.sleep(began + when - loop.time())
        if client.ended is not None:
            break
        client.waiting.pop().respond(response(200, [])) if data is None else client.send(data)
    await stopping
    assert client.ended == pytest.approx(ended, abs=0.03)
    assert client.transport.ends[-1] == how
    assert (b"\r\nConnection: close\r\n" in client.transport.written) is is_told
    assert listener.connection_count == 0
