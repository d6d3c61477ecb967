"""The endpoints of clients' shared memory (SRV docs/protocol/extension_shared_memory.md, src/http_server.cc)."""

from __future__ import annotations

from collections.abc import Sequence

from naiad.errors import InvalidRequestError
from naiad.frontends.http1.messages import HttpRequest, json_response, response
from naiad.frontends.kserve_http.infer_request import parse_json
from naiad.frontends.kserve_http.json_members import as_string, as_unsigned
from naiad.frontends.kserve_http.routes import Endpoint, Route
from naiad.frontends.regions import RegionRegistry
from naiad.protocol.inference import Buffer


def shared_memory_response(request: HttpRequest, route: Route, regions: RegionRegistry) -> Sequence[Buffer]:
    """Register, list or unregister regions, as the path says.

    Raises:
        NaiadError: If the request is invalid, or clients may not use shared memory.
    """
    is_system = route.endpoint is Endpoint.SYSTEM_SHARED_MEMORY
    if route.action == "status":
        return json_response(_status(route.name, regions, is_system=is_system))
    if route.action == "unregister":
        if is_system:
            regions.unregister(route.name)
    elif is_system:
        _register(route.name, request.body, regions)
    else:
        regions.register_cuda(route.name)
    return response(200, [])


def _status(name: str, regions: RegionRegistry, *, is_system: bool) -> list[dict[str, str | int]]:
    if not is_system:
        regions.check_cuda_status(name)
        return []
    return [
        {"name": region.name, "key": region.key, "offset": region.offset, "byte_size": region.byte_size}
        for region in regions.status(name)
    ]


def _register(name: str, body: Buffer, regions: RegionRegistry) -> None:
    regions.check_allowed()
    document = parse_json(body)
    for member in ("key", "byte_size"):
        if member not in document:
            raise InvalidRequestError(f"Shared memory register request has no '{member}' field")
    key = as_string(document["key"], "")
    offset = as_unsigned(document.get("offset", 0), "")
    regions.register(name, key, offset, as_unsigned(document["byte_size"], ""))
