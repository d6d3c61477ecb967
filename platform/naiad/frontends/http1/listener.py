"""A listening socket for HTTP, its connections, their end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from naiad.config.server.access import TlsFiles
from naiad.errors import OptionError
from naiad.frontends.http1.connection import BUFFER, Connection, Landing, Limits
from naiad.frontends.http1.heads import HeadCache
from naiad.frontends.http1.messages import Exchange
from naiad.frontends.tls import http_context

_BACKLOG = 1024


class HttpListener:
    """Accepts connections and has their requests answered."""

    def __init__(
        self,
        handle: Callable[[Exchange], None],
        cancel: Callable[[int], None],
        *,
        address: str,
        port: int,
        advice: str,
        reuse_port: bool = False,
        limits: Limits | None = None,
        tls: TlsFiles | None = None,
        landing: Landing | None = None,
    ) -> None:
        """Prepare; `start` listens.

        Args:
            handle: Answers a request, now or later.
            cancel: Takes back an inference whose client went away.
            address: Address to listen on.
            port: Port to listen on, 0 for any.
            advice: What to do if they cannot be had.
            reuse_port: Whether several servers may share the port.
            limits: Bounds on requests.
            tls: Certificates; without them there is no TLS.
            landing: Where to read long bodies to.
        """
        self._handle = handle
        self._cancel = cancel
        self._address = address
        self._port = port
        self._advice = advice
        self._reuse_port = reuse_port
        self._limits = limits or Limits()
        self._tls = tls
        self._landing = landing
        self._connections: set[Connection] = set()
        self._heads = HeadCache()
        self._server: asyncio.Server | None = None

    async def start(self) -> int:
        """Listen; return the port.

        Raises:
            OptionError: If the address and port cannot be had.
        """
        loop = asyncio.get_running_loop()
        inbox = memoryview(bytearray(BUFFER))

        def connection() -> Connection:
            return Connection(
                self._handle, self._cancel, self._connections, self._limits, self._heads, inbox, self._landing
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
                f"cannot serve HTTP at {self._address}:{self._port}: {problem.strerror or problem}; {self._advice}"
            ) from problem
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self, grace: float) -> None:
        """Stop listening, let requests being answered finish within *grace* seconds, close all connections."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.close_when_idle()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + grace
        while self._connections and loop.time() < deadline:
            await asyncio.sleep(0.01)
        for connection in list(self._connections):
            connection.abort()
