"""The HTTP frontend: a listening socket, its connections, their end."""

from __future__ import annotations

import asyncio

from naiad.config.tls import TlsFiles
from naiad.engine.door import EngineDoor
from naiad.errors import OptionError
from naiad.frontends.access import Access
from naiad.frontends.extensions import Extensions
from naiad.frontends.http.connection import BUFFER, Connection, Limits
from naiad.frontends.http.endpoints import Endpoints
from naiad.frontends.http.heads import HeadCache
from naiad.frontends.tls import http_context

_BACKLOG = 1024


class HttpFrontend:
    """Serves KServe v2 over HTTP/1.1."""

    def __init__(
        self,
        engine: EngineDoor,
        *,
        address: str,
        port: int,
        reuse_port: bool = False,
        max_json: int = 64 << 20,
        limits: Limits | None = None,
        extensions: Extensions | None = None,
        access: Access | None = None,
        tls: TlsFiles | None = None,
    ) -> None:
        """Prepare; `start` listens.

        Args:
            engine: Who answers.
            address: Address to listen on.
            port: Port to listen on, 0 for any.
            reuse_port: Whether several servers may share the port.
            max_json: Longest JSON of a request in bytes (--http-max-input-size).
            limits: Bounds on requests.
            extensions: What is shared with other frontends.
            access: What is restricted, and which headers are forwarded.
            tls: Certificates; without them there is no TLS.
        """
        self._engine = engine
        self._tls = tls
        self._address = address
        self._port = port
        self._reuse_port = reuse_port
        self._limits = limits or Limits()
        self._endpoints = Endpoints(
            engine, extensions or Extensions(), access or Access(), max_json=max_json, max_body=self._limits.body_bytes
        )
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
        try:
            self._server = await loop.create_server(
                lambda: Connection(
                    self._endpoints.handle, self._engine.cancel, self._connections, self._limits, self._heads, inbox
                ),
                self._address,
                self._port,
                backlog=_BACKLOG,
                reuse_port=self._reuse_port or None,
                ssl=None if self._tls is None else http_context(self._tls),
            )
        except OSError as problem:
            raise OptionError(
                f"cannot serve HTTP at {self._address}:{self._port}: {problem.strerror or problem}; choose another "
                "--http-port or --http-address, or --allow-http=false"
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
