"""From the body of a request to the engine: JSON is parsed, and inference requests are submitted.

Short bodies are parsed on the event loop, long ones in an offload process. `TextSubmission` does this for requests of
every protocol that are answered by generated text.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar

from naiad.core.errors import NaiadError, without_frames
from naiad.engine.facade import EngineFacade
from naiad.frontends.http1.heads import propagated_headers
from naiad.frontends.http1.messages import INTERNAL_ERROR, HttpExchange
from naiad.frontends.http1.server_sent_events import SentCount
from naiad.frontends.kserve_http.json_structure import check_structure
from naiad.frontends.kserve_http.long_requests import LONG_JSON
from naiad.frontends.offload.background import Background
from naiad.frontends.offload.deferred import no_deferred
from naiad.frontends.offload.exchanges import continue_later
from naiad.frontends.request_budget import RequestBudget
from naiad.frontends.tracing.request_tracer import RequestTracer
from naiad.protocol.inference import InferRequest, Sink, SubmittedRequest
from naiad_llm.openai.errors import SERVER_ERROR, ApiError, ErrorResponse, to_api_error
from naiad_llm.openai.requests import TextRequest, check_size, log_ignored, parse_body
from naiad_llm.openai.served_models import ServedModels
from naiad_llm.openai.single_response import MakeBody, SingleResponseSink
from naiad_llm.openai.template import ChatTemplate
from naiad_llm.openai.text_response import PromptSink, ResponseForm, TextResponse
from naiad_llm.openai.vllm_tensors import infer_requests

logger = logging.getLogger("naiad.openai")

_MAX_RANK_DIGITS = 9
_RANK_HEADER = b"x-data-parallel-rank"
"""Chooses one of the replicas of a model inside vLLM, as routers of vLLM's servers do."""

_MAX_VALUES = 100_000  # in a long request: each is an object in the host

INTERNAL = ApiError(INTERNAL_ERROR, status=SERVER_ERROR)

R = TypeVar("R")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BodyReader:
    """Parses JSON bodies of at most *limit* bytes."""

    _background: Background
    _limit: int

    def read(
        self,
        exchange: HttpExchange,
        read: Callable[[dict[str, Any]], T],
        then: Callable[[T], None],
        error_response: ErrorResponse = ApiError.response,
        uncounted: str = "",
    ) -> None:
        """Have *then* get what *read* returns for the JSON object in the body.

        For a long body, *read* runs in another process, so it must be a function that can be pickled. The values in
        such a body are limited, but for those in the field *uncounted*.
        """
        body = exchange.request.body
        if len(body) <= LONG_JSON:
            then(read(parse_body(body, self._limit)))
            return
        check_size(body, self._limit)

        def on_read(result: T | ApiError) -> None:
            if isinstance(result, ApiError):
                fail(result)
            else:
                then(result)

        def fail(problem: Exception) -> None:
            if isinstance(problem, NaiadError):
                problem = to_api_error(problem, "")
            elif not isinstance(problem, ApiError):
                logger.error("cannot handle %r", exchange.request.path, exc_info=problem)
                problem = INTERNAL
            exchange.respond(error_response(problem))

        work = partial(_read_long, read=read, limit=self._limit, uncounted=uncounted)
        start = partial(self._background.pool.start, work, [body], (), no_deferred)
        continue_later(exchange, start, on_read, fail)


def _read_long(content: memoryview, read: Callable[[dict[str, Any]], T], limit: int, uncounted: str) -> T | ApiError:
    """What *read* returns for the JSON object in a long body, or the error that it raises."""
    text = bytes(content)
    try:
        check_structure(text, max_objects=_MAX_VALUES)
    except NaiadError as error:
        return ApiError(error.message)
    try:
        document = parse_body(text, limit)
        _check_count({name: value for name, value in document.items() if name != uncounted})
        return read(document)
    except ApiError as error:
        return without_frames(error)


def _check_count(document: Mapping[str, Any]) -> None:
    rest: list[object] = [document]
    count = 0
    while rest:
        value = rest.pop()
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        count += len(inner)
        if count > _MAX_VALUES:
            raise ApiError(f"The request has more than {_MAX_VALUES} values in its objects and arrays")
        rest += inner


