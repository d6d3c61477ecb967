"""The smallest application: it answers with the content it gets, once that is whole or as it comes."""

from __future__ import annotations

from typing import Any

from fakes.serving import LoopThread
from naiad.frontends.http2.connection import BUFFER, Connection
from naiad.frontends.http2.keepalive import Lifetimes
from naiad.frontends.http2.limits import Limits
from naiad.frontends.http2.request_head import RequestHead
from naiad.frontends.http2.stream import Stream

FIRST = ((b":status", b"200"), (b"x-kind", b"echo"))
LAST = ((b"x-done", b"yes"),)


class EchoServer:
    """Listens; `/echo` answers once a request is whole, `/flow` sends each piece back, `/hold` waits for `release`."""

    def __init__(self, loop: LoopThread, limits: Limits, lifetimes: Lifetimes) -> None:
        self.loop = loop
        self.receivers: list[Echo] = []
        self.connections: set[Connection[RequestHead]] = set()
        inbox = memoryview(bytearray(BUFFER))

        async def start() -> Any:
            return await loop.loop.create_server(
                lambda: Connection(self, self.connections, inbox, limits, lifetimes), "127.0.0.1", 0
            )

        self._server = loop.run(start())
        self.port = self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        async def stop() -> None:
            self._server.close()
            for connection in tuple(self.connections):
                connection.abort()

        self.loop.run(stop())
        self.loop.until(lambda: not self.connections)

    def drain(self) -> None:
        self.loop.call(lambda: [connection.lifespan.drain() for connection in self.connections])

    def release(self) -> None:
        """Answer what is held."""
        self.loop.call(lambda: [receiver.respond() for receiver in self.receivers])

    def interpret(self, head: RequestHead) -> RequestHead:
        return head

    def open(self, stream: Stream, request: RequestHead) -> Echo:
        receiver = Echo(stream, request.path)
        self.receivers.append(receiver)
        return receiver


class Echo:
    """One request."""

    def __init__(self, stream: Stream, path: bytes) -> None:
        self.stream = stream
        self.content = bytearray()
        self.is_cancelled = False
        self.marks: list[object] = []
        self.direct = 0
        self._path = path
        self._room = bytearray()
        self._has_begun = False

    def received(self, data: Any, start: int, end: int, ended: bool) -> None:
        self.content += data[start:end]
        if self._path == b"/flow" and end > start:
            self._flow(bytes(data[start:end]))
        if ended and self._path == b"/flow":
            self.stream.connection.finish(self.stream, LAST, is_constant=True)
        elif ended and self._path == b"/echo":
            self.respond()

    def room(self, size: int) -> memoryview:
        self._room = bytearray(size)
        return memoryview(self._room)

    def filled(self, size: int) -> None:
        self.direct += size
        self.received(self._room, 0, size, False)

    def left(self, mark: object) -> None:
        self.marks.append(mark)

    def cancelled(self) -> None:
        self.is_cancelled = True

    def respond(self) -> None:
        content = bytes(self.content)
        self.stream.connection.respond(self.stream, FIRST, [content], len(content), LAST)

    def _flow(self, piece: bytes) -> None:
        if not self._has_begun:
            self._has_begun = True
            self.stream.connection.start(self.stream, FIRST, is_constant=True, ends=False)
        self.stream.connection.send(self.stream, [piece], len(piece), len(self.content))
