"""A gRPC server on one port: sockets, connections, and requests to the methods of a service."""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
import ssl
from collections.abc import Callable, Mapping
from functools import partial

from naiad.core.errors import OptionError, without_frames
from naiad.core.turns import LoopTurns
from naiad.frontends.access import Denial
from naiad.frontends.grpc.call_head import CallHead, CallHeadParser, Metadata
from naiad.frontends.grpc.calls import CallContext, GrpcCall, GrpcMethod
from naiad.frontends.grpc.settings import GrpcSettings
from naiad.frontends.grpc.time_limits import MessageTimeCheck
from naiad.frontends.http2.connection import READ_BUFFER_SIZE, Application, Http2Connection
from naiad.frontends.http2.limits import Http2Limits, StreamCount
from naiad.frontends.http2.stream import Stream, StreamHandler
from naiad.frontends.listening import Acceptor, close_listening, own_sockets
from naiad.frontends.log_settings import ServerLog
from naiad.frontends.open_connections import ConnectionCount, OpenConnections
from naiad.frontends.refusals import RefusalLog
from naiad.frontends.request_budget import RequestBudget
from naiad.frontends.timeouts import TimeoutSweep, sweep_seconds
from naiad.frontends.tls import listening_options

logger = logging.getLogger("naiad.grpc")

_BACKLOG = 1024
_LOOK_SECONDS = 0.01
_FIRST_REQUEST_SECONDS = 0.2
"""How long connections that arrived during a stop are waited for: each is to have its first request answered.

A client of gRPC that gets GOAWAY before it has used its connection counts that as a failure to connect, waits, and
fails the calls that asked for the connection."""
_MIN_DRAIN_SECONDS = 0.1  # for connections to close, even without grace: responses may be on their way

Head = CallHead[GrpcMethod]


class GrpcApplication:
    """Handles requests of HTTP/2 as calls of a service. Implements `Application`."""

    def __init__(
        self,
        methods: Mapping[bytes, GrpcMethod],
        context: CallContext,
        *,
        denial: Callable[[GrpcMethod, Metadata], Denial | None],  # why a method may not be called; else None
        refusals: RefusalLog,
        log: ServerLog,
        log_names: Mapping[str, tuple[str, str]],  # what the log calls methods, and what it adds
        settings: GrpcSettings,
        limits: Http2Limits,
    ) -> None:
        self._context = context
        self._refusals = refusals
        self._log = log
        self._log_names = log_names
        self._logged_calls = itertools.count()
        parser = CallHeadParser(methods, denial, settings.response_compression, limits.fields_size)
        self.parse_head = parser.parse

    def handle_request(self, stream: Stream, head: Head) -> StreamHandler | None:
        method = head.method
        if method is not None:
            if self._log.is_verbose:
                self._log_call(method.name)
            return GrpcCall(stream, head, method, self._context)
        assert head.rejection is not None
        stream.sender.send_headers(stream, head.rejection, is_constant=False, ends=True)
        self._refusals.add_wrong_secret(head.wrong_secret, stream.controller.client_address)
        return None

    def _log_call(self, name: str) -> None:
        """Log that a call begins. Text: SRV src/grpc/, which also logs the later steps of its state machine."""
        handler, context = self._log_names.get(name, (name, ""))
        logger.debug("Process for %s, rpc_ok=1,%s %d step START", handler, context, next(self._logged_calls))


