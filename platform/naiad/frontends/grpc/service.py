"""The RPCs that are not streams, over the engine. Knows messages and errors; nothing of the transport."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from naiad.engine.door import EngineDoor
from naiad.errors import Code, NaiadError, UnsupportedRequestError
from naiad.frontends.extensions import Extensions
from naiad.frontends.grpc import codec, messages
from naiad.frontends.grpc import service_pb2 as pb
from naiad.frontends.grpc.gate import Gate
from naiad.frontends.grpc.log_settings import log_settings_changed
from naiad.frontends.grpc.patterns import MessagePattern, MessagePatterns
from naiad.frontends.grpc.trace_settings import trace_settings_changed
from naiad.frontends.tracing import NO_HEADERS
from naiad.frontends.wishes import OutputWishes
from naiad.protocol.inference import InferRequest, InferResponse

_NO_REPOSITORY_NAME = "'repository_name' specification is not supported"


class SingleResponse:
    """The sink of a request with exactly one response; costs a future only where the answer is not there at once."""

    __slots__ = ("_count", "_ended", "_future", "_response")

    def __init__(self) -> None:
        self._response: InferResponse | None = None
        self._count = 0
        self._ended = False
        self._future: asyncio.Future[None] | None = None

    def send(self, response: InferResponse | None, final: bool) -> None:  # noqa: FBT001 - the signature of `Sink`
        """Take a response or the end."""
        if response is not None:
            self._response = response
            self._count += 1
        if final:
            self._ended = True
            if self._future is not None and not self._future.done():
                self._future.set_result(None)

    async def wait(self) -> InferResponse:
        """The response, once the request has ended."""
        if not self._ended:
            self._future = asyncio.get_running_loop().create_future()
            await self._future
        if self._response is None:
            raise NaiadError("received an unexpected null response", code=Code.INTERNAL)
        if self._count != 1:
            raise NaiadError(f"expected a single response, got {self._count}", code=Code.INTERNAL)
        return self._response


class InferenceService:
    """The methods of `GRPCInferenceService`, named in snake case, and the health check.

    Every method takes a request message and returns a response message or raises `NaiadError`. `infer` alone takes and
    returns bytes, so that tensors need not pass through protobuf.
    """

    def __init__(self, engine: EngineDoor, gate: Gate, extensions: Extensions) -> None:
        self._engine = engine
        self._extensions = extensions
        self._tracer = extensions.tracer
        self._gate = gate
        self._patterns = MessagePatterns()

    async def infer(
        self,
        data: bytes,
        prepare: Callable[[InferRequest], None] | None = None,
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> bytes:
        """ModelInfer; cancelling the coroutine takes the request back.

        Args:
            data: The message.
            prepare: Called with the request before the engine gets it.
            headers: Those that say to which trace it belongs; looked at where requests are traced.
        """
        self._gate.check()
        request, wishes, pattern = self._read(data)
        if prepare is not None:
            prepare(request)
        sink = SingleResponse()
        self._gate.enter()
        try:
            if self._tracer.is_on:
                ticket = self._tracer.submit(self._engine, request, sink, "GRPC", headers)
            else:
                ticket = self._engine.submit(request, sink)
            try:
                response = await sink.wait()
            except asyncio.CancelledError:
                self._engine.cancel(ticket)
                raise
            return codec.encode_response(response, wishes) if pattern is None else pattern.encode(response)
        finally:
            self._gate.leave()

    def _read(self, data: bytes) -> tuple[InferRequest, OutputWishes | None, MessagePattern | None]:
        """The request that a message is, wishes for its outputs, and what it has in common with others."""
        pattern = self._patterns.find(data)
        if pattern is not None:
            self._refuse_decoupled(pattern.model_name, pattern.version)
            return pattern.request(data), None, pattern
        message = codec.parse(data)
        version = codec.parse_version(message.body.model_version)
        self._refuse_decoupled(message.body.model_name, version)
        request, _, wishes = codec.decode_request(message, version, self._extensions.regions)
        if wishes is not None:
            name = request.model_name
            wishes.know_model(self._engine.model_metadata(name, version), self._engine.model_config(name, version))
            return request, wishes, None
        return request, None, self._patterns.learn(data, message, request)

    def _refuse_decoupled(self, name: str, version: int) -> None:
        if self._engine.is_decoupled(name, version):
            raise UnsupportedRequestError("ModelInfer RPC doesn't support models with decoupled transaction policy")

    async def check(self, request: pb.HealthCheckRequest) -> pb.HealthCheckResponse:  # noqa: ARG002
        """The standard health check: any service name, because the server is one."""
        is_ready = await self._engine.check_server_ready()
        status = pb.HealthCheckResponse.SERVING if is_ready else pb.HealthCheckResponse.NOT_SERVING
        return pb.HealthCheckResponse(status=status)

    async def server_live(self, request: pb.ServerLiveRequest) -> pb.ServerLiveResponse:  # noqa: ARG002
        """Whether the server runs."""
        return pb.ServerLiveResponse(live=self._engine.is_live())

    async def server_ready(self, request: pb.ServerReadyRequest) -> pb.ServerReadyResponse:  # noqa: ARG002
        """Whether the server and its models take requests."""
        return pb.ServerReadyResponse(ready=await self._engine.check_server_ready())

    async def model_ready(self, request: pb.ModelReadyRequest) -> pb.ModelReadyResponse:
        """Whether a model takes requests; a known model that does not is no error."""
        version = codec.parse_version(request.version)
        return pb.ModelReadyResponse(ready=await self._engine.check_ready(request.name, version))

    async def server_metadata(self, request: pb.ServerMetadataRequest) -> pb.ServerMetadataResponse:  # noqa: ARG002
        """Name, version and extensions."""
        return messages.server_metadata(self._engine.server_metadata())

    async def model_metadata(self, request: pb.ModelMetadataRequest) -> pb.ModelMetadataResponse:
        """What a model takes and gives."""
        version = codec.parse_version(request.version)
        return messages.model_metadata(self._engine.model_metadata(request.name, version))

    async def model_config(self, request: pb.ModelConfigRequest) -> pb.ModelConfigResponse:
        """A model's effective configuration."""
        version = codec.parse_version(request.version)
        return messages.model_config(self._engine.model_config(request.name, version))

    async def model_statistics(self, request: pb.ModelStatisticsRequest) -> pb.ModelStatisticsResponse:
        """Statistics of one version, of all versions of a model, or of all models."""
        version = codec.parse_version(request.version)
        return messages.model_statistics(self._engine.statistics(request.name, version))

    async def repository_index(self, request: pb.RepositoryIndexRequest) -> pb.RepositoryIndexResponse:
        """All models of the repositories."""
        _refuse_repository(request.repository_name)
        return messages.repository_index(self._engine.repository_index(ready_only=request.ready))

    async def repository_model_load(self, request: pb.RepositoryModelLoadRequest) -> pb.RepositoryModelLoadResponse:
        """Load or reload a model."""
        _refuse_repository(request.repository_name)
        await self._engine.load(request.model_name, messages.load_parameters(request))
        return pb.RepositoryModelLoadResponse()

    async def repository_model_unload(
        self, request: pb.RepositoryModelUnloadRequest
    ) -> pb.RepositoryModelUnloadResponse:
        """Begin to unload a model."""
        _refuse_repository(request.repository_name)
        dependents = messages.unload_dependents(request)
        await self._engine.unload(request.model_name, unload_dependents=dependents)
        return pb.RepositoryModelUnloadResponse()

    async def system_shared_memory_status(
        self, request: pb.SystemSharedMemoryStatusRequest
    ) -> pb.SystemSharedMemoryStatusResponse:
        """Clients' regions, or one of them."""
        return messages.regions(self._extensions.regions.status(request.name))

    async def system_shared_memory_register(
        self, request: pb.SystemSharedMemoryRegisterRequest
    ) -> pb.SystemSharedMemoryRegisterResponse:
        """Register a region."""
        self._extensions.regions.register(request.name, request.key, request.offset, request.byte_size)
        return pb.SystemSharedMemoryRegisterResponse()

    async def system_shared_memory_unregister(
        self, request: pb.SystemSharedMemoryUnregisterRequest
    ) -> pb.SystemSharedMemoryUnregisterResponse:
        """Forget a region, or all; an unknown one is a success, as in the reference."""
        self._extensions.regions.unregister(request.name)
        return pb.SystemSharedMemoryUnregisterResponse()

    async def cuda_shared_memory_status(
        self, request: pb.CudaSharedMemoryStatusRequest
    ) -> pb.CudaSharedMemoryStatusResponse:
        """No such region is ever registered, so any name is unknown."""
        self._extensions.regions.check_cuda_status(request.name)
        return pb.CudaSharedMemoryStatusResponse()

    async def cuda_shared_memory_register(
        self, request: pb.CudaSharedMemoryRegisterRequest
    ) -> pb.CudaSharedMemoryRegisterResponse:
        """Refused."""
        self._extensions.regions.register_cuda(request.name)
        return pb.CudaSharedMemoryRegisterResponse()

    async def cuda_shared_memory_unregister(
        self,
        request: pb.CudaSharedMemoryUnregisterRequest,  # noqa: ARG002
    ) -> pb.CudaSharedMemoryUnregisterResponse:
        """Unregistering an unknown region is a success, as in the reference."""
        return pb.CudaSharedMemoryUnregisterResponse()

    async def trace_setting(self, request: pb.TraceSettingRequest) -> pb.TraceSettingResponse:
        """Change settings of traces, and tell them all."""
        return trace_settings_changed(request, self._engine, self._extensions.tracer)

    async def log_settings(self, request: pb.LogSettingsRequest) -> pb.LogSettingsResponse:
        """Change settings of the log, and tell them all."""
        return log_settings_changed(request, self._extensions.log)


def _refuse_repository(name: str) -> None:
    if name:
        raise UnsupportedRequestError(_NO_REPOSITORY_NAME)
