"""A listening socket for HTTP/1.1 and the connections it accepts."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, field
from typing import Any

from naiad.config.server.access import TlsFiles
from naiad.core.errors import OptionError
from naiad.core.turns import turns_of
from naiad.frontends.http1.connection import HttpConnection
from naiad.frontends.http1.heads import HeadCache
from naiad.frontends.http1.messages import HttpExchange
from naiad.frontends.http1.page_guard import PageGuard, PageRules, is_loopback
from naiad.frontends.http1.request_reader import READ_SIZE, Admit, RequestLimits, ReserveInput
from naiad.frontends.http1.response_queue import ErrorResponse, json_error
from naiad.frontends.http1.timeouts import HttpTimeouts, Phase
from naiad.frontends.listening import Acceptor, close_listening, own_sockets
from naiad.frontends.open_connections import ConnectionCount, OpenConnections
from naiad.frontends.refusals import RefusalLog
from naiad.frontends.request_memory import RequestMemory
from naiad.frontends.timeouts import ProgressWatch, TimeoutSweep
from naiad.frontends.tls import http_context, listening_options

_BACKLOG = 1024  # connections that the kernel accepts before the loop does; load generators open hundreds at once
_LOOK_SECONDS = 0.01
_QUIET = {Phase.IDLE, Phase.HEADER, Phase.BODY}
_QUIET_SECONDS = 0.2  # how long a stopping server keeps an idle connection: a request may be on its way
_PART_SECONDS = 1.0  # the same for a connection on which a part of a request has arrived, and no more of it


@dataclass(slots=True, eq=False)
class HttpListener:
    """Accepts connections and hands their requests to one handler."""

    handle: Callable[[HttpExchange], None]
    _: KW_ONLY
    address: str
    port: int  # port to listen on, 0 for any
    advice: str  # what to do if the port is not available, for the error's text
    service: str = "HTTP"  # what is served, for the error's text
    reuse_port: bool = False
    limits: RequestLimits = field(default_factory=RequestLimits)
    tls: TlsFiles | None = None
    memory: RequestMemory | None = None  # budget and buffers of long bodies; None for no budget
    admit: Admit | None = None
    reserve_input: ReserveInput | None = None
    error_response: ErrorResponse = json_error
    timeouts: HttpTimeouts | None = None
    count: InitVar[ConnectionCount | None] = None  # counts connections against limits; None for none
    pages: PageRules | None = None  # which Hosts and which web pages are served; None for the defaults
    refused: RefusalLog | None = None
    acceptor: Acceptor | None = None  # accepts the connections; None for a server of one process
    _connections: OpenConnections[HttpConnection] = field(init=False)
    _connect: Callable[[], HttpConnection] = field(init=False)  # once it has started
    _heads: HeadCache = field(default_factory=HeadCache)
    _server: asyncio.Server | None = None
    _tls_context: ssl.SSLContext | None = None
    _sweep: TimeoutSweep[HttpConnection] | None = None
    _is_draining: bool = False

    def __post_init__(self, count: ConnectionCount | None) -> None:
        self._connections = OpenConnections(count)

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    async def start(self) -> int:
        """Listen; return the port. Raises OptionError if the address and port are not available."""
        loop = asyncio.get_running_loop()
        receive_buffer = memoryview(bytearray(READ_SIZE))
        turns, timeouts = turns_of(loop), self.timeouts or HttpTimeouts()
        memory = self.memory or RequestMemory(loop=loop)
        sweep = TimeoutSweep(loop, turns, self._connections, HttpConnection.check_time, timeouts.sweep_seconds)

        self._connections.on_added = sweep.start

        def connect() -> HttpConnection:
            return HttpConnection(
                self.handle,
                self._connections,
                self.limits,
                self._heads,
                receive_buffer,
                turns,
                memory,
                self.admit,
                self.reserve_input,
                self.error_response,
                timeouts,
                is_draining=self._is_draining,
            )

        self._connect, self._sweep = connect, sweep
        self._tls_context = None if self.tls is None else http_context(self.tls)
        if self.acceptor is not None and not self.acceptor.has_port:
            found = await loop.getaddrinfo(self.address, self.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            self._heads = self._head_cache([where for *_, where in found])
            self.acceptor.begin([], connect, self._tls_context)
            return self.port
        try:
            self._server = await loop.create_server(
                connect,
                self.address,
                self.port,
                backlog=_BACKLOG,
                reuse_port=self.reuse_port or None,
                start_serving=False,
                **listening_options(self._tls_context),
            )
            addresses = [each.getsockname() for each in self._server.sockets]
            self._heads = self._head_cache(addresses)
            if self.acceptor is None:
                await self._server.start_serving()
            else:
                sockets = own_sockets(self._server)
                for each in sockets:
                    each.setblocking(False)
                    each.listen(_BACKLOG)
                self.acceptor.begin(sockets, connect, self._tls_context)
        except OSError as problem:
            raise OptionError(
                f"cannot serve {self.service} at {self.address}:{self.port}: {problem.strerror or problem}; "
                f"{self.advice}"
            ) from problem
        return int(addresses[0][1])

    def _head_cache(self, addresses: Sequence[Any]) -> HeadCache:
        guard = PageGuard(self.pages or PageRules(), is_loopback=all(is_loopback(each[0]) for each in addresses))
        return HeadCache(guard, self.refused)

    def drain(self) -> None:
        """Serve on, and ask clients to connect elsewhere: each response is the last one of its connection."""
        self._is_draining = True
        for connection in self._connections:
            connection.responses.begin_drain()

    async def stop(self, grace: float) -> None:
        """Stop listening, answer what was sent before, and close all connections.

        A connection is kept while a response is due, or a request arrives, for up to *grace* seconds. An idle one is
        closed after a moment: its client may just have sent a request.
        """
        self.drain()
        if self.acceptor is not None:
            self.acceptor.end()
        if self._server is not None:
            server, self._server = self._server, None
            await close_listening(server, self._connect, self._tls_context)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + grace
        watches: dict[HttpConnection, ProgressWatch] = {}
        while self._connections and loop.time() < deadline:
            for connection in self._connections:
                # One that was made before `drain` may have been registered after it, in a later turn of the loop.
                connection.responses.begin_drain()
                phase, progress = connection.progress()
                elapsed = watches.setdefault(connection, ProgressWatch()).elapsed(phase, progress, loop.time())
                is_idle = phase is Phase.IDLE or not connection.reader.received
                is_quiet = phase in _QUIET and elapsed >= (_QUIET_SECONDS if is_idle else _PART_SECONDS)
                if is_quiet and not connection.has_unread_bytes:
                    connection.responses.close_when_idle()
            await asyncio.sleep(_LOOK_SECONDS)
        for connection in self._connections:
            connection.responses.abort()
        if self._sweep is not None:
            self._sweep.stop()
