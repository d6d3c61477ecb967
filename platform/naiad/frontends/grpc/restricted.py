"""Methods that need a header: their handlers, behind a look at the metadata."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

from naiad.config.restrictions import Api, Restrictions
from naiad.errors import NaiadError, NotReadyError
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

Handler = Callable[[Any, Any], Awaitable[Any]]


def guarded(
    method: str, handler: Handler, restrictions: Restrictions, abort: Callable[[Any, NaiadError], Awaitable[NoReturn]]
) -> Handler:
    """The handler of a method, which refuses calls without the header that the method needs, if it needs one.

    Args:
        method: The method.
        handler: What answers its calls.
        restrictions: Headers that parts of the protocol need.
        abort: Ends a call with an error.
    """
    needed = restrictions.get(_API[method])
    if needed is None:
        return handler
    key, value = (_PREFIX + needed[0]).lower(), needed[1].encode()

    async def handle(request: Any, context: Any) -> Any:
        metadata = dict(context.invocation_metadata() or ())
        if not is_same(metadata.get(key), value):
            await abort(context, NotReadyError(f"This protocol is restricted, expecting header '{key}'"))
        return await handler(request, context)

    return handle
