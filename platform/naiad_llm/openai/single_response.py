"""Receives the model's response to a request that has exactly one: vectors, scores, tokens."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from functools import partial

from naiad.frontends.http1.messages import INTERNAL_ERROR, HttpExchange, response
from naiad.frontends.offload.exchanges import continue_later
from naiad.frontends.offload.slices import SliceScheduler
from naiad.protocol.inference import Buffer, InferResponse, OutputTensor
from naiad_llm.openai.errors import SERVER_ERROR, ApiError, to_api_error

logger = logging.getLogger("naiad.openai")

_OK = 200

BodySteps = Generator[None, None, list[Buffer]]
"""Makes the parts of a long JSON in steps of about a millisecond, or raises ApiError."""

MakeBody = Callable[[Mapping[str, OutputTensor]], BodySteps | bytes]
"""Makes the JSON of the response from the model's outputs by name, or raises ApiError."""


@dataclass(slots=True, eq=False)
class SingleResponseSink:
    """Responds with what *make_body* makes of the model's first response; further responses are discarded."""

    _exchange: HttpExchange | None
    _model: str
    _make_body: MakeBody
    _on_sent: Callable[[], None]  # called for each response of the model
    _slices: SliceScheduler
    _error_response: Callable[[ApiError], list[Buffer]] = ApiError.response

    def send(self, inferred: InferResponse | None, final: bool) -> None:  # noqa: FBT001 - signature of Sink
        if inferred is not None:
            self._on_sent()  # discarded responses too: otherwise a model that sends more would block forever
        exchange = self._exchange
        if exchange is None or (inferred is None and not final):
            return
        self._exchange = None
        if not exchange.is_connected:
            exchange.respond([])  # the client has left: this ends the exchange
            return
        try:
            if inferred is None:
                raise ApiError("The model returned no response", status=SERVER_ERROR)
            if inferred.error is not None:
                raise to_api_error(inferred.error, self._model)
            body = self._make_body({one.name: one for one in inferred.outputs})
            if isinstance(body, bytes):
                exchange.respond(response(_OK, [body]))
            else:
                continue_later(
                    exchange,
                    partial(self._slices.start, body),
                    lambda parts: exchange.respond(response(_OK, parts)),
                    partial(self._fail, exchange),
                )
        except Exception as error:  # noqa: BLE001 - any error becomes the response
            self._fail(exchange, error)

    def _fail(self, exchange: HttpExchange, problem: Exception) -> None:
        if not isinstance(problem, ApiError):
            logger.error("cannot write the response of model '%s'", self._model, exc_info=problem)
            problem = ApiError(INTERNAL_ERROR, status=SERVER_ERROR)
        exchange.respond(self._error_response(problem))
