"""The methods of the services: by path, what handles their calls, and which restricted API each belongs to."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial

from naiad.config.server.access import Api, Restrictions
from naiad.frontends.access import has_value
from naiad.frontends.grpc.calls import CoroutineCall
from naiad.frontends.grpc.server import GrpcMethod
from naiad.frontends.kserve_grpc import service_pb2 as pb
from naiad.frontends.kserve_grpc.infer_call import InferCall
from naiad.frontends.kserve_grpc.service import InferenceService
from naiad.frontends.kserve_grpc.stream_call import StreamCall

_WIRE_NAMES = {"GRPCInferenceService": "inference.GRPCInferenceService", "Health": "grpc.health.v1.Health"}
"""Names of the services in paths, by their names in service.proto."""

_HEADER_PREFIX = "triton-grpc-protocol-"
RESTRICTED_APIS = {
    "ServerLive": Api.HEALTH,
    "ServerReady": Api.HEALTH,
    "ModelReady": Api.HEALTH,
    "Check": Api.HEALTH,
    "ServerMetadata": Api.METADATA,
    "ModelMetadata": Api.METADATA,
    "ModelInfer": Api.INFERENCE,
    "ModelStreamInfer": Api.INFERENCE,
    "SystemSharedMemoryStatus": Api.SHARED_MEMORY,
    "SystemSharedMemoryRegister": Api.SHARED_MEMORY,
    "SystemSharedMemoryUnregister": Api.SHARED_MEMORY,
    "CudaSharedMemoryStatus": Api.SHARED_MEMORY,
    "CudaSharedMemoryRegister": Api.SHARED_MEMORY,
    "CudaSharedMemoryUnregister": Api.SHARED_MEMORY,
    "ModelConfig": Api.MODEL_CONFIG,
    "RepositoryIndex": Api.MODEL_REPOSITORY,
    "RepositoryModelLoad": Api.MODEL_REPOSITORY,
    "RepositoryModelUnload": Api.MODEL_REPOSITORY,
    "ModelStatistics": Api.STATISTICS,
    "TraceSetting": Api.TRACE,
    "LogSettings": Api.LOGGING,
}
"""The API that restricts a method (`--grpc-restricted-protocol`)."""


def methods_of(service: InferenceService) -> dict[bytes, GrpcMethod]:
    """All methods by their paths."""
    return {
        f"/{wire_name}/{method.name}".encode(): _method(service, method.name, method.input_type.name)
        for name, wire_name in _WIRE_NAMES.items()
        for method in pb.DESCRIPTOR.services_by_name[name].methods
    }


def _method(service: InferenceService, name: str, request_type: str) -> GrpcMethod:
    if name == "ModelInfer":
        return GrpcMethod(name, InferCall)
    if name == "ModelStreamInfer":
        return GrpcMethod(name, StreamCall)
    function = getattr(service, re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower())  # ServerLive: server_live
    return GrpcMethod(name, partial(CoroutineCall, request_type=getattr(pb, request_type), function=function))


class RestrictedMethods:
    """The methods that need a header."""

    def __init__(self, restrictions: Restrictions) -> None:
        self._required = {
            method: ((_HEADER_PREFIX + required[0]).lower(), required[1].encode())
            for method, api in RESTRICTED_APIS.items()
            if (required := restrictions.get(api)) is not None
        }

    def denial(self, method: GrpcMethod, metadata: Mapping[str, str]) -> str:
        """Why a method may not be called with some metadata; empty where it may. Text: SRV src/grpc/."""
        required = self._required.get(method.name)
        if required is None or has_value(metadata.get(required[0]), required[1]):
            return ""
        return f"This protocol is restricted, expecting header '{required[0]}'"
