"""`GET /metrics` over HTTP/1.1, on a port of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import cast

import httptools
import psutil

from naiad.engine.door import EngineDoor
from naiad.errors import NaiadError, OptionError
from naiad.frontends.metrics import triton_families
from naiad.frontends.metrics.families import Collector, render
from naiad.frontends.status import HTTP_STATUS

_MAX_REQUEST = 64 * 1024
"""A scrape has a few hundred bytes; whoever sends more does not want metrics."""

_REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    501: "Not Implemented",
    503: "Service Unavailable",
}


class MetricsFrontend:
    """Serves the metrics of the engine and the machine to Prometheus."""

    def __init__(
        self,
        engine: EngineDoor,
        *,
        address: str,
        port: int,
        collectors: Sequence[Collector] = (),
        with_system: bool = True,
        with_counters: bool = True,
    ) -> None:
        """Make a frontend; it listens once started.

        Args:
            engine: Whose statistics become metrics.
            address: Address to listen at.
            port: Port to listen at; 0 for any free one.
            collectors: Makers of further families, such as `cache.cache_families` or the models' own metrics.
            with_system: Whether to tell of the machine's processor and memory (--allow-cpu-metrics).
            with_counters: Whether to tell sums of durations (--metrics-config=counter_latencies).
        """
        self._engine = engine
        self._address = address
        self._port = port
        self._collectors = tuple(collectors)
        self._with_system = with_system
        self._with_counters = with_counters
        self._server: asyncio.Server | None = None
        self._connections: set[_Connection] = set()

    async def start(self) -> int:
        """Begin to listen.

        Returns:
            The port.

        Raises:
            OptionError: The address or port cannot be used.
        """
        psutil.cpu_percent()  # utilization counts from here
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                lambda: _Connection(self.scrape, self._connections), self._address, self._port
            )
        except OSError as error:
            raise OptionError(
                f"cannot serve metrics at {self._address}:{self._port}: {error.strerror or error}; "
                "set another address or port with --metrics-address or --metrics-port"
            ) from error
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def stop(self) -> None:
        """Stop listening and close the connections."""
        if self._server is None:
            return
        self._server.close()
        for connection in tuple(self._connections):
            connection.close()
        await self._server.wait_closed()
        self._server = None

    def scrape(self) -> bytes:
        """All metrics now, in Prometheus' text format."""
        families = triton_families.model_families(self._engine.statistics(), with_durations=self._with_counters)
        families += triton_families.memory_pool_families()
        for collector in self._collectors:
            families.extend(collector())
        if self._with_system:
            families.extend(triton_families.system_families())
        return render(families)


_PATHS = (b"/metrics", b"/metrics/")  # as the reference has them


class _Connection(asyncio.Protocol):
    """One keep-alive connection."""

    def __init__(self, scrape: Callable[[], bytes], connections: set[_Connection]) -> None:
        self._scrape = scrape
        self._connections = connections
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._received = 0
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transports are of no class of asyncio
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._transport = None
        self._connections.discard(self)

    def close(self) -> None:
        """Close the connection once what is written is sent."""
        if self._transport is not None:
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        """Feed the parser, which calls the `on_` methods."""
        self._received += len(data)
        if self._received > _MAX_REQUEST:
            self._refuse(431)
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.close()  # answered as a plain request; what follows would be in another protocol
        except httptools.HttpParserError:
            self._refuse(400)

    def on_message_begin(self) -> None:
        """Forget the last request."""
        self._url = b""

    def on_url(self, url: bytes) -> None:
        """Take a piece of the URL."""
        self._url += url

    def on_message_complete(self) -> None:
        """Answer."""
        self._received = 0
        keep_alive = self._parser.should_keep_alive()
        if self._url.partition(b"?")[0] not in _PATHS:
            self._respond(404, keep_alive=keep_alive)
        elif self._parser.get_method() != b"GET":
            self._respond(405, keep_alive=keep_alive)
        else:
            try:
                body = self._scrape()
            except NaiadError as error:
                self._respond(HTTP_STATUS[error.code], error.message.encode(), keep_alive=keep_alive)
            else:
                self._respond(200, body, keep_alive=keep_alive)

    def _refuse(self, status: int) -> None:
        self._respond(status, keep_alive=False)

    def _respond(self, status: int, body: bytes | None = None, *, keep_alive: bool) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        reason = _REASONS[status]
        content = reason.encode() if body is None else body
        allow = "Allow: GET\r\n" if status == 405 else ""  # noqa: PLR2004
        connection = "" if keep_alive else "Connection: close\r\n"
        head = (
            f"HTTP/1.1 {status} {reason}\r\nContent-Type: text/plain; charset=utf-8\r\n"
            f"Content-Length: {len(content)}\r\n{allow}{connection}\r\n"
        )
        # A HEAD is refused without the refusal's body: its client would take that for the next response.
        self._transport.write(head.encode() + (b"" if self._parser_method() == b"HEAD" else content))
        if not keep_alive:
            self._transport.close()

    def _parser_method(self) -> bytes:
        try:
            method: bytes = self._parser.get_method()
        except (httptools.HttpParserError, TypeError):
            return b""
        return method