@dataclass(frozen=True, slots=True)
class Submitter:
    """Submits inference requests, traced where they are selected."""

    _engine: EngineFacade
    _tracer: RequestTracer
    _background: Background

    def submit(self, exchange: HttpExchange, inference: InferRequest, sink: Sink) -> SubmittedRequest:
        inference.propagated = propagated_headers(exchange.request.headers)
        if self._tracer.is_on:
            return self._tracer.submit(self._engine, inference, sink, "HTTP", inference.propagated)
        return self._engine.submit(inference, sink)

    def submit_single(
        self,
        exchange: HttpExchange,
        inference: InferRequest,
        model: str,
        make_body: MakeBody,
        error_response: ErrorResponse = ApiError.response,
    ) -> None:
        """Submit a request that has a single response, and respond with what *make_body* makes of it."""
        sent = SentCount()
        sink = SingleResponseSink(exchange, model, make_body, sent.add, self._background.slices, error_response)
        self.submit_one(exchange, inference, model, sink, sent)

    def submit_one(
        self, exchange: HttpExchange, inference: InferRequest, model: str, sink: Sink, sent: SentCount
    ) -> None:
        """Submit the only request of *exchange*; it is cancelled if the client disconnects."""
        try:
            submitted = self.submit(exchange, inference, sink)
        except NaiadError as problem:
            raise to_api_error(problem, model) from problem
        exchange.on_disconnect(submitted)
        sent.of(submitted)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextProtocol(Generic[R]):
    """How a protocol reads its requests for text and writes the responses."""

    # Given a body and the default number of tokens. A function of a module: long bodies are read in another process.
    read: Callable[[dict[str, Any], int | None], R]
    begin: Callable[[HttpExchange, R], tuple[TextRequest, ResponseForm]]
    error_response: ErrorResponse = ApiError.response


@dataclass(slots=True, eq=False)
class TextSubmission:
    """Submits the requests for text of all protocols."""

    _submitter: Submitter
    _models: ServedModels
    _bodies: BodyReader
    _budget: RequestBudget
    _default_tokens: int | None
    _chat_template: ChatTemplate | None  # without it, chats need models with the input `messages`

    def handle(self, exchange: HttpExchange, protocol: TextProtocol[R]) -> None:
        """Handle a request for text; the response may follow later."""
        read = partial(_read, protocol.read, self._default_tokens)

        def then(request: R) -> None:
            self.submit(exchange, *protocol.begin(exchange, request), protocol.error_response)

        self._bodies.read(exchange, read, then, protocol.error_response)

    def submit(
        self, exchange: HttpExchange, request: TextRequest, form: ResponseForm, error_response: ErrorResponse
    ) -> None:
        for what in request.ignored:  # logged here: long requests are read in another process
            log_ignored(what)
        rank = exchange.request.headers.get(_RANK_HEADER)
        if rank is not None:
            request = replace(request, sampling={**request.sampling, "data_parallel_rank": _rank(rank)})
        metadata, lora = self._models.find(request.model)
        inferences = list(infer_requests(request, metadata, self._chat_template, lora))
        response = TextResponse(exchange, request, form, self._budget, error_response)
        for number, inference in enumerate(inferences):
            sent = SentCount()
            try:
                submitted = self._submitter.submit(exchange, inference, PromptSink(response, number, sent))
            except NaiadError as problem:
                response.fail(to_api_error(problem, request.model))
                return
            except Exception:  # handled here: earlier prompts are running, so `response` owns the exchange
                logger.exception("cannot submit a request to model '%s'", request.model)
                response.fail(INTERNAL)
                return
            response.on_submitted(submitted)
            sent.of(submitted)
            if response.is_over:  # an earlier prompt has failed already
                return


def _rank(given: bytes) -> int:
    if not given.isdigit() or len(given) > _MAX_RANK_DIGITS:
        raise ApiError(
            f"the header X-data-parallel-rank must be an integer of 0 or more, not {given.decode('latin-1')!r}",
            param="X-data-parallel-rank",
            code="invalid_value",
        )
    return int(given)


def _read(read: Callable[[dict[str, Any], int | None], R], default_tokens: int | None, document: dict[str, Any]) -> R:
    return read(document, default_tokens)
