"""The endpoints of clients' shared memory (SRV docs/protocol/extension_shared_memory.md, src/http_server.cc)."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any

from naiad.core.errors import InvalidRequestError, MalformedRequestError
from naiad.frontends.http1.messages import HttpRequest, json_response, response
from naiad.frontends.kserve_http.json_document import parse_json
from naiad.frontends.kserve_http.json_members import as_string, as_unsigned
from naiad.frontends.kserve_http.routes import Endpoint, Route
from naiad.frontends.regions import CUDA_HANDLE_BYTES, RegionRegistry, region_document
from naiad.protocol.inference import Buffer


async def shared_memory_response(request: HttpRequest, route: Route, regions: RegionRegistry) -> Sequence[Buffer]:
    """Register, list or unregister regions, as the path says."""
    is_system = route.endpoint is Endpoint.SYSTEM_SHARED_MEMORY
    if route.action == "status":
        found = regions.status(route.name) if is_system else regions.cuda_status(route.name)
        return json_response([region_document(region) for region in found])
    if route.action == "unregister":
        await regions.unregister(route.name, is_cuda=not is_system)
    elif is_system:
        await _register(route.name, request.body, regions)
    else:
        await _register_cuda(route.name, request.body, regions)
    return response(200, [])


async def _register(name: str, body: Buffer, regions: RegionRegistry) -> None:
    regions.check_allowed()
    document = parse_json(body)
    for member in ("key", "byte_size"):
        _require(document, member)
    key = as_string(document["key"], "")
    offset = as_unsigned(document.get("offset", 0), "")
    await regions.register(name, key, offset, as_unsigned(document["byte_size"], ""))


async def _register_cuda(name: str, body: Buffer, regions: RegionRegistry) -> None:
    regions.check_allowed()
    document = parse_json(body)
    _require(document, "raw_handle")
    handle = as_string(_member(document["raw_handle"], "b64"), "")
    byte_size, device_id = (as_unsigned(_member(document, member), "") for member in ("byte_size", "device_id"))
    try:
        raw = base64.b64decode(handle, validate=True)
    except (binascii.Error, ValueError):
        raw = b""
    if len(raw) != CUDA_HANDLE_BYTES:
        raise InvalidRequestError("'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t")
    await regions.register_cuda(name, raw, device_id, byte_size)


def _require(document: Mapping[str, Any], member: str) -> None:
    if member not in document:
        raise InvalidRequestError(f"Shared memory register request has no '{member}' field")


def _member(value: object, member: str) -> object:
    if not isinstance(value, dict) or member not in value:
        raise MalformedRequestError(f"attempt to access non-existing object member '{member}'")
    return value[member]
