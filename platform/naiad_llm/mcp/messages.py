"""Messages of JSON-RPC 2.0, as the Model Context Protocol uses them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
UNSUPPORTED_VERSION = -32022


class RpcError(Exception):
    """An error response to a request."""

    def __init__(self, code: int, message: str, data: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data

    def document(self, request_id: object) -> bytes:
        """The response to the request with that id; None if the id is unknown."""
        error: dict[str, Any] = {"code": self.code, "message": self.message}
        if self.data is not None:
            error["data"] = self.data
        return orjson.dumps({"jsonrpc": "2.0", "id": request_id, "error": error})


@dataclass(frozen=True, slots=True)
class RpcRequest:
    """A request or a notification, whose *request_id* is None."""

    method: str
    params: Mapping[str, Any] = field(default_factory=dict)
    request_id: str | int | None = None


def result_document(request_id: object, result: Mapping[str, Any]) -> bytes:
    """The response with the result of a request."""
    return orjson.dumps({"jsonrpc": "2.0", "id": request_id, "result": result})


def read_message(document: object) -> RpcRequest | None:
    """The message in a body; None for a response, which this server never waits for."""
    if isinstance(document, list):
        raise RpcError(INVALID_REQUEST, "batches are not supported: send one message")
    if not isinstance(document, dict) or document.get("jsonrpc") != "2.0":
        raise RpcError(INVALID_REQUEST, 'the body must be one message of JSON-RPC, with "jsonrpc": "2.0"')
    if "method" not in document and ("result" in document or "error" in document):
        return None
    method, params, request_id = document.get("method"), document.get("params"), document.get("id")
    if not isinstance(method, str):
        raise RpcError(INVALID_REQUEST, "'method' must be a string")
    if params is None:
        params = {}
    if not isinstance(params, dict):
        raise RpcError(INVALID_PARAMS, "'params' must be an object")
    if isinstance(request_id, bool) or not (request_id is None or isinstance(request_id, str | int)):
        raise RpcError(INVALID_REQUEST, "'id' must be a string or an integer")
    if request_id is None and "id" in document:
        raise RpcError(INVALID_REQUEST, "'id' must be a string or an integer")
    return RpcRequest(method, params, request_id)
