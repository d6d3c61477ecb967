"""The HTTP and gRPC status of each error code. No other module knows both."""

from __future__ import annotations

import enum

from naiad.core.errors import Code

# SRV src/http_server.cc `HttpCodeFromError`.
HTTP_STATUS: dict[Code, int] = {
    Code.INTERNAL: 500,
    Code.NOT_FOUND: 404,
    Code.UNAVAILABLE: 503,
    Code.UNSUPPORTED: 501,
    Code.UNKNOWN: 400,
    Code.INVALID_ARG: 400,
    Code.ALREADY_EXISTS: 400,
    Code.CANCELLED: 400,
}


class GrpcStatus(enum.IntEnum):
    """Status codes of gRPC with their numbers on the wire."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


# SRV src/grpc/grpc_utils.cc.
GRPC_STATUS: dict[Code, GrpcStatus] = {
    Code.UNKNOWN: GrpcStatus.UNKNOWN,
    Code.INTERNAL: GrpcStatus.INTERNAL,
    Code.NOT_FOUND: GrpcStatus.NOT_FOUND,
    Code.INVALID_ARG: GrpcStatus.INVALID_ARGUMENT,
    Code.UNAVAILABLE: GrpcStatus.UNAVAILABLE,
    Code.UNSUPPORTED: GrpcStatus.UNIMPLEMENTED,
    Code.ALREADY_EXISTS: GrpcStatus.ALREADY_EXISTS,
    Code.CANCELLED: GrpcStatus.CANCELLED,
}
