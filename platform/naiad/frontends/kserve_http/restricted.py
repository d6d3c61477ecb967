"""Endpoints that require a header (`--http-restricted-api`)."""

from __future__ import annotations

from collections.abc import Mapping

from naiad.config.server.access import Api, Restrictions
from naiad.frontends.access import has_value
from naiad.frontends.kserve_http.routes import Endpoint

_API = {
    Endpoint.LIVE: Api.HEALTH,
    Endpoint.READY: Api.HEALTH,
    Endpoint.MODEL_READY: Api.HEALTH,
    Endpoint.SERVER_METADATA: Api.METADATA,
    Endpoint.MODEL_METADATA: Api.METADATA,
    Endpoint.INFER: Api.INFERENCE,
    Endpoint.GENERATE: Api.INFERENCE,
    Endpoint.GENERATE_STREAM: Api.INFERENCE,
    Endpoint.SYSTEM_SHARED_MEMORY: Api.SHARED_MEMORY,
    Endpoint.CUDA_SHARED_MEMORY: Api.SHARED_MEMORY,
    Endpoint.MODEL_CONFIG: Api.MODEL_CONFIG,
    Endpoint.INDEX: Api.MODEL_REPOSITORY,
    Endpoint.LOAD: Api.MODEL_REPOSITORY,
    Endpoint.UNLOAD: Api.MODEL_REPOSITORY,
    Endpoint.NAMED_REPOSITORY: Api.MODEL_REPOSITORY,
    Endpoint.MODEL_STATS: Api.STATISTICS,
    Endpoint.TRACE: Api.TRACE,
    Endpoint.MODEL_TRACE: Api.TRACE,
    Endpoint.LOGGING: Api.LOGGING,
}

Guarded = dict[Endpoint, tuple[bytes, bytes]]


def guarded_endpoints(restrictions: Restrictions) -> Guarded:
    """The header, in lower case, and the value that each restricted endpoint requires."""
    return {
        endpoint: (header.lower().encode(), value.encode())
        for endpoint in Endpoint
        for header, value in [restrictions.get(_API[endpoint], ("", ""))]
        if header
    }


def missing_header(guarded: Guarded, endpoint: Endpoint, headers: Mapping[bytes, bytes]) -> str:
    """The required header that a request lacks or has with another value; empty if the request is allowed."""
    required = guarded.get(endpoint)
    if required is None or has_value(headers.get(required[0]), required[1]):
        return ""
    return required[0].decode()
