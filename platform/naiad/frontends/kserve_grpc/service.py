"""The RPCs that are not streams, over the engine. Knows messages and errors; nothing of the transport."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from naiad.engine.door import EngineDoor
from naiad.errors import UnsupportedRequestError
from naiad.frontends.extensions import Extensions
from naiad.frontends.grpc.gate import Gate
from naiad.frontends.kserve_grpc import control_messages as messages
from naiad.frontends.kserve_grpc import request_codec as codec
from naiad.frontends.kserve_grpc import service_pb2 as pb
from naiad.frontends.kserve_grpc.log_settings import log_settings_changed
from naiad.frontends.kserve_grpc.patterns import MessagePatterns
from naiad.frontends.kserve_grpc.trace_settings import trace_settings_changed
from naiad.frontends.tracing.tracer import NO_HEADERS
from naiad.protocol.inference import Buffer, InferRequest, InferResponse, Sink

_NO_REPOSITORY_NAME = "'repository_name' specification is not supported"


class Inference(NamedTuple):
    """A request, and how its response becomes a message.

    Attributes:
        request: The request.
        parts: The bytes of the message of a response; raises the response's error where it is one.
    """

    request: InferRequest
    parts: Callable[[InferResponse], list[Buffer]]


class InferenceService:
    """The methods of `GRPCInferenceService`, named in snake case, and the health check.

    Every method takes a request message and returns a response message or raises `NaiadError`. Inferences alone are
    read from bytes and submitted, so that tensors need not pass through protobuf and no task waits for them.
    """

    def __init__(self, engine: EngineDoor, gate: Gate, extensions: Extensions) -> None:
        self._engine = engine
        self._extensions = extensions
        self._tracer = extensions.tracer
        self._gate = gate
        self._patterns = MessagePatterns()

    def read(self, data: bytes | bytearray) -> Inference:
        """The inference that a message of ModelInfer asks for."""
        found = self._patterns.find(data)
        if found is not None:
            self._refuse_decoupled(found.pattern.model_name, found.pattern.version)
            return Inference(found.request, found.pattern.parts)
        message = codec.parse(data)
        version = codec.parse_version(message.body.model_version)
        self._refuse_decoupled(message.body.model_name, version)
        request, _, requested = codec.decode_request(message, version, self._extensions.regions)
        if requested is not None:
            name = request.model_name
            requested.set_model(self._engine.model_metadata(name, version), self._engine.model_config(name, version))
            return Inference(request, partial(codec.response_parts, requested=requested))
        learnt = self._patterns.learn(data, message, request)
        return Inference(request, codec.response_parts if learnt is None else learnt.parts)

    def submit(self, request: InferRequest, sink: Sink, headers: Mapping[str, str] = NO_HEADERS) -> int:
        """Have a request answered, and traced if its turn has come or *headers* say so; return its ticket."""
        if self._tracer.is_on:
            return self._tracer.submit(self._engine, request, sink, "GRPC", headers)
        return self._engine.submit(request, sink)

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
        engine = self._engine
        return messages.repository_index(engine.ready_index() if request.ready else await engine.repository_index())

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
