"""Responses in the order of their requests, for models with `preserve_ordering`."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

from naiad.scheduling.interface import NamedTuple

__all__ = ["Delivery", "ResponseOrder"]

Key = TypeVar("Key", bound=Hashable)
Response = TypeVar("Response")


class Delivery(NamedTuple, Generic[Key, Response]):
    """The decision that a response goes out now; `final` if it is the request's last."""

    key: Key
    response: Response
    final: bool


class ResponseOrder(Generic[Key, Response]):
    """Holds responses back until all requests before theirs have been answered for good.

    The first request's responses pass at once, also those that are not its last.
    """

    def __init__(self) -> None:
        self._held: OrderedDict[Key, list[Delivery[Key, Response]]] = OrderedDict()

    def __repr__(self) -> str:
        return f"<ResponseOrder open={len(self._held)} held={sum(map(len, self._held.values()))}>"

    def __len__(self) -> int:
        return len(self._held)

    def begin(self, key: Key) -> None:
        """A request was dispatched; one that was put back and dispatched again keeps its place."""
        self._held.setdefault(key, [])

    def respond(self, key: Key, response: Response, *, final: bool) -> list[Delivery[Key, Response]]:
        """A response is there; what may go out now, in order. A request that never began is answered at once."""
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
        """A request will not be answered here; what may go out now."""
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
