"""The gRPC frontend: KServe v2 with Triton's extensions, on the transport of `frontends/grpc`."""

from __future__ import annotations

import asyncio
from dataclasses import KW_ONLY, InitVar, dataclass, field

from naiad.config.server.access import TlsFiles
from naiad.core.turns import turns_of
from naiad.engine.facade import EngineFacade
from naiad.frontends.access import Access, HeaderForwarder
from naiad.frontends.extensions import Extensions
from naiad.frontends.grpc.gate import AdmissionGate
from naiad.frontends.grpc.messages import BufferPool
from naiad.frontends.grpc.server import GrpcApplication, GrpcServer
from naiad.frontends.grpc.settings import GrpcSettings
from naiad.frontends.http2.limits import Http2Limits
from naiad.frontends.kserve_grpc.methods import RestrictedMethods, methods_of
from naiad.frontends.kserve_grpc.service import InferenceService, ServiceContext
from naiad.frontends.listening import Acceptor
from naiad.frontends.open_connections import ConnectionCount
from naiad.frontends.tls import grpc_context

_LOG_NAMES = {
    "LogSettings": ("Logging", ""),
    "ModelInfer": ("ModelInferHandler", ""),
    "ModelStreamInfer": ("ModelStreamInferHandler", " context 0,"),
    "TraceSetting": ("Trace", ""),
}  # what the reference's log calls methods (SRV src/grpc/), where that is not their name


@dataclass(slots=True, eq=False)
class GrpcFrontend:
    """Serves KServe v2 with Triton's extensions over gRPC."""

    engine: EngineFacade
    _: KW_ONLY
    address: str
    port: int
    reuse_port: bool = False
    settings: GrpcSettings | None = None
    extensions: InitVar[Extensions | None] = None
    access: Access = field(default_factory=Access)
    tls: TlsFiles | None = None
    limits: Http2Limits = field(default_factory=Http2Limits)  # what a client may do
    count: ConnectionCount | None = None  # the number of connections
    acceptor: Acceptor | None = None  # accepts them in a server of several processes
    _extensions: Extensions = field(init=False)
    _owns_extensions: bool = field(init=False)  # not shared with others, so closed with this frontend
    _gate: AdmissionGate = field(default_factory=AdmissionGate)
    _server: GrpcServer | None = None

    def __post_init__(self, extensions: Extensions | None) -> None:
        self._extensions = extensions or Extensions()
        self._owns_extensions = extensions is None

    async def start(self) -> int:
        """Begin to listen; return the port. Raises OptionError if the address or port cannot be used."""
        tls = None if self.tls is None else grpc_context(self.tls)
        loop = asyncio.get_running_loop()
        turns = turns_of(loop)
        budget = self._extensions.memory.budget
        application, settings = self.application(loop), self.settings or GrpcSettings()
        server = GrpcServer(application, self.limits, settings, tls, turns, self.count, budget, self.acceptor)
        port = await server.start(self.address, self.port, reuse_port=self.reuse_port)
        self._server = server
        return port

    def drain(self) -> None:
        if self._server is not None:
            self._server.drain()

    async def stop(self, grace: float) -> None:
        """Answer what was sent before, wait at most *grace* seconds for running inferences, close all connections.

        First the port is closed: a client that connects again, and a proxy that chose this server, finds another
        one at once, where a rejection would be the response. The clients are told to send no more, and what they sent
        before they knew is accepted. Then new inferences are rejected.
        """
        if self._server is None:
            return
        server, self._server = self._server, None
        deadline = asyncio.get_running_loop().time() + grace
        await server.close_listening()
        await server.wait_drained(grace)
        await self._gate.close(max(deadline - asyncio.get_running_loop().time(), 0))
        await server.stop(deadline)
        if self._owns_extensions:
            await self._extensions.background.close()

    def application(self, loop: asyncio.AbstractEventLoop) -> GrpcApplication:
        service = InferenceService(self.engine, self._gate, self._extensions)
        forward = self.access.forward
        memory = self._extensions.memory
        pool = BufferPool(memory.start)
        memory.add(pool.on_tick)
        context = ServiceContext(
            engine=self.engine,
            gate=self._gate,
            service=service,
            extensions=self._extensions,
            forwarder=HeaderForwarder(forward) if forward is not None else None,
            loop=loop,
            pool=pool,
        )
        return GrpcApplication(
            methods_of(context),
            context,
            denial=RestrictedMethods(self.access.restrictions).denial,
            refusals=self._extensions.refusals,
            log=self._extensions.log,
            log_names=_LOG_NAMES,
            settings=self.settings or GrpcSettings(),
            limits=self.limits,
        )
