"""Responses in the order of their requests (`preserve_ordering`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from naiad.engine.scheduling.response_order import ResponseOrder
from naiad.protocol.delivery import send_safely
from naiad.protocol.inference import InferResponse, Sink

Order: TypeAlias = "ResponseOrder[OrderedSink, InferResponse | None]"


class OrderedSink:
    """Wraps a request's sink: responses are held back until all requests dispatched before have ended."""

    __slots__ = ("_order", "_sink")

    def __init__(self, order: Order, sink: Sink) -> None:
        self._order = order
        self._sink = sink

    def wrap(self, wrapper: Callable[[Sink], Sink]) -> None:
        self._sink = wrapper(self._sink)

    def begin(self) -> None:
        """The request was dispatched: its responses follow those of all requests dispatched before."""
        self._order.begin(self)

    def send(self, response: InferResponse | None, final: bool) -> None:  # noqa: FBT001 - the signature of `Sink`
        """Pass on the responses that may leave now: none yet, this one, or also later ones that waited for it."""
        for delivery in self._order.respond(self, response, final=final):
            sink, released = delivery.key._sink, delivery.response  # noqa: SLF001 - an `OrderedSink` as well
            of = (
                ("", -1, "") if released is None else (released.model_name, released.model_version, released.request_id)
            )
            send_safely(sink, released, delivery.final, of)  # a sink of another request may fail
