"""An event loop in a thread, so that blocking clients in the test can talk to a frontend in the same process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, TypeVar

import uvloop
from support.waiting import until_async

T = TypeVar("T")


class LoopThread:
    """Runs the loop that the server runs on (uvloop); a context manager."""

    def __init__(self) -> None:
        self.loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="server-loop", daemon=True)

    def __enter__(self) -> LoopThread:  # noqa: PYI034 - Self needs Python 3.11
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    def run(self, coroutine: Coroutine[Any, Any, T], timeout: float = 30) -> T:
        """Run a coroutine on the loop and wait for its result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(timeout)

    def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function on the loop's thread and wait for its result."""

        async def call() -> T:
            return function(*arguments)

        return self.run(call())

    def turn(self, count: int) -> None:
        """Let the loop turn at least so many times, so that work which was deferred on it is done."""

        async def turn() -> None:
            for _ in range(count):
                await asyncio.sleep(0)

        self.run(turn())

    def until(self, condition: Callable[[], object], timeout: float = 30) -> None:
        """Wait until a condition, asked on the loop's thread between its turns, holds."""
        self.run(until_async(condition, timeout=timeout), timeout + 10)
