"""Endpoints that require a header (`--http-restricted-api`)."""

from __future__ import annotations

from collections.abc import Mapping

from naiad.config.server.access import Api, Restrictions
from naiad.frontends.access import restriction_denial
from naiad.frontends.http1.heads import is_repeated
from naiad.frontends.kserve_http.routes import Endpoint

_ENDPOINTS = {
    Api.HEALTH: (Endpoint.LIVE, Endpoint.READY, Endpoint.MODEL_READY),
    Api.METADATA: (Endpoint.SERVER_METADATA, Endpoint.MODEL_METADATA),
    Api.INFERENCE: (Endpoint.INFER, Endpoint.GENERATE, Endpoint.GENERATE_STREAM),
    Api.SHARED_MEMORY: (Endpoint.SYSTEM_SHARED_MEMORY, Endpoint.CUDA_SHARED_MEMORY),
    Api.MODEL_CONFIG: (Endpoint.MODEL_CONFIG,),
    Api.MODEL_REPOSITORY: (Endpoint.INDEX, Endpoint.LOAD, Endpoint.UNLOAD, Endpoint.NAMED_REPOSITORY),
    Api.STATISTICS: (Endpoint.MODEL_STATS,),
    Api.TRACE: (Endpoint.TRACE, Endpoint.MODEL_TRACE),
    Api.LOGGING: (Endpoint.LOGGING,),
}

Guarded = dict[Endpoint, tuple[bytes, bytes]]


def guarded_endpoints(restrictions: Restrictions) -> Guarded:
    """The header, in lower case, and the value that each restricted endpoint requires."""
    return {
        endpoint: (header.lower().encode(), value.encode())
        for api, (header, value) in restrictions.items()
        for endpoint in _ENDPOINTS[api]
    }


def denial(guarded: Guarded, endpoint: Endpoint, headers: Mapping[bytes, bytes]) -> str:
    """Why a request may not use an endpoint; empty if it may."""
    required = guarded.get(endpoint)
    return "" if required is None else api_denial(headers, *required)


def api_denial(headers: Mapping[bytes, bytes], header: bytes, value: bytes) -> str:
    """Why a request may not use an API that requires *header* with *value*; empty if it may."""
    given = [headers[header]] if header in headers else []
    return restriction_denial("API", header.decode(), given * (2 if is_repeated(headers, header) else 1), value)
