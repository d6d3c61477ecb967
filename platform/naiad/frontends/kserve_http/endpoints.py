"""The endpoints of KServe v2 and Triton's extensions: each asks the engine and responds with its values."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from naiad_stub.memo import Memo

from naiad.engine.door import EngineDoor
from naiad.errors import InvalidRequestError, MalformedRequestError, NaiadError, UnsupportedRequestError
from naiad.frontends.access import Access, HeaderForwarder
from naiad.frontends.extensions import Extensions
from naiad.frontends.http1 import compression
from naiad.frontends.http1.heads import Head, json_length, original_headers, trace_headers
from naiad.frontends.http1.messages import (
    INTERNAL_ERROR,
    HttpExchange,
    HttpRequest,
    error,
    error_text,
    json_response,
    response,
)
from naiad.frontends.kserve_http.documents import (
    index_document,
    metadata_document,
    server_document,
    statistics_document,
)
from naiad.frontends.kserve_http.generate import GenerateEndpoints
from naiad.frontends.kserve_http.infer_request import parse_json, parse_raw
from naiad.frontends.kserve_http.infer_request_parser import InferRequestParser
from naiad.frontends.kserve_http.infer_response import infer_response, write_infer
from naiad.frontends.kserve_http.log_and_trace_settings import log_settings_response, trace_settings_response
from naiad.frontends.kserve_http.request_log import log_request
from naiad.frontends.kserve_http.response_format import ResponseFormat
from naiad.frontends.kserve_http.restricted import guarded_endpoints, missing_header
from naiad.frontends.kserve_http.routes import Endpoint, Route, find_route
from naiad.frontends.kserve_http.shared_memory import shared_memory_response
from naiad.protocol.inference import Buffer, InferResponse, Sink

logger = logging.getLogger("naiad.http")

_MAX_ROUTES = 4096
_MAX_PARSERS = 256
_GENERATE = (Endpoint.GENERATE, Endpoint.GENERATE_STREAM)
_OK = 200
_BAD_REQUEST = 400
_FORBIDDEN = 403
_NOT_FOUND = 404
_NOT_ALLOWED = 405


class Endpoints:
    """Handles each request by the endpoint that its path names."""

    def __init__(
        self,
        engine: EngineDoor,
        extensions: Extensions,
        access: Access,
        *,
        max_json: int,
        max_body: int,
        fallback: Callable[[HttpExchange], bool] | None = None,
    ) -> None:
        self._engine = engine
        self._fallback = fallback
        self._extensions = extensions
        self._tracer = extensions.tracer
        self._log = extensions.log
        self._guarded = guarded_endpoints(access.restrictions)
        self._forwarder = HeaderForwarder(access.forward) if access.forward is not None else None
        self._max_json = max_json
        self._max_body = max_body
        self._routes: Memo[bytes, Route | None] = Memo(_MAX_ROUTES)
        self._parsers: Memo[tuple[str, int], InferRequestParser] = Memo(_MAX_PARSERS)
        self._generate = GenerateEndpoints(engine, extensions, max_json=max_json)
        self._tasks: set[asyncio.Task[None]] = set()  # the loop itself refers to its tasks only weakly
        self._responders: dict[Endpoint, Callable[[HttpRequest, Route], Sequence[Buffer]]] = {
            Endpoint.SERVER_METADATA: self._server_metadata,
            Endpoint.LIVE: self._live,
            Endpoint.MODEL_METADATA: self._model_metadata,
            Endpoint.MODEL_CONFIG: self._model_config,
            Endpoint.MODEL_STATS: self._model_stats,
            Endpoint.NAMED_REPOSITORY: self._named_repository,
            Endpoint.SYSTEM_SHARED_MEMORY: self._shared_memory,
            Endpoint.CUDA_SHARED_MEMORY: self._shared_memory,
            Endpoint.LOGGING: self._logging,
            Endpoint.TRACE: self._trace,
            Endpoint.MODEL_TRACE: self._trace,
        }
        self._async_responders: dict[
            Endpoint, Callable[[HttpRequest, Route], Coroutine[Any, Any, Sequence[Buffer]]]
        ] = {
            Endpoint.INDEX: self._index,
            Endpoint.READY: self._ready,
            Endpoint.MODEL_READY: self._model_ready,
            Endpoint.LOAD: self._load,
            Endpoint.UNLOAD: self._unload,
        }

    def handle(self, exchange: HttpExchange) -> None:
        """Respond to one request, now or later."""
        request = exchange.request
        if self._log.is_verbose:
            log_request(logger, request)
        route = self._route(request.path)
        if route is None:
            self._handle_unknown_path(exchange)
            return
        if self._guarded:
            header = missing_header(self._guarded, route.endpoint, request.headers)
            if header:
                exchange.respond(error_text(_FORBIDDEN, f"This API is restricted, expecting header '{header}'"))
                return
        if request.method not in route.methods:
            allowed = ", ".join(route.methods).encode()
            exchange.respond(error_text(_NOT_ALLOWED, "Method Not Allowed", extra=b"Allow: %b\r\n" % allowed))
            return
        try:
            if route.endpoint is Endpoint.INFER:
                self._infer(exchange, route)
            elif route.endpoint in _GENERATE:
                self._generate.handle(exchange, route)
            elif route.endpoint in self._async_responders:
                self._respond_later(exchange, self._async_responders[route.endpoint](request, route))
            else:
                exchange.respond(self._responders[route.endpoint](request, route))
        except NaiadError as problem:
            exchange.respond(_error_response(problem))

    def reserve_input(self, head: Head) -> memoryview | None:
        """Memory of an instance for the body of a long request; None where it contains no tensors in binary."""
        route = self._route(head.path)
        if route is None or route.endpoint is not Endpoint.INFER or b"content-encoding" in head.headers:
            return None
        if b"inference-header-content-length" not in head.headers:
            return None
        try:
            return self._engine.reserve_input(route.name, route.version, head.body_size, json_length(head.headers))
        except NaiadError:
            return None  # `handle` reports the error once the request is complete

    def _handle_unknown_path(self, exchange: HttpExchange) -> None:
        if self._fallback is None or not self._fallback(exchange):
            if self._log.is_verbose:
                log_request(logger, exchange.request, _NOT_FOUND)
            exchange.respond(error_text(_NOT_FOUND, "Not Found"))

    def _route(self, path: bytes) -> Route | None:
        try:
            return self._routes[path]
        except KeyError:
            route = self._routes[path] = find_route(path.decode("latin-1"))
            return route

    # -- inference ----------------------------------------------------------------------------------------------------

    def _infer(self, exchange: HttpExchange, route: Route) -> None:
        request = exchange.request
        if self._engine.is_decoupled(route.name, route.version):
            raise UnsupportedRequestError("HTTP end point doesn't support models with decoupled transaction policy")
        body = request.body
        coding = request.headers.get(b"content-encoding")
        if coding:
            body = compression.decompress(body, coding, self._max_body)
        header_length = request.headers.get(b"inference-header-content-length")
        if header_length is not None and header_length.strip() == b"0":
            metadata = self._engine.model_metadata(route.name, route.version)
            inference, form = parse_raw(body, metadata, route.version)
        else:
            inference, form = self._parser(route).parse(body, header_length)
            if form.requested is not None:
                name, version = route.name, route.version
                form.requested.set_model(
                    self._engine.model_metadata(name, version), self._engine.model_config(name, version)
                )
        if self._forwarder is not None:
            self._forwarder.forward(inference, original_headers(request.headers))
        accepted = request.headers.get(b"accept-encoding")
        response_coding = compression.preferred_coding(accepted) if accepted else "identity"
        sink: Sink = InferSink(exchange, form, response_coding)
        if self._tracer.is_on:
            ticket = self._tracer.submit(self._engine, inference, sink, "HTTP", trace_headers(request.headers))
        else:
            ticket = self._engine.submit(inference, sink)
        exchange.on_disconnect(ticket)

    def _parser(self, route: Route) -> InferRequestParser:
        # The model exists: `is_decoupled` has looked it up. So unknown names cannot evict parsers.
        parser = self._parsers.get((route.name, route.version))
        if parser is None:
            parser = InferRequestParser(route.name, route.version, self._max_json, self._extensions.regions)
            self._parsers[route.name, route.version] = parser
        return parser

    # -- the other endpoints ------------------------------------------------------------------------------------------

    def _server_metadata(self, _: HttpRequest, __: Route) -> Sequence[Buffer]:
        return json_response(server_document(self._engine.server_metadata()))

    def _live(self, _: HttpRequest, __: Route) -> Sequence[Buffer]:
        return _health(is_healthy=self._engine.is_live())

    async def _ready(self, _: HttpRequest, __: Route) -> Sequence[Buffer]:
        return _health(is_healthy=await self._engine.check_server_ready())

    def _model_metadata(self, _: HttpRequest, route: Route) -> Sequence[Buffer]:
        return json_response(metadata_document(self._engine.model_metadata(route.name, route.version)))

    async def _model_ready(self, _: HttpRequest, route: Route) -> Sequence[Buffer]:
        if await self._engine.check_ready(route.name, route.version):
            return _health(is_healthy=True)
        raise InvalidRequestError("Model version not ready")

    def _model_config(self, _: HttpRequest, route: Route) -> Sequence[Buffer]:
        return json_response(self._engine.model_config(route.name, route.version))

    def _model_stats(self, _: HttpRequest, route: Route) -> Sequence[Buffer]:
        return json_response(statistics_document(self._engine.statistics(route.name, route.version)))

    async def _index(self, request: HttpRequest, _: Route) -> Sequence[Buffer]:
        body = request.body
        ready = parse_json(body).get("ready", False) if body else False
        if not isinstance(ready, bool):
            raise InvalidRequestError("Invalid value for 'ready': expected a boolean")
        entries = self._engine.ready_index() if ready else await self._engine.repository_index()
        return json_response(index_document(entries))

    def _named_repository(self, _: HttpRequest, __: Route) -> Sequence[Buffer]:
        raise UnsupportedRequestError("'repository_name' specification is not supported")

    def _shared_memory(self, request: HttpRequest, route: Route) -> Sequence[Buffer]:
        return shared_memory_response(request, route, self._extensions.regions)

    def _logging(self, request: HttpRequest, _: Route) -> Sequence[Buffer]:
        return log_settings_response(request, self._extensions.log)

    def _trace(self, request: HttpRequest, route: Route) -> Sequence[Buffer]:
        return trace_settings_response(request, route.name, self._engine, self._extensions.tracer)

    async def _load(self, request: HttpRequest, route: Route) -> Sequence[Buffer]:
        await self._engine.load(route.name, _load_parameters(request.body))
        return response(200, [])

    async def _unload(self, request: HttpRequest, route: Route) -> Sequence[Buffer]:
        body = request.body
        parameters = parse_json(body).get("parameters", {}) if body else {}
        dependents = isinstance(parameters, dict) and parameters.get("unload_dependents") is True
        await self._engine.unload(route.name, unload_dependents=dependents)
        return response(200, [])

    def _respond_later(self, exchange: HttpExchange, work: Coroutine[Any, Any, Sequence[Buffer]]) -> None:
        """Respond with the result of a coroutine."""

        async def run() -> None:
            try:
                parts = await work
            except NaiadError as problem:
                exchange.respond(_error_response(problem))
            except Exception:
                logger.exception("cannot answer %s %r", exchange.request.method, exchange.request.path)
                exchange.respond(error_text(500, INTERNAL_ERROR))
            else:
                exchange.respond(parts)

        task = asyncio.get_running_loop().create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _error_response(problem: NaiadError) -> list[Buffer]:
    is_coding = isinstance(problem, compression.UnknownCodingError)
    return error(problem, extra=b"Accept-Encoding: gzip, deflate\r\n" if is_coding else b"")


class InferSink:
    """Writes the one response of an inference request to its connection."""

    __slots__ = ("_coding", "_exchange", "_form")

    def __init__(self, exchange: HttpExchange, form: ResponseFormat, coding: str) -> None:
        self._exchange: HttpExchange | None = exchange
        self._form = form
        self._coding = coding

    def send(self, response: InferResponse | None, final: bool) -> None:  # noqa: ARG002, FBT001 - signature of Sink
        """Write the response."""
        exchange, self._exchange = self._exchange, None
        if exchange is None:
            return  # a second response would be taken for that to the connection's next request
        if response is None:
            exchange.respond(error(NaiadError("the model ended the request without a response")))
            return
        try:
            parts = self._write(response)
        except Exception:
            logger.exception("cannot write the response of '%s'", response.model_name)
            parts = error_text(500, INTERNAL_ERROR)
        exchange.respond(parts)

    def _write(self, result: InferResponse) -> Sequence[Buffer]:
        if result.error is not None:
            return error(result.error)
        try:
            if self._coding == "identity":
                return write_infer(result, self._form)
            body, content_type, extra = infer_response(result, self._form)
        except NaiadError as problem:
            return error(problem)
        extra += b"Content-Encoding: %b\r\n" % self._coding.encode()
        return response(_OK, [compression.compress(body, self._coding)], content_type, extra)


def _health(*, is_healthy: bool) -> Sequence[Buffer]:
    return response(_OK if is_healthy else _BAD_REQUEST, [], b"text/plain")


def _load_parameters(body: Buffer) -> dict[str, str | bytes]:
    """The parameters of a load request: `config` is text, `file:<path>` is base64.

    Raises:
        NaiadError: If one has another name or type, with the reference's text.
    """
    parameters = parse_json(body).get("parameters", {}) if body else {}
    if not isinstance(parameters, dict):
        raise MalformedRequestError("attempt to get members for non-object")
    read: dict[str, str | bytes] = {}
    for key, value in parameters.items():
        if not (key == "config" or key.startswith("file:")):
            raise MalformedRequestError("unexpected error on creating Triton parameter")
        if not isinstance(value, str):
            raise MalformedRequestError("attempt to access JSON non-string as string")
        try:
            read[key] = value if key == "config" else base64.b64decode(value, validate=True)
        except ValueError as problem:
            raise InvalidRequestError(f"cannot read load parameter '{key}': it is not base64: {problem}") from problem
    return read
