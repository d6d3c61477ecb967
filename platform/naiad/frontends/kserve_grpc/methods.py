"""The methods of the services: by path, what handles their calls, and which restricted API each belongs to."""

from __future__ import annotations

import re
from functools import partial

from google.protobuf.descriptor import MethodDescriptor

from naiad.config.server.access import Api, Restrictions
from naiad.frontends.access import Denial, Guard
from naiad.frontends.grpc.call_head import Metadata
from naiad.frontends.grpc.calls import GrpcMethod
from naiad.frontends.grpc.coroutine_method import CoroutineMethod
from naiad.frontends.kserve_grpc import service_pb2 as pb
from naiad.frontends.kserve_grpc.model_infer import ModelInfer
from naiad.frontends.kserve_grpc.model_stream_infer import ModelStreamInfer
from naiad.frontends.kserve_grpc.service import ServiceContext

_WIRE_NAMES = {"GRPCInferenceService": "inference.GRPCInferenceService", "Health": "grpc.health.v1.Health"}
"""Names of the services in paths, by their names in service.proto."""

_MAX_CONTROL_MESSAGE = 128 << 10  # bytes of a message of any method but inference
_HEADER_PREFIX = "triton-grpc-protocol-"
_SHARED_MEMORY = [
    f"{kind}SharedMemory{action}" for kind in ("System", "Cuda") for action in ("Status", "Register", "Unregister")
]
RESTRICTED_METHODS = {
    Api.HEALTH: ("ServerLive", "ServerReady", "ModelReady", "Check"),
    Api.METADATA: ("ServerMetadata", "ModelMetadata"),
    Api.INFERENCE: ("ModelInfer", "ModelStreamInfer"),
    Api.SHARED_MEMORY: _SHARED_MEMORY,
    Api.MODEL_CONFIG: ("ModelConfig",),
    Api.MODEL_REPOSITORY: ("RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload"),
    Api.STATISTICS: ("ModelStatistics",),
    Api.TRACE: ("TraceSetting",),
    Api.LOGGING: ("LogSettings",),
}  # the methods that an API restricts (`--grpc-restricted-protocol`)


def methods_of(context: ServiceContext) -> dict[bytes, GrpcMethod]:
    """All methods by their paths."""
    return {
        f"/{wire_name}/{method.name}".encode(): _method(context, method)
        for name, wire_name in _WIRE_NAMES.items()
        for method in pb.DESCRIPTOR.services_by_name[name].methods
    }


def _method(context: ServiceContext, described: MethodDescriptor) -> GrpcMethod:
    name = described.name
    if name == "ModelInfer":
        return GrpcMethod(name, begin_unary=partial(ModelInfer, context), reserve=context.service.reserve_input)
    if name == "ModelStreamInfer":
        return GrpcMethod(
            name, begin_streaming=partial(ModelStreamInfer, context), reserve=context.service.reserve_input
        )
    service = context.service
    method = CoroutineMethod(
        request_type=getattr(pb, described.input_type.name),
        response_type=getattr(pb, described.output_type.name),
        function=getattr(service, re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()),  # ServerLive: server_live
        max_size=_MAX_CONTROL_MESSAGE,
        # A load may contain the model's files.
        long_function=service.load_long if name == "RepositoryModelLoad" else None,
        loop=context.loop,
        tasks=context.tasks,
    )
    return GrpcMethod(name, begin_unary=method.begin)


class RestrictedMethods:
    """The methods that need a header."""

    def __init__(self, restrictions: Restrictions) -> None:
        self._guards = {
            method: Guard((_HEADER_PREFIX + header).lower(), value.encode())
            for api, (header, value) in restrictions.items()
            for method in RESTRICTED_METHODS[api]
        }

    def denial(self, method: GrpcMethod, metadata: Metadata) -> Denial | None:
        """Why a method may not be called with some metadata; None where it may."""
        guard = self._guards.get(method.name)
        if guard is None:
            return None
        return guard.denial("protocol", [value for name, value in metadata if name == guard.header])
