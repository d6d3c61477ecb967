"""The limit on concurrent requests of each step of an ensemble (`max_inflight_requests`). Pure."""

from __future__ import annotations

from collections.abc import Collection
from typing import Generic, TypeVar

TokenT = TypeVar("TokenT")


class StepLimits(Generic[TokenT]):
    """Requests in flight of each step, over all requests of the ensemble, and those that wait for their turn."""

    def __init__(self, limit: int) -> None:
        """Allow *limit* requests per step; 0 for no limit."""
        self._limit = limit
        self._inside: dict[int, dict[TokenT, None]] = {}
        self._waiting: dict[int, dict[TokenT, None]] = {}

    def enter(self, step: int, token: TokenT) -> bool:
        if not self._limit:
            return True
        inside = self._inside.setdefault(step, {})
        if len(inside) >= self._limit:
            self._waiting.setdefault(step, {})[token] = None
            return False
        inside[token] = None
        return True

    def leave(self, step: int, token: TokenT) -> TokenT | None:
        """Remove *token*; return the next waiting one, which has entered the step now."""
        if not self._limit:
            return None
        waiting = self._waiting.get(step, {})
        waiting.pop(token, None)
        inside = self._inside[step]
        if token not in inside:
            return None
        del inside[token]
        if not waiting:
            return None
        following = next(iter(waiting))
        del waiting[following]
        inside[following] = None
        return following

    def is_waiting(self, step: int, token: TokenT) -> bool:
        return token in self._waiting.get(step, ())

    def inside(self, step: int) -> Collection[TokenT]:
        return self._inside.get(step, {}).keys()
