"""Responses in the order of their requests (`preserve_ordering`)."""

from __future__ import annotations

from typing import TypeAlias

from naiad.protocol.inference import InferResponse, Sink
from naiad.scheduling.response_order import ResponseOrder

Order: TypeAlias = "ResponseOrder[OrderedSink, InferResponse | None]"


class OrderedSink:
    """A request's sink, behind those of all requests that were dispatched before it."""

    __slots__ = ("_order", "_sink")

    def __init__(self, order: Order, sink: Sink) -> None:
        self._order = order
        self._sink = sink

    def begin(self) -> None:
        """The request was dispatched: its place is behind all that were before."""
        self._order.begin(self)

    def send(self, response: InferResponse | None, final: bool) -> None:  # noqa: FBT001 - the signature of `Sink`
        """Pass on what may leave now: this response, or none yet, or others too that waited for it."""
        for delivery in self._order.respond(self, response, final=final):
            delivery.key._sink.send(delivery.response, delivery.final)  # noqa: SLF001 - one of our own kind
