"""The endpoint of each path. Paths match as a whole (SRV src/http_server.cc); names in them are percent-decoded."""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import NamedTuple
from urllib.parse import unquote

from naiad.protocol.model_names import LATEST


class Endpoint(Enum):
    """The endpoints of the HTTP frontend."""

    SERVER_METADATA = auto()
    LIVE = auto()
    READY = auto()
    MODEL_METADATA = auto()
    MODEL_READY = auto()
    MODEL_CONFIG = auto()
    MODEL_STATS = auto()
    INFER = auto()
    GENERATE = auto()
    GENERATE_STREAM = auto()
    MODEL_TRACE = auto()
    INDEX = auto()
    LOAD = auto()
    UNLOAD = auto()
    NAMED_REPOSITORY = auto()
    TRACE = auto()
    LOGGING = auto()
    SYSTEM_SHARED_MEMORY = auto()
    CUDA_SHARED_MEMORY = auto()


class Route(NamedTuple):
    """The parts of a path."""

    endpoint: Endpoint
    methods: tuple[str, ...]
    name: str = ""  # model or region in the path; empty if it has none
    version: int = LATEST  # model version in the path; LATEST if it has none
    action: str = ""  # the operation on shared-memory regions: status, register or unregister


# The reference rejects HEAD with 405. RFC 9110, 9.1, demands it wherever GET is allowed, and probes send it.
_GET, _POST, _BOTH = ("GET", "HEAD"), ("POST",), ("GET", "HEAD", "POST")
_FIXED: dict[str, tuple[Endpoint, tuple[str, ...]]] = {
    "/v2": (Endpoint.SERVER_METADATA, _GET),
    "/v2/health/live": (Endpoint.LIVE, _GET),
    "/v2/health/ready": (Endpoint.READY, _GET),
    "/v2/models/stats": (Endpoint.MODEL_STATS, _GET),
    "/v2/repository/index": (Endpoint.INDEX, _POST),
    "/v2/trace/setting": (Endpoint.TRACE, _BOTH),
    "/v2/logging": (Endpoint.LOGGING, _BOTH),
}
_MODEL = re.compile(
    r"/v2/models/([^/]+)(?:/versions/([0-9]{1,100}))?"  # Python rejects numbers of more than 4300 digits
    r"(?:/(infer|generate_stream|generate|ready|config|stats|trace/setting))?"
)
_MODEL_ACTIONS: dict[str | None, tuple[Endpoint, tuple[str, ...]]] = {
    None: (Endpoint.MODEL_METADATA, _GET),
    "infer": (Endpoint.INFER, _POST),
    "generate": (Endpoint.GENERATE, _POST),
    "generate_stream": (Endpoint.GENERATE_STREAM, _POST),
    "ready": (Endpoint.MODEL_READY, _GET),
    "config": (Endpoint.MODEL_CONFIG, _GET),
    "stats": (Endpoint.MODEL_STATS, _GET),
    "trace/setting": (Endpoint.MODEL_TRACE, _BOTH),
}
_REPOSITORY = re.compile(r"/v2/repository(?:/([^/]+))?/(?:models/([^/]+)/(load|unload)|index)")
_SHARED_MEMORY = re.compile(r"/v2/(system|cuda)sharedmemory(?:/region/([^/]+))?/(status|register|unregister)")


def find_route(path: str) -> Route | None:
    """The route of a path without query; None for an unknown path."""
    fixed = _FIXED.get(path)
    if fixed is not None:
        return Route(*fixed)
    if match := _MODEL.fullmatch(path):
        name, version, action = match.groups()
        endpoint, methods = _MODEL_ACTIONS[action]
        if endpoint is Endpoint.MODEL_TRACE and version:
            return None
        return Route(endpoint, methods, unquote(name), int(version) if version else LATEST)
    if match := _REPOSITORY.fullmatch(path):
        repository, model, action = match.groups()
        if repository:
            return Route(Endpoint.NAMED_REPOSITORY, _POST)
        return Route(Endpoint.LOAD if action == "load" else Endpoint.UNLOAD, _POST, unquote(model))
    if match := _SHARED_MEMORY.fullmatch(path):
        kind, region, action = match.groups()
        endpoint = Endpoint.SYSTEM_SHARED_MEMORY if kind == "system" else Endpoint.CUDA_SHARED_MEMORY
        if action == "register" and not region:
            return None
        methods = _GET if action == "status" else _POST
        return Route(endpoint, methods, unquote(region or ""), action=action)
    return None
