"""Methods that need a header."""

from __future__ import annotations

from collections.abc import Mapping

from naiad.config.server.access import Api, Restrictions
from naiad.frontends.access import is_same

_PREFIX = "triton-grpc-protocol-"
_API = {
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


class Guard:
    """Knows which methods need which header."""

    def __init__(self, restrictions: Restrictions) -> None:
        self._needed = {
            method: ((_PREFIX + needed[0]).lower(), needed[1].encode())
            for method, api in _API.items()
            if (needed := restrictions.get(api)) is not None
        }

    def why_not(self, method: str, metadata: Mapping[str, str]) -> str:
        """Why a method may not be called with some metadata; empty where it may."""
        needed = self._needed.get(method)
        if needed is None or is_same(metadata.get(needed[0]), needed[1]):
            return ""
        return f"This protocol is restricted, expecting header '{needed[0]}'"
