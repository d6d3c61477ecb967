"""A listening socket for HTTP/1.1 and the connections it accepts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from naiad.config.server.access import TlsFiles
from naiad.errors import OptionError
from naiad.frontends.http1.connection import HttpConnection
from naiad.frontends.http1.heads import HeadCache
from naiad.frontends.http1.messages import HttpExchange
from naiad.frontends.http1.request_reader import READ_SIZE, RequestLimits, ReserveInput
from naiad.frontends.http1.response_queue import ErrorResponse, json_error
from naiad.frontends.tls import http_context

_BACKLOG = 1024
"""Connections that the kernel accepts before the loop does; load generators open hundreds at once."""


class HttpListener:
    """Accepts connections and hands their requests to one handler."""

    def __init__(
        self,
        handle: Callable[[HttpExchange], None],
        cancel: Callable[[int], None],
        *,
        address: str,
        port: int,
        advice: str,
        service: str = "HTTP",
        reuse_port: bool = False,
        limits: RequestLimits | None = None,
        tls: TlsFiles | None = None,
        reserve_input: ReserveInput | None = None,
        error_response: ErrorResponse = json_error,
    ) -> None:
        """A listener that is not listening yet; see `start`.

        Args:
            handle: Called with each exchange; responds now or later.
            cancel: Cancels the inference of a client that disconnected.
            address: Address to listen on.
            port: Port to listen on, 0 for any.
            advice: What to do if the port is not available, for the error's text.
            service: What is served, for the error's text.
            reuse_port: Whether several servers may share the port.
            limits: Bounds on requests.
            tls: Certificates; None for plain HTTP.
            reserve_input: Where to read long bodies to; see `RequestReader`.
            error_response: Makes the response to a malformed request, and to one that the handler failed on.
        """
        self._handle = handle
        self._cancel = cancel
        self._address = address
        self._port = port
        self._advice = advice
        self._service = service
        self._reuse_port = reuse_port
        self._limits = limits or RequestLimits()
        self._tls = tls
        self._reserve_input = reserve_input
        self._error_response = error_response
        self._connections: set[HttpConnection] = set()
        self._heads = HeadCache()
        self._server: asyncio.Server | None = None

    @property
    def connection_count(self) -> int:
        """How many connections are open."""
        return len(self._connections)

    async def start(self) -> int:
        """Listen; return the port.

        Raises:
            OptionError: If the address and port are not available.
        """
        loop = asyncio.get_running_loop()
        receive_buffer = memoryview(bytearray(READ_SIZE))

        def connection() -> HttpConnection:
            return HttpConnection(
                self._handle,
                self._cancel,
                self._connections,
                self._limits,
                self._heads,
                receive_buffer,
                self._reserve_input,
                self._error_response,
            )

        try:
            self._server = await loop.create_server(
                connection,
                self._address,
                self._port,
                backlog=_BACKLOG,
                reuse_port=self._reuse_port or None,
                ssl=None if self._tls is None else http_context(self._tls),
            )
        except OSError as problem:
            raise OptionError(
                f"cannot serve {self._service} at {self._address}:{self._port}: {problem.strerror or problem}; "
                f"{self._advice}"
            ) from problem
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self, grace: float) -> None:
        """Stop listening, wait up to *grace* seconds for responses that are due, and close all connections."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.responses.close_when_idle()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + grace
        while self._connections and loop.time() < deadline:
            await asyncio.sleep(0.01)
        for connection in list(self._connections):
            connection.responses.abort()
