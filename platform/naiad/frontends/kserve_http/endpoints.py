"""The endpoints of KServe v2 and Triton's extensions: each asks the engine and responds with its values."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from naiad_stub.memo import Memo

from naiad.core.errors import InvalidRequestError, NaiadError, UnsupportedRequestError
from naiad.engine.facade import EngineFacade
from naiad.frontends.access import Access, HeaderForwarder
from naiad.frontends.extensions import Extensions
from naiad.frontends.http1 import compression
from naiad.frontends.http1.body_decompression import BodyDecompression, is_decompressed_at_once
from naiad.frontends.http1.heads import Head, json_length, original_headers, propagated_headers
from naiad.frontends.http1.later_responses import LaterResponses, fail
from naiad.frontends.http1.messages import HttpExchange, HttpRequest, error, error_text, json_response, response
from naiad.frontends.kserve_http.generate import GenerateEndpoints
from naiad.frontends.kserve_http.infer_request import json_length as json_length_of
from naiad.frontends.kserve_http.infer_request import parse_raw
from naiad.frontends.kserve_http.infer_request_parser import InferRequestParser
from naiad.frontends.kserve_http.infer_response import infer_response, infer_response_steps, is_long, write_infer
from naiad.frontends.kserve_http.json_document import parse_json
from naiad.frontends.kserve_http.log_and_trace_settings import log_settings_response, trace_settings_response
from naiad.frontends.kserve_http.long_requests import (
    LONG_JSON,
    load_parameters,
    read_infer,
    read_load_parameters,
)
from naiad.frontends.kserve_http.request_log import log_request
from naiad.frontends.kserve_http.response_format import ResponseFormat
from naiad.frontends.kserve_http.restricted import guarded_endpoints, http_denial
from naiad.frontends.kserve_http.routes import Endpoint, Route, find_route
from naiad.frontends.kserve_http.shared_memory import shared_memory_response
from naiad.frontends.offload.deferred import resolver
from naiad.frontends.offload.exchanges import continue_later
from naiad.frontends.region_inputs import complete_inputs
from naiad.frontends.tensor_limits import limits_of
from naiad.protocol.documents import (
    index_document,
    metadata_document,
    server_document,
    statistics_document,
)
from naiad.protocol.inference import Buffer, InferRequest, InferResponse, Sink

logger = logging.getLogger("naiad.http")

_MAX_ROUTES = 4096
_MAX_PARSERS = 256
_GENERATE = (Endpoint.GENERATE, Endpoint.GENERATE_STREAM)
_OK = 200
_BAD_REQUEST = 400
_FORBIDDEN = 403
_NOT_FOUND = 404
_NOT_ALLOWED = 405


_ENDING = b"naiad-replaced-instances: ending\r\n"  # a load replaced instances that still finish their requests


class Endpoints:
    """Handles each request by the endpoint that its path names."""

    def __init__(
        self,
        engine: EngineFacade,
        extensions: Extensions,
        access: Access,
        *,
        max_json: int,
        max_body: int,
        fallback: Callable[[HttpExchange], bool] | None = None,
        admit_fallback: Callable[[Head], bool] = lambda _: False,
    ) -> None:
        self._engine = engine
        self._fallback = fallback
        self._admit_fallback = admit_fallback
        self._extensions = extensions
        self._tracer = extensions.tracer
        self._background = extensions.background
        self._log = extensions.log
        self._guarded = guarded_endpoints(access.restrictions)
        self._forwarder = HeaderForwarder(access.forward) if access.forward is not None else None
        self._max_json = max_json
        self._max_body = max_body
        self._routes: Memo[bytes, Route | None] = Memo(_MAX_ROUTES)
        self._parsers: Memo[tuple[str, int], InferRequestParser] = Memo(_MAX_PARSERS)
        self._generate = GenerateEndpoints(engine, extensions, max_json=max_json)
        self._later = LaterResponses()
        self._responders: dict[Endpoint, Callable[[HttpRequest, Route], Sequence[Buffer]]] = {
            Endpoint.SERVER_METADATA: lambda _, __: json_response(server_document(engine.server_metadata())),
            Endpoint.LIVE: lambda _, __: _health(is_healthy=engine.is_live()),
            Endpoint.MODEL_METADATA: lambda _, route: json_response(
                metadata_document(engine.model_metadata(route.name, route.version))
            ),
            Endpoint.MODEL_CONFIG: lambda _, route: json_response(engine.model_config(route.name, route.version)),
            Endpoint.NAMED_REPOSITORY: self._named_repository,
        }
        self._async_responders: dict[
            Endpoint, Callable[[HttpRequest, Route], Coroutine[Any, Any, Sequence[Buffer]]]
        ] = {
            Endpoint.INDEX: self._index,
            Endpoint.READY: self._ready,
            Endpoint.MODEL_READY: self._model_ready,
            Endpoint.MODEL_STATS: self._model_stats,
            Endpoint.LOAD: self._load,
            Endpoint.UNLOAD: self._unload,
            Endpoint.SYSTEM_SHARED_MEMORY: self._shared_memory,
            Endpoint.CUDA_SHARED_MEMORY: self._shared_memory,
            Endpoint.LOGGING: lambda request, _: log_settings_response(request, extensions.log),
            Endpoint.TRACE: self._trace,
            Endpoint.MODEL_TRACE: self._trace,
        }

    def handle(self, exchange: HttpExchange) -> None:
        request = exchange.request
        if self._log.is_verbose:
            log_request(logger, request)
        route = self._route(request.path)
        if route is None:
            self._handle_unknown_path(exchange)
            return
        if self._guarded:
            denial = http_denial(self._guarded.get(route.endpoint), request.headers)
            if denial is not None:
                self._extensions.refusals.add_wrong_secret(denial.wrong_secret, exchange.client_address)
                exchange.respond(error_text(_FORBIDDEN, denial.text))
                return
        if request.method not in route.methods:
            allowed = ", ".join(route.methods).encode()
            exchange.respond(error_text(_NOT_ALLOWED, "Method Not Allowed", extra=b"Allow: %b\r\n" % allowed))
            return
        try:
            if route.endpoint is Endpoint.INFER:
                self._infer(exchange, request, route)
            elif route.endpoint in _GENERATE:
                self._generate.handle(exchange, route)
            elif len(request.body) > LONG_JSON and route.endpoint is not Endpoint.LOAD and request.method == "POST":
                raise InvalidRequestError(
                    f"request body of {len(request.body)} bytes exceeds the limit of {LONG_JSON} bytes for this path"
                )
            elif route.endpoint in self._async_responders:
                self._later.respond(exchange, self._async_responders[route.endpoint](request, route))
            else:
                exchange.respond(self._responders[route.endpoint](request, route))
        except NaiadError as problem:
            fail(exchange, problem)

    def admit(self, head: Head) -> bool:
        """Whether `handle` would read the body of a request; if not, it responds with an error without it."""
        route = self._route(head.path)
        if route is None:
            return self._admit_fallback(head)
        if self._guarded and http_denial(self._guarded.get(route.endpoint), head.headers) is not None:
            return False
        if head.method not in route.methods:
            return False
        if route.endpoint is not Endpoint.INFER:
            return True
        try:
            return not self._engine.is_decoupled(route.name, route.version)
        except NaiadError:
            return False

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

    def _infer(self, exchange: HttpExchange, request: HttpRequest, route: Route) -> None:
        if self._engine.is_decoupled(route.name, route.version):
            raise UnsupportedRequestError("HTTP end point doesn't support models with decoupled transaction policy")
        coding = request.headers.get(b"content-encoding")
        if coding:
            body = compression.begin_decompression(request.body, coding, self._max_body)
            if body is not None and is_decompressed_at_once(body, len(request.body)):
                request.body = body.result
            elif body is not None:
                memory = self._extensions.memory
                infer = partial(self._infer_body, exchange, request, route)
                BodyDecompression(exchange, body, memory, infer, partial(fail, exchange))
                return
        self._infer_body(exchange, request, route)

    def _infer_body(self, exchange: HttpExchange, request: HttpRequest, route: Route) -> None:
        body = request.body
        header_length = request.headers.get(b"inference-header-content-length")
        # As in the reference, a body without JSON is a tensor: also an empty one, whose length nothing says.
        if header_length.strip() == b"0" if header_length is not None else not body:
            metadata = self._engine.model_metadata(route.name, route.version)
            is_batched = self._engine.model_config(route.name, route.version).get("max_batch_size", 0) > 0
            inference, form = parse_raw(body, metadata, route.version, self._max_json, is_batched=is_batched)
        elif len(body) > LONG_JSON and self._read_long_infer(exchange, route, body, header_length):
            return
        else:
            inference, form = self._parser(route).parse(body, header_length)
        if form.requested is None and len(body) <= LONG_JSON:
            self._submit_infer(exchange, request, inference, form)
        else:
            self._check_infer(exchange, route, inference, form)

    def _read_long_infer(self, exchange: HttpExchange, route: Route, body: Buffer, header_length: bytes | None) -> bool:
        """Read a request with long JSON in an offload process; return False if its JSON is short."""
        json_size = json_length_of(body, header_length, self._max_json)
        if json_size <= LONG_JSON:
            return False
        limits = limits_of(self._engine.model_metadata(route.name, route.version))
        continue_later(
            exchange,
            partial(
                self._background.pool.start,
                read_infer,
                [memoryview(body)[:json_size]],
                (len(body), route.name, route.version, limits),
                resolver(self._extensions.regions, body=body),
            ),
            lambda read: self._check_infer(exchange, route, *read),
            partial(fail, exchange),
        )
        return True

    def _check_infer(self, exchange: HttpExchange, route: Route, inference: InferRequest, form: ResponseFormat) -> None:
        name, version, requested = route.name, route.version, form.requested
        if requested is not None:
            requested.prepare(
                inference, self._engine.model_metadata(name, version), self._engine.model_config(name, version)
            )
        complete_inputs(
            inference,
            requested,
            self._engine,
            self._extensions,
            lambda start, then: continue_later(exchange, start, then, partial(fail, exchange)),
            lambda: self._submit_infer(exchange, exchange.request, inference, form),
        )

    def _submit_infer(
        self, exchange: HttpExchange, request: HttpRequest, inference: InferRequest, form: ResponseFormat
    ) -> None:
        inference.propagated = propagated_headers(request.headers)
        if self._forwarder is not None:
            inference.propagated = self._forwarder.forward(
                inference, original_headers(request.headers), inference.propagated
            )
        accepted = request.headers.get(b"accept-encoding")
        response_coding = compression.preferred_coding(accepted) if accepted else "identity"
        sink: Sink = InferSink(exchange, form, response_coding, self._extensions)
        if self._tracer.is_on:
            submitted = self._tracer.submit(self._engine, inference, sink, "HTTP", inference.propagated)
        else:
            submitted = self._engine.submit(inference, sink)
        exchange.on_disconnect(submitted)
        requested = form.requested
        if requested is not None:
            # The client may register its regions again at once, however long the model executes.
            exchange.on_resume(lambda: None if exchange.is_connected else requested.release())

    def _parser(self, route: Route) -> InferRequestParser:
        # The model exists: `is_decoupled` has looked it up. So unknown names cannot evict parsers.
        parser = self._parsers.get((route.name, route.version))
        if parser is None:
            parser = InferRequestParser(route.name, route.version, self._max_json, self._extensions.regions)
            self._parsers[route.name, route.version] = parser
        return parser

    # -- the other endpoints ------------------------------------------------------------------------------------------

    async def _ready(self, _: HttpRequest, __: Route) -> Sequence[Buffer]:
        return _health(is_healthy=await self._engine.check_server_ready())

    async def _model_ready(self, _: HttpRequest, route: Route) -> Sequence[Buffer]:
        if await self._engine.check_ready(route.name, route.version):
            return _health(is_healthy=True)
        stalls = self._engine.stalls(route.name, route.version)
        raise InvalidRequestError(f"Model version not ready{stalls and ': '}{stalls}")

    async def _model_stats(self, _: HttpRequest, route: Route) -> Sequence[Buffer]:
        await self._engine.gather_counts()
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

    async def _shared_memory(self, request: HttpRequest, route: Route) -> Sequence[Buffer]:
        return await shared_memory_response(request, route, self._extensions.regions)

    async def _trace(self, request: HttpRequest, route: Route) -> Sequence[Buffer]:
        return await trace_settings_response(request, route.name, self._engine, self._extensions.tracer)

    async def _load(self, request: HttpRequest, route: Route) -> Sequence[Buffer]:
        body = request.body
        if len(body) > LONG_JSON:
            parameters = await self._background.run(read_load_parameters, [body])
        else:
            parameters = load_parameters(body)
        is_ending = await self._engine.load(route.name, parameters)
        return response(200, [], extra=_ENDING if is_ending else b"")

    async def _unload(self, request: HttpRequest, route: Route) -> Sequence[Buffer]:
        body = request.body
        parameters = parse_json(body).get("parameters", {}) if body else {}
        dependents = isinstance(parameters, dict) and parameters.get("unload_dependents") is True
        await self._engine.unload(route.name, unload_dependents=dependents)
        return response(200, [])


@dataclass(slots=True, eq=False)
class InferSink:
    """Writes the one response of an inference request to its connection."""

    _exchange: HttpExchange | None
    _form: ResponseFormat
    _coding: str
    _extensions: Extensions

    def send(self, response: InferResponse | None, final: bool) -> None:  # noqa: ARG002, FBT001 - signature of Sink
        exchange, self._exchange = self._exchange, None
        if exchange is None:
            return  # a second response would be taken for that to the connection's next request
        if not exchange.is_connected:
            self._release_regions()
            exchange.respond([])  # the client has left: this ends the exchange
            return
        if response is None:
            self._fail(exchange, NaiadError("the model ended the request without a response"))
            return
        if is_long(response, self._form):
            self._write_later(exchange, response)
            return
        try:
            if self._coding == "identity" or response.error is not None:
                parts = self._write(response)
                self._release_regions()
                exchange.respond(parts)
            else:
                self._encode(exchange, *infer_response(response, self._form))
        except Exception as problem:  # noqa: BLE001 - any error becomes the response
            self._fail(exchange, problem)

    def _release_regions(self) -> None:
        """Nothing is read or written any more. Before the response: its client may unregister a region next."""
        if self._form.requested is not None:
            self._form.requested.release()

    def _fail(self, exchange: HttpExchange, problem: Exception) -> None:
        self._release_regions()
        fail(exchange, problem)

    def _write_later(self, exchange: HttpExchange, result: InferResponse) -> None:
        """Make a long response in slices; the client may disconnect meanwhile."""
        if not exchange.is_connected:
            self._release_regions()
            return
        continue_later(
            exchange,
            partial(self._extensions.background.slices.start, infer_response_steps(result, self._form)),
            lambda made: self._encode(exchange, *made),
            partial(self._fail, exchange),
        )

    def _write(self, result: InferResponse) -> Sequence[Buffer]:
        return error(result.error) if result.error is not None else write_infer(result, self._form)

    def _encode(self, exchange: HttpExchange, body: list[Buffer], content_type: bytes, extra: bytes) -> None:
        """Respond with *body*, compressed where the client asked for that; a long one is compressed on a thread."""
        self._release_regions()
        if self._coding == "identity":
            exchange.respond(response(_OK, body, content_type, extra))
            return
        extra += b"Content-Encoding: %b\r\n" % self._coding.encode()
        if sum(map(compression.size_of, body)) < compression.LONG_BODY:
            exchange.respond(response(_OK, [compression.compress(body, self._coding)], content_type, extra))
        elif exchange.is_connected:
            compressed = compression.Compression(body, self._coding)
            continue_later(
                exchange,
                partial(self._extensions.memory.threads.start, compressed, lambda _: True),
                lambda made: exchange.respond(response(_OK, [made], content_type, extra)),
                partial(fail, exchange),
            )


def _health(*, is_healthy: bool) -> Sequence[Buffer]:
    return response(_OK if is_healthy else _BAD_REQUEST, [], b"text/plain")
