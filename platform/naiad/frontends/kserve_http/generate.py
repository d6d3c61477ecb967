"""The generate extension: one JSON object in, one out or a stream of them (SRV docs/protocol/extension_generate.md)."""

from __future__ import annotations

from functools import partial

from naiad.engine.door import EngineDoor
from naiad.errors import InvalidRequestError
from naiad.frontends.extensions import Extensions
from naiad.frontends.http1.heads import trace_headers
from naiad.frontends.http1.messages import HttpExchange, error_document, response
from naiad.frontends.http1.server_sent_events import EventWriter, SentCount, event
from naiad.frontends.kserve_http.generate_request import parse_generate
from naiad.frontends.kserve_http.generate_response import OK, generate_response
from naiad.frontends.kserve_http.load_header import FORMAT_HEADER, HeaderLines, load_header, no_headers
from naiad.frontends.kserve_http.routes import Endpoint, Route
from naiad.protocol.inference import InferResponse, Sink

_NOT_ONE = (
    "generate expects model to produce exactly 1 response, use generate stream for model that generates various number "
    "of responses"
)


class GenerateEndpoints:
    """The endpoints `generate` and `generate_stream`, for decoupled models and others."""

    def __init__(self, engine: EngineDoor, extensions: Extensions, *, max_json: int) -> None:
        self._engine = engine
        self._tracer = extensions.tracer
        self._metrics = extensions.model_metrics
        self._max_json = max_json

    def handle(self, exchange: HttpExchange, route: Route) -> None:
        """Submit one request; its sink responds now or later.

        Raises:
            NaiadError: If the request is rejected.
        """
        request = exchange.request
        metadata = self._engine.model_metadata(route.name, route.version)
        if request.headers.get(b"content-encoding", b"identity").strip().lower() not in (b"", b"identity"):
            raise InvalidRequestError("Unsupported content-encoding, only 'identity' is supported.")
        inference = parse_generate(request.body, metadata, route.version, self._max_json)
        sent = SentCount(self._engine.confirm_sent)
        is_stream = route.endpoint is Endpoint.GENERATE_STREAM
        form = request.headers.get(FORMAT_HEADER)
        headers = no_headers if form is None else partial(load_header, form, self._metrics)
        sink: Sink = (GenerateStreamSink if is_stream else GenerateSink)(exchange, sent, headers)
        if self._tracer.is_on:
            ticket = self._tracer.submit(self._engine, inference, sink, "HTTP", trace_headers(request.headers))
        else:
            ticket = self._engine.submit(inference, sink)
        exchange.on_disconnect(ticket)
        sent.set_ticket(ticket)


class GenerateSink:
    """Responds with the one response of the model, or with an error if the model sent another number of them.

    The response is written at the end of the request, as the reference does. Until then only the first one is kept.
    """

    __slots__ = ("_body", "_count", "_exchange", "_headers", "_sent", "_status")

    def __init__(self, exchange: HttpExchange, sent: SentCount, headers: HeaderLines = no_headers) -> None:
        self._exchange: HttpExchange | None = exchange
        self._headers = headers
        self._sent = sent
        self._count = 0
        self._status = OK
        self._body = b""

    def send(self, response: InferResponse | None, final: bool) -> None:  # noqa: FBT001 - the signature of Sink
        """Keep the first response; respond after the final one."""
        if self._exchange is None:
            return  # a second response would be taken for that to the connection's next request
        if response is not None:
            self._count += 1
            if self._count == 1:
                self._status, self._body = generate_response(response)
            self._sent.add()
        if final:
            self._respond()

    def _respond(self) -> None:
        exchange, self._exchange = self._exchange, None
        assert exchange is not None
        # Also with a wrong count the status is that of the first response: the reference has sent it by then.
        body = self._body if self._count == 1 else error_document(_NOT_ONE)
        exchange.respond(response(self._status, [body], extra=self._headers()))


class GenerateStreamSink:
    """Writes each response of the model as one event."""

    __slots__ = ("_headers", "_is_ended", "_sent", "_writer")

    def __init__(self, exchange: HttpExchange, sent: SentCount, headers: HeaderLines = no_headers) -> None:
        self._writer = EventWriter(exchange)
        self._headers = headers
        self._sent = sent
        self._is_ended = False

    def send(self, response: InferResponse | None, final: bool) -> None:  # noqa: FBT001 - the signature of Sink
        """Write the response, or queue it until the client reads."""
        if self._is_ended:
            return  # an event after the end would be taken for the response to the connection's next request
        status = OK
        if response is not None:
            status, document = generate_response(response)
            self._writer.add(event(document), self._sent)
        if not self._writer.has_begun:
            self._writer.begin(status, self._headers())
        if final:
            self._is_ended = True
            self._writer.end()
        self._writer.write()
