"""The smallest application: it responds with the content that it receives."""

from __future__ import annotations

from typing import Any

from fakes.serving import LoopThread

from naiad.core.turns import LoopTurns
from naiad.frontends.http2.connection import READ_BUFFER_SIZE, Http2Connection
from naiad.frontends.http2.keepalive import KeepaliveSettings
from naiad.frontends.http2.limits import Http2Limits, StreamCount
from naiad.frontends.http2.request_head import RequestHead
from naiad.frontends.http2.stream import Stream
from naiad.frontends.open_connections import OpenConnections

FIRST = ((b":status", b"200"), (b"x-kind", b"echo"))
LAST = ((b"x-done", b"yes"),)


class EchoServer:
    """A server. `/echo` responds to a complete request, `/flow` returns each piece, `/hold` waits for `release`."""

    def __init__(self, loop: LoopThread, limits: Http2Limits, keepalive: KeepaliveSettings) -> None:
        self.loop = loop
        self.handlers: list[Echo] = []
        self.connections: OpenConnections[Http2Connection[RequestHead]] = OpenConnections()
        inbox = memoryview(bytearray(READ_BUFFER_SIZE))
        turns = LoopTurns(loop.loop)
        self.stream_count = StreamCount(limits)

        async def start() -> Any:
            return await loop.loop.create_server(
                lambda: Http2Connection(self, self.connections, inbox, limits, keepalive, turns, self.stream_count),
                "127.0.0.1",
                0,
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
        self.loop.call(lambda: [connection.drain() for connection in self.connections])

    def release(self) -> None:
        """Respond to the requests that wait."""
        self.loop.call(lambda: [handler.respond() for handler in self.handlers])

    def parse_head(self, head: RequestHead) -> RequestHead:
        return head

    def handle_request(self, stream: Stream, head: RequestHead) -> Echo:
        handler = Echo(stream, head.path)
        self.handlers.append(handler)
        return handler


class Echo:
    """One request."""

    def __init__(self, stream: Stream, path: bytes) -> None:
        self.stream = stream
        self.content = bytearray()
        self.is_cancelled = False
        self.markers: list[object] = []
        self.direct = 0
        self._path = path
        self._room = bytearray()
        self._has_begun = False

    def on_data(self, data: Any, start: int, end: int, ended: bool) -> None:
        self.content += data[start:end]
        if self._path == b"/flow" and end > start:
            self._flow(bytes(data[start:end]))
        if ended and self._path == b"/flow":
            self.stream.sender.send_trailers(self.stream, LAST, is_constant=True)
        elif ended and self._path == b"/echo":
            self.respond()

    def get_buffer(self, size: int) -> memoryview:
        self._room = bytearray(size)
        return memoryview(self._room)

    def buffer_updated(self, size: int) -> None:
        self.direct += size
        self.on_data(self._room, 0, size, False)

    def on_sent(self, marker: object) -> None:
        self.markers.append(marker)

    def on_cancel(self) -> None:
        self.is_cancelled = True

    def respond(self) -> None:
        content = bytes(self.content)
        self.stream.sender.send_response(self.stream, FIRST, [content], len(content), LAST)

    def _flow(self, piece: bytes) -> None:
        if not self._has_begun:
            self._has_begun = True
            self.stream.sender.send_headers(self.stream, FIRST, is_constant=True, ends=False)
        self.stream.sender.send_data(self.stream, [piece], len(piece), len(self.content))
