"""The response to a request over HTTP with a wrong secret."""

from __future__ import annotations

from collections.abc import Sequence

from naiad.frontends.http1.messages import HttpExchange
from naiad.frontends.refusals import Refusals
from naiad.protocol.inference import Buffer

__all__ = ["respond_to_wrong_secret"]


def respond_to_wrong_secret(exchange: HttpExchange, refusals: Refusals, what: str, parts: Sequence[Buffer]) -> None:
    """Respond with *parts*, now or later; *what* was wrong (see `Refusals`)."""
    forget = refusals.answer_later(what, exchange.client_address, lambda: exchange.respond(parts))

    if forget is not None:
        exchange.on_resume(lambda: None if exchange.is_connected else forget())
