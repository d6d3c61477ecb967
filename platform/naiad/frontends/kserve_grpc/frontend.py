"""gRPC on a port: listening, connections, their end."""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
from collections.abc import Mapping

from naiad.config.server.access import TlsFiles
from naiad.engine.door import EngineDoor
from naiad.errors import OptionError
from naiad.frontends.access import Access, HeaderForwarder
from naiad.frontends.extensions import Extensions
from naiad.frontends.grpc.call_head import CallHead, HeadReader
from naiad.frontends.grpc.calls import Serving
from naiad.frontends.grpc.gate import Gate
from naiad.frontends.grpc.settings import GrpcSettings
from naiad.frontends.http2.connection import BUFFER, Connection
from naiad.frontends.http2.limits import Limits
from naiad.frontends.http2.request_head import RequestHead
from naiad.frontends.http2.stream import Receiver, Stream
from naiad.frontends.kserve_grpc.methods import Method, methods_of
from naiad.frontends.kserve_grpc.restricted import Guard
from naiad.frontends.kserve_grpc.service import InferenceService
from naiad.frontends.tls import grpc_context

logger = logging.getLogger("naiad.grpc")

_HANDLERS = {
    "LogSettings": ("Logging", ""),
    "ModelInfer": ("ModelInferHandler", ""),
    "ModelStreamInfer": ("ModelStreamInferHandler", " context 0,"),
    "TraceSetting": ("Trace", ""),
}
_BACKLOG = 1024
_MOMENT = 0.1
"""Seconds that connections have to end at least: answers may still be on their way."""

Head = CallHead[Method]


class GrpcFrontend:
    """Serves KServe v2 with Triton's extensions over gRPC."""

    def __init__(
        self,
        engine: EngineDoor,
        *,
        address: str,
        port: int,
        reuse_port: bool = False,
        settings: GrpcSettings | None = None,
        extensions: Extensions | None = None,
        access: Access | None = None,
        tls: TlsFiles | None = None,
        limits: Limits | None = None,
    ) -> None:
        """Make a frontend; it listens once started.

        Args:
            engine: Who answers.
            address: Address to listen at, such as `0.0.0.0` or `::`.
            port: Port to listen at; 0 for any free one.
            reuse_port: Whether other servers may listen at the same port.
            settings: Settings of the transport.
            extensions: What is shared with other frontends.
            access: What is restricted, and which headers are forwarded.
            tls: Certificates; without them there is no TLS.
            limits: Bounds on what a client may do.
        """
        self._engine = engine
        self._tls = tls
        self._address = address
        self._port = port
        self._reuse_port = reuse_port
        self._settings = settings or GrpcSettings()
        self._limits = limits or Limits()
        self._gate = Gate()
        self._extensions = extensions or Extensions()
        self._access = access or Access()
        self._connections: set[Connection[Head]] = set()
        self._servers: list[asyncio.Server] = []

    async def start(self) -> int:
        """Begin to listen.

        Returns:
            The port.

        Raises:
            OptionError: The address or port cannot be used.
        """
        loop = asyncio.get_running_loop()
        context = None if self._tls is None else grpc_context(self._tls)
        application = self.application(loop)
        inbox = memoryview(bytearray(BUFFER))
        lifetimes = self._settings.lifetimes()

        def connect() -> Connection[Head]:
            return Connection(application, self._connections, inbox, self._limits, lifetimes)

        listening = _listening(self._address, self._port, reuse_port=self._reuse_port)
        for each in listening:
            self._servers.append(await loop.create_server(connect, sock=each, backlog=_BACKLOG, ssl=context))
        return int(listening[0].getsockname()[1])

    async def stop(self, grace: float) -> None:
        """Refuse new inferences, wait at most *grace* seconds for those in flight, then close."""
        if not self._servers:
            return
        clock = asyncio.get_running_loop().time
        end = clock() + grace
        await self._gate.close(grace)
        for server in self._servers:
            server.close()
        self._servers.clear()
        for connection in tuple(self._connections):
            connection.lifespan.drain()
        end = max(end, clock() + _MOMENT)
        while self._connections and clock() < end:
            await asyncio.sleep(0.01)
        for connection in tuple(self._connections):
            connection.abort()
        while self._connections:
            await asyncio.sleep(0)

    def application(self, loop: asyncio.AbstractEventLoop) -> GrpcApplication:
        """What answers the requests of connections."""
        service = InferenceService(self._engine, self._gate, self._extensions)
        forward = self._access.forward
        serving = Serving(
            engine=self._engine,
            gate=self._gate,
            service=service,
            extensions=self._extensions,
            forwarder=HeaderForwarder(forward) if forward is not None else None,
            loop=loop,
        )
        return GrpcApplication(serving, Guard(self._access.restrictions), self._settings, self._limits)


class GrpcApplication:
    """Answers requests that are calls."""

    def __init__(self, serving: Serving, guard: Guard, settings: GrpcSettings, limits: Limits) -> None:
        def why_not(method: Method, metadata: Mapping[str, str]) -> str:
            return guard.why_not(method.name, metadata)

        self._serving = serving
        self._log = serving.extensions.log
        self._logged = itertools.count()
        self._heads = HeadReader(
            methods_of(serving.service), why_not, level=settings.response_compression, most=limits.fields_size
        )

    def interpret(self, head: RequestHead) -> Head:
        """The call that a request is."""
        return self._heads.read(head)

    def open(self, stream: Stream, request: Head) -> Receiver | None:
        """Begin to answer a call."""
        if request.method is not None:
            if self._log.is_verbose:
                self._log_call(request.method.name)
            return request.method.begin(stream, request, self._serving)
        assert request.refusal is not None
        stream.connection.start(stream, request.refusal, is_constant=False, ends=True)
        return None

    def _log_call(self, name: str) -> None:
        """Log that a call begins, in the words of the reference (SRV src/grpc/), which says more of its inner life."""
        handler, context = _HANDLERS.get(name, (name, ""))
        logger.debug("Process for %s, rpc_ok=1,%s %d step START", handler, context, next(self._logged))


def _listening(address: str, port: int, *, reuse_port: bool) -> list[socket.socket]:
    """Sockets that listen at all that *address* means; at any address of the machine also by IPv6.

    Raises:
        OptionError: If they cannot be had.
    """
    made: list[socket.socket] = []
    problem: OSError | None = None
    try:
        places = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        places, problem = [], error
    for family, _, _, _, where in places:
        bound = made[0].getsockname()[1] if made else port
        try:
            made.append(_bound(family, (str(where[0]), bound, *where[2:]), reuse_port=reuse_port))
        except OSError as error:
            problem = error
    if made:
        return made
    host = f"[{address}]" if ":" in address else address
    why = problem.strerror or problem if problem is not None else "it means nothing"
    raise OptionError(
        f"cannot serve gRPC at {host}:{port}: {why}; set another address or port with --grpc-address or --grpc-port"
    ) from problem


def _bound(family: int, where: tuple[str | int, ...], *, reuse_port: bool) -> socket.socket:
    is_everywhere = where[0] in {"0.0.0.0", "::"} and socket.has_dualstack_ipv6()  # noqa: S104
    if is_everywhere:
        family, where = socket.AF_INET6, ("::", where[1])
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(not is_everywhere))
        made.bind(where)
        made.listen(_BACKLOG)
    except OSError:
        made.close()
        raise
    return made
