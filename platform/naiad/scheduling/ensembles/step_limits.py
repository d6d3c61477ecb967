"""How many requests of one step of an ensemble may be under way at once. Pure."""

from __future__ import annotations

from collections.abc import Collection
from typing import Generic, TypeVar

__all__ = ["StepLimits"]

TokenT = TypeVar("TokenT")


class StepLimits(Generic[TokenT]):
    """How many requests of each step may be under way at once (`max_inflight_requests`), over all runs."""

    def __init__(self, limit: int) -> None:
        """Allow *limit* per step; 0 for any number."""
        self._limit = limit
        self._inside: dict[int, dict[TokenT, None]] = {}
        self._waiting: dict[int, dict[TokenT, None]] = {}

    def enter(self, step: int, token: TokenT) -> bool:
        """Whether *token* may go on with *step*; else it waits its turn."""
        if not self._limit:
            return True
        inside = self._inside.setdefault(step, {})
        if len(inside) >= self._limit:
            self._waiting.setdefault(step, {})[token] = None
            return False
        inside[token] = None
        return True

    def leave(self, step: int, token: TokenT) -> TokenT | None:
        """*token*, which was let in or waits, is done; the next one, which may go on now."""
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
        """Whether *token* waits its turn."""
        return token in self._waiting.get(step, ())

    def inside(self, step: int) -> Collection[TokenT]:
        """Those that were let in and are not done."""
        return self._inside.get(step, {}).keys()
