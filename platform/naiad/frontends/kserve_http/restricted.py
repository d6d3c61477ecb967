"""Endpoints that require a header (`--http-restricted-api`)."""

from __future__ import annotations

from collections.abc import Mapping

from naiad.config.server.access import Api, Restrictions
from naiad.frontends.access import Denial, Guard
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


def guarded_endpoints(restrictions: Restrictions) -> dict[Endpoint, Guard]:
    """What each restricted endpoint requires."""
    guards = guards_of(restrictions)
    return {endpoint: guard for api, guard in guards.items() for endpoint in _ENDPOINTS[api]}


def guards_of(restrictions: Restrictions) -> dict[Api, Guard]:
    """What each restricted API requires."""
    return {api: Guard(header.lower(), value.encode()) for api, (header, value) in restrictions.items()}


def http_denial(guard: Guard | None, headers: Mapping[bytes, bytes]) -> Denial | None:
    """Why a request may not use an API with that guard; None if it may."""
    if guard is None:
        return None
    name = guard.header.encode()
    given = [headers[name]] if name in headers else []
    return guard.denial("API", given * (2 if is_repeated(headers, name) else 1))
