"""Time that passes only when a test says so, or when its event loop has nothing else to do."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from naiad.core import clock

T = TypeVar("T")

SECOND = 1_000_000_000


class Clock:
    """Replaces the clock of the engine and its guests. `run` runs a coroutine, whose sleeps take no time."""

    def __init__(self) -> None:
        self.now_ns = 1_000 * SECOND

    def install(self, monkeypatch: pytest.MonkeyPatch) -> Clock:
        """Let the engine and its guests read this clock."""
        monkeypatch.setattr(clock, "monotonic", self.monotonic)
        monkeypatch.setattr(clock, "monotonic_ns", self.monotonic_ns)
        return self

    def monotonic(self) -> float:
        return self.now_ns / SECOND

    def monotonic_ns(self) -> int:
        return self.now_ns

    def advance(self, seconds: float) -> None:
        self.now_ns += round(seconds * SECOND)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine, on a loop whose time is this clock's."""
        loop = _ClockLoop(self)
        try:
            return loop.run_until_complete(coroutine)
        finally:
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()


async def turns(count: int = 5) -> None:
    """Let the loop run what is ready, without letting time pass."""
    for _ in range(count):
        await asyncio.sleep(0)


class _ClockSelector(selectors.SelectSelector):
    """Lets the clock go to the next timer at once, instead of waiting for it."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "the test waits for something that no timer brings"
            self._clock.now_ns += -int(-timeout * SECOND // 1)
        return ready


class _ClockLoop(asyncio.SelectorEventLoop):
    def __init__(self, clock: Clock) -> None:
        super().__init__(_ClockSelector(clock))
        self._clock = clock

    def time(self) -> float:
        return self._clock.monotonic()
