"""The generate extension: one JSON object in, one out or a stream of them (SRV docs/protocol/extension_generate.md)."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, field
from functools import partial

from naiad.core.errors import InvalidRequestError, NaiadError
from naiad.engine.facade import EngineFacade
from naiad.frontends.collected import CollectedBytes
from naiad.frontends.extensions import Extensions
from naiad.frontends.http1.heads import propagated_headers
from naiad.frontends.http1.later_responses import fail
from naiad.frontends.http1.messages import HttpExchange, error, error_document, error_text, response
from naiad.frontends.http1.server_sent_events import EventWriter, SentCount, event, long_event
from naiad.frontends.kserve_http.generate_request import parse_generate
from naiad.frontends.kserve_http.generate_response import (
    OK,
    failed_response,
    generate_response,
    generate_response_steps,
)
from naiad.frontends.kserve_http.infer_request import json_too_long
from naiad.frontends.kserve_http.json_tensors import is_long
from naiad.frontends.kserve_http.load_header import FORMAT_HEADER, HeaderLines, load_header, no_headers
from naiad.frontends.kserve_http.long_requests import LONG_JSON, read_generate
from naiad.frontends.kserve_http.routes import Endpoint, Route
from naiad.frontends.offload.background import Background
from naiad.frontends.offload.deferred import no_deferred
from naiad.frontends.offload.exchanges import Cancellable, continue_later
from naiad.frontends.request_budget import RequestBudget
from naiad.protocol.inference import Buffer, InferRequest, InferResponse, Sink

_UNAVAILABLE = 503
_NOT_ONE = (
    "generate expects model to produce exactly 1 response, use generate stream for model that generates various number "
    "of responses"
)


class GenerateEndpoints:
    """The endpoints `generate` and `generate_stream`, for decoupled models and others."""

    def __init__(self, engine: EngineFacade, extensions: Extensions, *, max_json: int) -> None:
        self._engine = engine
        self._tracer = extensions.tracer
        self._metrics = extensions.model_metrics
        self._max_json = max_json
        self._background = extensions.background
        self._budget = extensions.memory.budget

    def handle(self, exchange: HttpExchange, route: Route) -> None:
        request = exchange.request
        metadata = self._engine.model_metadata(route.name, route.version)
        if request.headers.get(b"content-encoding", b"identity").strip().lower() not in (b"", b"identity"):
            raise InvalidRequestError("Unsupported content-encoding, only 'identity' is supported.")
        if len(request.body) <= LONG_JSON:
            inference = parse_generate(request.body, metadata, route.version, self._max_json)
            self._submit(exchange, route, inference)
            return
        if len(request.body) > self._max_json:
            raise json_too_long(len(request.body), self._max_json)
        continue_later(
            exchange,
            partial(
                self._background.pool.start,
                read_generate,
                [request.body],
                (metadata, route.version, self._max_json),
                no_deferred,
            ),
            partial(self._submit, exchange, route),
            partial(fail, exchange),
        )

    def _submit(self, exchange: HttpExchange, route: Route, inference: InferRequest) -> None:
        request = exchange.request
        sent = SentCount()
        is_stream = route.endpoint is Endpoint.GENERATE_STREAM
        form = request.headers.get(FORMAT_HEADER)
        headers = no_headers if form is None else partial(load_header, form, self._metrics)
        sink: Sink
        if is_stream:
            sink = GenerateStreamSink(exchange, EventWriter(exchange), sent, self._background, headers)
        else:
            sink = GenerateSink(exchange, sent, self._background, self._budget, headers)
        inference.propagated = propagated_headers(request.headers)
        if self._tracer.is_on:
            submitted = self._tracer.submit(self._engine, inference, sink, "HTTP", inference.propagated)
        else:
            submitted = self._engine.submit(inference, sink)
        exchange.on_disconnect(submitted)
        sent.of(submitted)


@dataclass(slots=True, eq=False)
class GenerateSink:
    """Responds with the one response of the model, or with an error if the model sent another number of them.

    The response is written at the end of the request, as the reference does. Until then only the first one is kept.
    """

    _exchange: HttpExchange | None
    _sent: SentCount
    _background: Background
    _budget: RequestBudget
    _headers: HeaderLines
    _collected: CollectedBytes | None = None
    _count: int = 0
    _status: int = OK
    _body: bytes = b""
    _long: InferResponse | None = None  # a first response whose JSON is made later

    def send(self, response: InferResponse | None, final: bool) -> None:  # noqa: FBT001 - the signature of Sink
        """Keep the first response; respond after the final one."""
        if response is not None:
            self._sent.add()
        if self._exchange is None:
            return  # a second response would be taken for that to the connection's next request
        if response is not None:
            self._count += 1
            if self._count == 1 and self._exchange.is_connected:
                self._keep(response, self._exchange, final=final)
            else:
                self._drop()
        if final:
            self._respond()

    def _keep(self, response: InferResponse, exchange: HttpExchange, *, final: bool) -> None:
        if is_long(response.outputs):
            self._long = response
        else:
            self._status, self._body = generate_response(response)
        if not final:
            exchange.on_resume(self._on_resume)
            self._collected = CollectedBytes(self._budget, self._on_refused)
            self._collected.count(len(self._body) + sum(len(output.data) for output in response.outputs))

    def _on_resume(self) -> None:
        if self._exchange is not None and not self._exchange.is_connected:
            self._drop()

    def _drop(self) -> None:
        self._body = b""
        self._long = None
        self._release()

    def _release(self) -> None:
        if self._collected is not None:
            self._collected.release()

    def _on_refused(self, reason: str) -> None:
        exchange, self._exchange = self._exchange, None
        self._drop()
        if exchange is not None:
            exchange.respond(error_text(_UNAVAILABLE, reason, extra=self._headers()))

    def _respond(self) -> None:
        exchange, self._exchange = self._exchange, None
        assert exchange is not None
        self._release()
        long, self._long = self._long, None

        def respond(status: int, *body: Buffer) -> None:
            exchange.respond(response(status, body, extra=self._headers()))

        if self._count != 1:
            # Also with a wrong count the status is that of the first response: the reference has sent it by then.
            respond(self._status, error_document(_NOT_ONE))
        elif long is None:
            respond(self._status, self._body)
        elif exchange.is_connected:
            continue_later(
                exchange,
                partial(self._background.slices.start, generate_response_steps(long)),
                lambda made: respond(made[0], *made[1]),
                lambda problem: respond(*failed_response(problem, long.model_name)),
            )


@dataclass(slots=True, eq=False)
class GenerateStreamSink:
    """Writes each response of the model as one event.

    The event of a long response is made in slices. Responses that come meanwhile wait, so that events keep their order;
    the engine bounds their number, as they are not confirmed as sent. Their events are made in slices too. Once the
    client has left, no event is made.
    """

    _exchange: HttpExchange
    _writer: EventWriter
    _sent: SentCount
    _background: Background
    _headers: HeaderLines
    _is_ended: bool = False
    _job: Cancellable | None = None
    _waiting: deque[tuple[InferResponse | None, bool]] = field(default_factory=deque)

    def send(self, response: InferResponse | None, final: bool) -> None:  # noqa: FBT001 - the signature of Sink
        """Write the response, or queue it until the client reads."""
        if self._is_ended:
            return  # an event after the end would be taken for the response to the connection's next request
        if not self._exchange.is_connected:
            # Discarded responses count too: otherwise a model that ignores its cancellation would block.
            if response is not None:
                self._sent.add()
            if final:
                self._write(OK, None, final=True)
            return
        if self._job is None and (response is None or not is_long(response.outputs)):
            self._write(*_event_of(response), final=final)
            return
        self._waiting.append((response, final))
        if self._job is None:
            self._job = self._background.slices.start(self._write_waiting(), self._on_written, self._on_failed)

    def reject(self, problem: NaiadError) -> None:
        if not self._is_ended:
            self._is_ended = True
            self._exchange.respond(error(problem))

    def _write_waiting(self) -> Generator[None, None, None]:
        """Write the responses that wait, and those that come meanwhile, in steps."""
        waiting, exchange = self._waiting, self._exchange
        while waiting:
            response, final = waiting.popleft()
            if not exchange.is_connected:
                self._job = None
                self.send(response, final)
                continue
            if response is None or not is_long(response.outputs):
                self._write(*_event_of(response), final=final)
            else:
                made = yield from _long_event(response, exchange)
                if made is None:  # the client has left
                    waiting.appendleft((response, final))
                else:
                    self._write(*made, final=final)
            yield

    def _on_written(self, _: None) -> None:
        self._job = None

    def _on_failed(self, problem: Exception) -> None:
        self._job = None
        self._waiting.clear()
        if not self._is_ended:
            self._write(*failed_response(problem, "the model"), final=True)

    def _write(self, status: int, document: bytes | list[bytes] | None, *, final: bool) -> None:
        if isinstance(document, bytes):
            self._writer.add(event(document), self._sent)
        elif document is not None:
            self._writer.add_long(long_event(document), self._sent)
        if not self._writer.has_begun:
            self._writer.begin(status, self._headers())
        if final:
            self._is_ended = True
            self._writer.end()
        self._writer.write()


def _event_of(response: InferResponse | None) -> tuple[int, bytes | None]:
    return (OK, None) if response is None else generate_response(response)


def _long_event(
    response: InferResponse, exchange: HttpExchange
) -> Generator[None, None, tuple[int, bytes | list[bytes]] | None]:
    """Status and JSON of a long response, in steps; None if the client leaves meanwhile."""
    steps = generate_response_steps(response)
    while exchange.is_connected:
        try:
            next(steps)
        except StopIteration as end:
            made: tuple[int, list[bytes]] = end.value
            return made
        except Exception as problem:  # noqa: BLE001 - any error becomes the response
            return failed_response(problem, response.model_name)
        yield
    return None
