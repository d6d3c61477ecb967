"""The methods of the KServe service, over the engine, except streams. Nothing here knows the transport."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from naiad.core.errors import NaiadError, UnsupportedRequestError
from naiad.engine.facade import EngineFacade
from naiad.frontends.access import HeaderForwarder
from naiad.frontends.extensions import Extensions
from naiad.frontends.grpc.coroutine_method import Document
from naiad.frontends.grpc.gate import AdmissionGate
from naiad.frontends.grpc.messages import BufferPool, Message
from naiad.frontends.kserve_grpc import control_messages, long_messages, request_codec, response_codec
from naiad.frontends.kserve_grpc import service_pb2 as pb
from naiad.frontends.kserve_grpc.patterns import MessagePatterns
from naiad.frontends.kserve_grpc.request_codec import parse_version
from naiad.frontends.log_settings import document, with_changes
from naiad.frontends.offload.exchanges import Cancellable
from naiad.frontends.regions import region_document
from naiad.frontends.request_memory import RequestMemory
from naiad.frontends.requested_outputs import RequestedOutputs
from naiad.frontends.tensor_limits import NO_LIMITS, limits_of
from naiad.frontends.tracing.settings import change_trace_settings
from naiad.protocol.documents import index_document, metadata_document, server_document, statistics_document
from naiad.protocol.inference import NO_HEADERS, Buffer, InferRequest, InferResponse, Sink, SubmittedRequest

_FEW_TENSORS = 64  # tensors of a request from which their number is compared with the model's before they are read
_NO_REPOSITORY_NAME = "'repository_name' specification is not supported"


class Inference(NamedTuple):
    """A request of ModelInfer, and the encoder of its response."""

    request: InferRequest
    encode: Callable[[InferResponse], list[Buffer]]  # raises the error of a response that is one
    requested: RequestedOutputs | None = None  # outputs in another form; None without any


class InferenceService:
    """The methods of `GRPCInferenceService`, named in snake case, and the health check.

    A method takes a request message and returns a document whose members are the fields of its response, as of HTTP's
    (`protocol.documents`), or raises `NaiadError`. Inferences are the
    exception: `read` takes the bytes of a message, since tensors must not pass through protobuf, and `submit` returns
    at once, since no task waits for the response.
    """

    def __init__(self, engine: EngineFacade, gate: AdmissionGate, extensions: Extensions) -> None:
        self._engine = engine
        self._extensions = extensions
        self._tracer = extensions.tracer
        self._gate = gate
        self._patterns = MessagePatterns()

    def reserve_input(self, head: memoryview, size: int) -> memoryview | None:
        """A place for a message of *size* bytes in the memory of the model that it names, by its first bytes.

        None for messages whose tensors would have to be copied from there, and for those that will be rejected.
        """
        found = request_codec.find_raw_input(head, size)
        if found is None:
            return None
        name, version, start = found
        try:
            self._gate.check_open()
            return self._engine.reserve_input(name, version, size, start)
        except NaiadError:
            return None  # reported once the message is complete

    def read(self, data: Message) -> Inference:
        """The inference that a message requests; NaiadError if it is malformed, or its model unknown or decoupled."""
        match = self._patterns.match(data)
        if match is not None:
            self._reject_decoupled(match.pattern.model_name, match.pattern.version)
            return Inference(match.request, match.pattern.encode_response)
        return self._decode(data, request_codec.parse(data))

    def read_long(
        self,
        data: Message,
        on_read: Callable[[Inference], None],
        on_failed: Callable[[Exception], None],  # called with the error of work that was done later
    ) -> Cancellable | None:
        """As `read`, for any length: calls *on_read* at once, or later and returns what cancels the work."""
        match = self._patterns.match(data)
        if match is not None:
            self._reject_decoupled(match.pattern.model_name, match.pattern.version)
            on_read(Inference(match.request, match.pattern.encode_response))
            return None
        message = request_codec.parse_short(data)
        if isinstance(message, request_codec.InferMessage):
            on_read(self._decode(data, message))
            return None
        version = parse_version(message.body.model_version)
        self._reject_decoupled(message.body.model_name, version)
        return long_messages.start_reading(
            message,
            version,
            self._engine,
            self._extensions,
            partial(self._on_long_read, on_read, on_failed),
            on_failed,
        )

    def _decode(self, data: Message, message: request_codec.InferMessage) -> Inference:
        body = message.body
        version = parse_version(body.model_version)
        self._reject_decoupled(body.model_name, version)
        limits = NO_LIMITS
        if len(body.inputs) > _FEW_TENSORS or len(body.outputs) > _FEW_TENSORS:
            limits = limits_of(self._engine.model_metadata(body.model_name, version))
        request, _, requested = request_codec.decode_request(message, version, self._extensions.regions, limits)
        if requested is not None:
            return self._inference(request, requested)
        pattern = self._patterns.add(data, message, request)
        return Inference(request, response_codec.encode_response if pattern is None else pattern.encode_response)

    def _on_long_read(
        self,
        on_read: Callable[[Inference], None],
        on_failed: Callable[[Exception], None],
        read: long_messages.LongMessage,
    ) -> None:
        try:
            inference = self._inference(read.request, read.requested)
        except Exception as error:  # noqa: BLE001 - the model was unloaded meanwhile; any error becomes the call's status
            on_failed(error)
        else:
            on_read(inference)

    def _inference(self, request: InferRequest, requested: RequestedOutputs | None) -> Inference:
        if requested is None:
            return Inference(request, response_codec.encode_response)
        name, version = request.model_name, request.model_version
        requested.prepare(request, self._engine.model_metadata(name, version), self._engine.model_config(name, version))
        return Inference(request, partial(response_codec.encode_response, requested=requested), requested)

    def submit(self, request: InferRequest, sink: Sink, headers: Mapping[str, str] = NO_HEADERS) -> SubmittedRequest:
        """Submit a request, traced where the trace rate or *headers* select it."""
        request.propagated = headers
        if self._tracer.is_on:
            return self._tracer.submit(self._engine, request, sink, "GRPC", headers)
        return self._engine.submit(request, sink)

    def _reject_decoupled(self, name: str, version: int) -> None:
        if self._engine.is_decoupled(name, version):
            raise UnsupportedRequestError("ModelInfer RPC doesn't support models with decoupled transaction policy")

    async def check(self, _: pb.HealthCheckRequest) -> Document:
        """The standard health check. Any service name is accepted, as in the reference."""
        return {"status": "SERVING" if await self._engine.check_server_ready() else "NOT_SERVING"}

    async def server_live(self, _: pb.ServerLiveRequest) -> Document:
        return {"live": self._engine.is_live()}

    async def server_ready(self, _: pb.ServerReadyRequest) -> Document:
        return {"ready": await self._engine.check_server_ready()}

    async def model_ready(self, request: pb.ModelReadyRequest) -> Document:
        """Whether a model is ready. An unknown model is an error; a known one that is not ready is not."""
        return {"ready": await self._engine.check_ready(request.name, parse_version(request.version))}

    async def server_metadata(self, _: pb.ServerMetadataRequest) -> Document:
        return server_document(self._engine.server_metadata())

    async def model_metadata(self, request: pb.ModelMetadataRequest) -> Document:
        return metadata_document(self._engine.model_metadata(request.name, parse_version(request.version)))

    async def model_config(self, request: pb.ModelConfigRequest) -> Document:
        return {"config": dict(self._engine.model_config(request.name, parse_version(request.version)))}

    async def model_statistics(self, request: pb.ModelStatisticsRequest) -> Document:
        version = parse_version(request.version)
        await self._engine.gather_counts()
        return statistics_document(self._engine.statistics(request.name, version))

    async def repository_index(self, request: pb.RepositoryIndexRequest) -> Document:
        _reject_repository(request.repository_name)
        engine = self._engine
        return {"models": index_document(engine.ready_index() if request.ready else await engine.repository_index())}

    async def repository_model_load(self, request: pb.RepositoryModelLoadRequest) -> Document:
        _reject_repository(request.repository_name)
        await self._engine.load(request.model_name, control_messages.load_parameters(request))
        return {}

    async def load_long(self, message: bytes) -> Document:
        """As `repository_model_load`, for a message with long files."""
        repository, model, parameters = await self._extensions.background.run(long_messages.read_load, [message])
        _reject_repository(repository)
        await self._engine.load(model, parameters)
        return {}

    async def repository_model_unload(self, request: pb.RepositoryModelUnloadRequest) -> Document:
        """Begin to unload a model; the call does not wait for its end."""
        _reject_repository(request.repository_name)
        dependents = control_messages.unload_dependents(request)
        await self._engine.unload(request.model_name, unload_dependents=dependents)
        return {}

    async def system_shared_memory_status(self, request: pb.SystemSharedMemoryStatusRequest) -> Document:
        found = self._extensions.regions.status(request.name)
        return {"regions": {region.name: region_document(region) for region in found}}

    async def system_shared_memory_register(self, request: pb.SystemSharedMemoryRegisterRequest) -> Document:
        await self._extensions.regions.register(request.name, request.key, request.offset, request.byte_size)
        return {}

    async def system_shared_memory_unregister(self, request: pb.SystemSharedMemoryUnregisterRequest) -> Document:
        """Unregister a region, or all. Success for an unknown one, as in the reference."""
        await self._extensions.regions.unregister(request.name)
        return {}

    async def cuda_shared_memory_status(self, request: pb.CudaSharedMemoryStatusRequest) -> Document:
        found = self._extensions.regions.cuda_status(request.name)
        return {"regions": {region.name: region_document(region) for region in found}}

    async def cuda_shared_memory_register(self, request: pb.CudaSharedMemoryRegisterRequest) -> Document:
        regions = self._extensions.regions
        await regions.register_cuda(request.name, request.raw_handle, request.device_id, request.byte_size)
        return {}

    async def cuda_shared_memory_unregister(self, request: pb.CudaSharedMemoryUnregisterRequest) -> Document:
        """As `system_shared_memory_unregister`."""
        await self._extensions.regions.unregister(request.name, is_cuda=True)
        return {}

    async def trace_setting(self, request: pb.TraceSettingRequest) -> Document:
        given = {name: list(setting.value) for name, setting in request.settings.items()}
        tracer = self._extensions.tracer
        found = await change_trace_settings(tracer, self._engine, request.model_name, given)
        return {
            "settings": {name: {"value": [each] if isinstance(each, str) else each} for name, each in found.items()}
        }

    async def log_settings(self, request: pb.LogSettingsRequest) -> Document:
        log = self._extensions.log
        changes = control_messages.read_log_settings(request)
        if changes:
            await log.change(with_changes(log.settings, changes))
        found = document(log.settings)
        return {"settings": {name: {control_messages.LOG_CHOICES[type(value)]: value} for name, value in found.items()}}


def _reject_repository(name: str) -> None:
    if name:
        raise UnsupportedRequestError(_NO_REPOSITORY_NAME)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceContext:
    """What all calls of a frontend share. Implements `CallContext` of the transport."""

    engine: EngineFacade
    gate: AdmissionGate
    service: InferenceService
    extensions: Extensions
    forwarder: HeaderForwarder | None
    loop: asyncio.AbstractEventLoop
    pool: BufferPool = field(default_factory=BufferPool)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def memory(self) -> RequestMemory:
        return self.extensions.memory