class GrpcServer:
    """Listens on one port, with any number of connections."""

    def __init__(
        self,
        application: Application[Head],
        limits: Http2Limits,
        settings: GrpcSettings,
        tls: ssl.SSLContext | None,
        turns: LoopTurns,
        count: ConnectionCount | None = None,
        budget: RequestBudget | None = None,
        acceptor: Acceptor | None = None,
    ) -> None:
        """A server that does not listen yet; without *budget*, what waits for clients has no limit.

        *acceptor* accepts the connections in a server of several processes.
        """
        self._acceptor = acceptor
        budget = budget or RequestBudget()
        self.connections: OpenConnections[Http2Connection[Head]] = OpenConnections(count)
        seconds = settings.message_timeout_ms / 1000
        check = MessageTimeCheck(seconds, budget).check
        self._sweep = TimeoutSweep(turns.loop, turns, self.connections, check, sweep_seconds(seconds))
        self.connections.on_added = self._sweep.start
        self._tls = tls
        self._servers: list[asyncio.Server] = []
        self._connect: Callable[[], Http2Connection[Head]] = partial(
            Http2Connection,
            application,
            self.connections,
            memoryview(bytearray(READ_BUFFER_SIZE)),
            limits,
            settings.keepalive(),
            turns,
            StreamCount(limits),
            budget,
        )

    async def start(self, address: str, port: int, *, reuse_port: bool) -> int:
        """Listen; return the port. Raises OptionError if the address or port cannot be used."""
        loop = asyncio.get_running_loop()
        if self._acceptor is not None and not self._acceptor.has_port:
            self._acceptor.begin([], self._connect, self._tls)
            return port
        sockets = _listening_sockets(address, port, reuse_port=reuse_port)
        for each in sockets:
            options = listening_options(self._tls)
            is_serving = self._acceptor is None
            self._servers.append(
                await loop.create_server(
                    self._connect, sock=each, backlog=_BACKLOG, start_serving=is_serving, **options
                )
            )
            if self._acceptor is not None:
                self._acceptor.begin(own_sockets(self._servers[-1]), self._connect, self._tls)
        return int(sockets[0].getsockname()[1])

    def drain(self) -> None:
        """Serve on, and ask clients to open no more streams on the connections that they have."""
        for connection in self.connections:
            connection.drain()

    async def close_listening(self) -> None:
        """Accept no more connections but those that the kernel has accepted, and let these send a first request."""
        if self._acceptor is not None:
            self._acceptor.end()
        servers, self._servers = self._servers, []
        for server in servers:
            await close_listening(server, self._connect, self._tls)
        await self._wait_for_all(lambda connection: bool(connection.last_stream), _FIRST_REQUEST_SECONDS)

    async def wait_drained(self, seconds: float) -> None:
        """Drain all connections, and wait up to *seconds* until each client knows its last request."""
        self.drain()
        await self._wait_for_all(lambda connection: connection.is_drained, seconds)

    async def stop(self, deadline: float) -> None:
        """Drain all connections, after `close_listening`, and abort what is left at *deadline*, by the loop's clock."""
        self.drain()
        remaining = deadline - asyncio.get_running_loop().time()
        await self._wait_for_all(lambda _: False, max(remaining, _MIN_DRAIN_SECONDS))
        for connection in self.connections:
            connection.abort()
        self._sweep.stop()
        while self.connections:
            await asyncio.sleep(0)

    async def _wait_for_all(self, is_ready: Callable[[Http2Connection[Head]], bool], seconds: float) -> None:
        """Wait up to *seconds* until all open connections are ready."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + seconds
        while clock() < deadline and not all(map(is_ready, self.connections)):
            await asyncio.sleep(_LOOK_SECONDS)


def _listening_sockets(address: str, port: int, *, reuse_port: bool) -> list[socket.socket]:
    """Sockets for all addresses that *address* resolves to; OptionError if none of them can be used."""
    sockets: list[socket.socket] = []
    problem: OSError | None = None
    try:
        resolved = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        resolved, problem = [], without_frames(error)
    for family, _, _, _, where in resolved:
        # Port 0 means any free port; all addresses then share the one that the first got.
        used_port = sockets[0].getsockname()[1] if sockets else port
        try:
            sockets.append(_bind(family, (str(where[0]), used_port, *where[2:]), reuse_port=reuse_port))
        except OSError as error:
            problem = without_frames(error)
    if sockets:
        return sockets
    host = f"[{address}]" if ":" in address else address
    why = problem.strerror or problem if problem is not None else "the address does not resolve"
    raise OptionError(
        f"cannot serve gRPC at {host}:{port}: {why}; set another address or port with --grpc-address or --grpc-port"
    ) from problem


def _bind(family: int, where: tuple[str | int, ...], *, reuse_port: bool) -> socket.socket:
    # The wildcard address means IPv4 and IPv6, as for gRPC: one socket for both where the system has such.
    is_wildcard = where[0] in {"0.0.0.0", "::"} and socket.has_dualstack_ipv6()  # noqa: S104 - compared, not bound
    if is_wildcard:
        family, where = socket.AF_INET6, ("::", where[1])
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(not is_wildcard))
        made.bind(where)
        made.listen(_BACKLOG)
    except OSError:
        made.close()
        raise
    return made
