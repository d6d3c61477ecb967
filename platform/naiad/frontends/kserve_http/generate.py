"""The generate extension: one JSON object in, one out or a stream of them (SRV docs/protocol/extension_generate.md)."""

from __future__ import annotations

from functools import partial

from naiad.engine.door import EngineDoor
from naiad.errors import InvalidRequestError
from naiad.frontends.extensions import Extensions
from naiad.frontends.http1.heads import propagated
from naiad.frontends.http1.messages import Exchange, error_document, response
from naiad.frontends.http1.sse import EventStream, SentCount
from naiad.frontends.kserve_http.generate_request import parse_generate
from naiad.frontends.kserve_http.generate_response import OK, generate_response
from naiad.frontends.kserve_http.load_header import FORMAT_HEADER, HeaderLines, load_header, no_headers
from naiad.frontends.kserve_http.routes import Endpoint, Route
from naiad.protocol.inference import InferResponse, Sink

_NOT_ONE = (
    "generate expects model to produce exactly 1 response, use generate stream for model that generates various number "
    "of responses"
)


class Generate:
    """Answers `generate` and `generate_stream`, for decoupled models and others."""

    def __init__(self, engine: EngineDoor, extensions: Extensions, *, max_json: int) -> None:
        self._engine = engine
        self._tracer = extensions.tracer
        self._metrics = extensions.model_metrics
        self._max_json = max_json

    def answer(self, exchange: Exchange, route: Route) -> None:
        """Answer one request, now or later.

        Raises:
            NaiadError: If the request is refused.
        """
        request = exchange.request
        metadata = self._engine.model_metadata(route.name, route.version)
        if request.headers.get(b"content-encoding", b"identity").strip().lower() not in (b"", b"identity"):
            raise InvalidRequestError("Unsupported content-encoding, only 'identity' is supported.")
        inference = parse_generate(request.body, metadata, route.version, self._max_json)
        taken = SentCount(self._engine.confirm_sent)
        is_stream = route.endpoint is Endpoint.GENERATE_STREAM
        form = request.headers.get(FORMAT_HEADER)
        headers = no_headers if form is None else partial(load_header, form, self._metrics)
        sink: Sink = (EventStream if is_stream else GenerateSink)(exchange, taken, headers)
        if self._tracer.is_on:
            ticket = self._tracer.submit(self._engine, inference, sink, "HTTP", propagated(request.headers))
        else:
            ticket = self._engine.submit(inference, sink)
        exchange.on_disconnect(ticket)
        taken.submitted(ticket)


class GenerateSink:
    """Writes the one response of a request to its connection; if there are others, that they are too many.

    Waits for the end, as the reference does, and keeps no more than the first response meanwhile.
    """

    __slots__ = ("_body", "_count", "_exchange", "_headers", "_status", "_taken")

    def __init__(self, exchange: Exchange, taken: SentCount, headers: HeaderLines = no_headers) -> None:
        self._exchange: Exchange | None = exchange
        self._headers = headers
        self._taken = taken
        self._count = 0
        self._status = OK
        self._body = b""

    def send(self, response: InferResponse | None, final: bool) -> None:  # noqa: FBT001 - Sink
        """Take one response; with the last, write the answer."""
        if self._exchange is None:
            return  # a second answer would be taken for that to the connection's next request
        if response is not None:
            self._count += 1
            if self._count == 1:
                self._status, self._body = generate_response(response)
            self._taken.add()
        if final:
            self._end()

    def _end(self) -> None:
        exchange, self._exchange = self._exchange, None
        assert exchange is not None
        # Where the count is wrong, too, the status is that of the first response: with the reference it is out by then.
        body = self._body if self._count == 1 else error_document(_NOT_ONE)
        exchange.respond(response(self._status, [body], extra=self._headers()))
