"""The Model Context Protocol over HTTP (its transport "streamable HTTP"), without sessions and without streams.

Every request is complete in itself and gets one JSON response, as the protocol permits to servers that send
nothing but responses. This is not the SDK's server: that is an ASGI application which reads bodies whole, parses them
on the loop and brings eight packages, with limits that are not ours; a server of tools needs four kinds of messages.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from naiad.core.errors import NaiadError
from naiad.frontends.http1.messages import INTERNAL_ERROR as INTERNAL_TEXT
from naiad.frontends.http1.messages import HttpExchange, response
from naiad.frontends.http1.server_sent_events import SentCount
from naiad.frontends.kserve_http.json_document import reason_of
from naiad.protocol.inference import InferRequest, InferResponse, Sink, SubmittedRequest
from naiad.protocol.metadata import ServerMetadata
from naiad_llm.mcp.tools import MAX_OUTPUT, Tool, ToolBox, error_result
from naiad_llm.openai.errors import BAD_REQUEST, FORBIDDEN, NOT_ALLOWED, TOO_LARGE

logger = logging.getLogger("naiad.mcp")

PATH = "/mcp"
VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
"""Revisions of the protocol that begin with `initialize`, the newest first; clients of later ones fall back to them."""
MAX_BODY = 128 << 10  # bytes of a message: agents write arguments as text, and longer ones would hold the event loop

_LEAST_COUNTED = 8  # bytes that a response counts at least: a model may send any number of empty ones

_OK = 200
_ACCEPTED = 202
_VERSION_HEADER = b"mcp-protocol-version"
_INSTRUCTIONS = "Each tool runs a machine-learning model. Arguments and results are tensors as JSON."

Submit = Callable[[HttpExchange, InferRequest, Sink], SubmittedRequest]


class McpEndpoint:
    """Handles requests to `/mcp`."""

    def __init__(
        self,
        tools: ToolBox,
        server_metadata: Callable[[], ServerMetadata],
        submit: Submit,
        origins: tuple[str, ...] = (),
    ) -> None:
        self._tools = tools
        self._submit = submit
        self._origins = origins
        self._methods: dict[str, Callable[[Mapping[str, Any]], Mapping[str, Any]]] = {
            "initialize": lambda params: _initialized(params, server_metadata().version),
            "ping": lambda _: {},
            "tools/list": lambda _: {"tools": self._tools.documents()},
        }

    def handle(self, exchange: HttpExchange) -> None:
        problem = self._http_problem(exchange)
        if problem is not None:
            status, text = problem
            extra = b"Allow: POST\r\n" if status == NOT_ALLOWED else b""
            error = RpcError(INVALID_REQUEST, text)
            exchange.respond(response(status, [error.document(None)], extra=extra))
            return
        request: RpcRequest | None = None
        try:
            request = read_message(_parsed(exchange))
            if request is None or request.request_id is None:
                exchange.respond(response(_ACCEPTED, [], b""))
                return
            _check_version(exchange, request)
            self._run(exchange, request)
        except RpcError as error:
            is_in_http = request is None or error.code == UNSUPPORTED_VERSION
            request_id = None if request is None else request.request_id
            exchange.respond(response(BAD_REQUEST if is_in_http else _OK, [error.document(request_id)]))

    def _http_problem(self, exchange: HttpExchange) -> tuple[int, str] | None:
        """Status and text for a request that is rejected before its body is read; None if it is not."""
        request = exchange.request
        if request.method != "POST":
            return NOT_ALLOWED, f"Not allowed to {request.method} here; use POST: this server sends no messages"
        origin = request.headers.get(b"origin", b"").decode("latin-1")
        if origin and not ({"*", origin} & set(self._origins)):
            # Any page open in a browser could use the models otherwise, by a name that resolves to this server.
            return FORBIDDEN, f"pages of '{origin}' may not use this server; --openai-allowed-origins allows them"
        if len(request.body) > MAX_BODY:
            size = len(request.body)
            return TOO_LARGE, f"the message has {size} bytes, more than {MAX_BODY}; larger tensors belong to /v2"
        return None

    def _run(self, exchange: HttpExchange, request: RpcRequest) -> None:
        if request.method == "tools/call":
            self._call(exchange, request)
            return
        method = self._methods.get(request.method)
        if method is None:
            raise RpcError(METHOD_NOT_FOUND, f"unknown method '{request.method}'")
        exchange.respond(response(_OK, [result_document(request.request_id, method(request.params))]))

    def _call(self, exchange: HttpExchange, request: RpcRequest) -> None:
        name, arguments = request.params.get("name"), request.params.get("arguments") or {}
        if not isinstance(name, str) or not isinstance(arguments, dict):
            raise RpcError(INVALID_PARAMS, "'name' must be a string and 'arguments' an object")
        tool = self._tools.find(name)
        if tool is None:
            raise RpcError(INVALID_PARAMS, f"unknown tool '{name}'; tools/list has all of them")
        sent = SentCount()
        sink = CallSink(exchange, request.request_id, tool, sent)
        try:
            submitted = self._submit(exchange, tool.infer_request(arguments), sink)
        except NaiadError as error:
            sink.respond(error_result(error.message))
            return
        sink.submitted = submitted
        exchange.on_disconnect(submitted)
        sent.of(submitted)


@dataclass(slots=True, eq=False)
class CallSink:
    """Collects the responses of a model, and responds with the result of the call."""

    _exchange: HttpExchange | None
    _request_id: str | int | None
    _tool: Tool
    _sent: SentCount
    _responses: list[bytes] = field(default_factory=list)  # as JSON
    _size: int = 0
    submitted: SubmittedRequest | None = None  # may have been answered already; None until `submit` has returned

    def send(self, inferred: InferResponse | None, final: bool) -> None:  # noqa: FBT001 - signature of Sink
        if inferred is not None:
            self._sent.add()
        exchange = self._exchange
        if exchange is None:
            return
        if not exchange.is_connected:
            self._responses.clear()
            if final:
                self.respond({})  # the client has left: this ends the exchange
            return
        if inferred is not None:
            if inferred.error is not None:
                self.respond(error_result(inferred.error.message))
                return
            self._size += max(sum(len(output.data) for output in inferred.outputs), _LEAST_COUNTED)
            if self._size > MAX_OUTPUT:
                if self.submitted is not None and not final:
                    self.submitted.cancel()
                self.respond(
                    error_result(
                        f"the outputs have more than {MAX_OUTPUT} bytes, too many for the result of a tool; use "
                        "/v2/models/NAME/infer"
                    )
                )
                return
            if (inferred.outputs or not final) and not self._keep(inferred):
                return
        if final:
            self.respond(self._tool.result(self._responses))

    def respond(self, result: Mapping[str, Any]) -> None:
        exchange, self._exchange = self._exchange, None
        self._responses.clear()
        if exchange is not None:
            exchange.respond(response(_OK, [result_document(self._request_id, result)]))

    def _keep(self, inferred: InferResponse) -> bool:
        """Keep a response; respond and return False if it has no form in JSON."""
        try:
            self._responses.append(self._tool.encoded(inferred))
        except NaiadError as error:
            self.respond(error_result(error.message))
            return False
        except Exception:
            logger.exception("cannot write the result of tool '%s'", self._tool.metadata.name)
            self.respond(error_result(INTERNAL_TEXT))
            return False
        return True


def _parsed(exchange: HttpExchange) -> object:
    try:
        return orjson.loads(exchange.request.body)
    except orjson.JSONDecodeError as problem:
        raise RpcError(PARSE_ERROR, f"the body is not valid JSON: {reason_of(problem)} at {problem.pos}") from None


def _check_version(exchange: HttpExchange, request: RpcRequest) -> None:
    """Reject a request of another revision; `initialize` negotiates its own."""
    given = exchange.request.headers.get(_VERSION_HEADER, b"").decode("latin-1")
    if given and given not in VERSIONS and request.method != "initialize":
        raise RpcError(
            UNSUPPORTED_VERSION,
            f"unsupported protocol version '{given}'",
            {"supported": list(VERSIONS), "requested": given},
        )


def _initialized(params: Mapping[str, Any], version: str) -> Mapping[str, Any]:
    asked = params.get("protocolVersion")
    return {
        "protocolVersion": asked if asked in VERSIONS else VERSIONS[0],
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "naiad", "version": version},
        "instructions": _INSTRUCTIONS,
    }


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
    if "id" in document and (isinstance(request_id, bool) or not isinstance(request_id, str | int)):
        raise RpcError(INVALID_REQUEST, "'id' must be a string or an integer")
    return RpcRequest(method, params, request_id)
