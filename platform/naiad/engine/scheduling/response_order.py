"""Responses in the order of their requests, for models with `preserve_ordering`.

Batches of several instances can finish out of order. With `preserve_ordering` the responses of a request are held back
until all requests dispatched before it have received their final response (Triton's model_configuration.md,
"Preserve Ordering").
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

from naiad.engine.scheduling.interface import NamedTuple

Key = TypeVar("Key", bound=Hashable)
Response = TypeVar("Response")


class Delivery(NamedTuple, Generic[Key, Response]):
    """Decision: send *response* to the client now; *final* if it is the request's last."""

    key: Key
    response: Response
    final: bool


class ResponseOrder(Generic[Key, Response]):
    """Holds responses back until all earlier requests have received their final response.

    The responses of the oldest request are delivered at once, also those that are not final.
    """

    def __init__(self) -> None:
        self._held: OrderedDict[Key, list[Delivery[Key, Response]]] = OrderedDict()

    def __repr__(self) -> str:
        return f"<ResponseOrder open={len(self._held)} held={sum(map(len, self._held.values()))}>"

    def __len__(self) -> int:
        return len(self._held)

    def begin(self, key: Key) -> None:
        """Add a request that was dispatched; one that was requeued and dispatched again keeps its position."""
        self._held.setdefault(key, [])

    def respond(self, key: Key, response: Response, *, final: bool) -> list[Delivery[Key, Response]]:
        """Add a response; return those to deliver now, in order. Responses of unknown requests are not held back."""
        delivery = Delivery(key, response, final)
        held = self._held.get(key)
        if held is None:
            return [delivery]
        if next(iter(self._held)) != key:
            held.append(delivery)
            return []
        if not final:
            return [delivery]
        del self._held[key]
        return [delivery, *self._release()]

    def forget(self, key: Key) -> list[Delivery[Key, Response]]:
        """Remove a request that will get no response from here; return the responses to deliver now."""
        if self._held.pop(key, None) is None:
            return []
        return self._release()

    def _release(self) -> list[Delivery[Key, Response]]:
        released: list[Delivery[Key, Response]] = []
        while self._held:
            key, deliveries = next(iter(self._held.items()))
            released += deliveries
            if not deliveries or not deliveries[-1].final:
                deliveries.clear()
                break
            del self._held[key]
        return released
