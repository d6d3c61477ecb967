"""Responses that coroutines make, and those to exchanges whose work has failed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from naiad.core.errors import NaiadError
from naiad.frontends.http1.compression import UnknownCodingError
from naiad.frontends.http1.messages import INTERNAL_ERROR, HttpExchange, error, error_text
from naiad.protocol.inference import Buffer

logger = logging.getLogger("naiad.http")


def fail(exchange: HttpExchange, problem: Exception) -> None:
    """Respond with an error; an unexpected one is logged, and the client gets no details."""
    if isinstance(problem, NaiadError):
        is_coding = isinstance(problem, UnknownCodingError)
        exchange.respond(error(problem, extra=b"Accept-Encoding: gzip, deflate\r\n" if is_coding else b""))
        return
    logger.error("cannot answer %s %r", exchange.request.method, exchange.request.path, exc_info=problem)
    exchange.respond(error_text(500, INTERNAL_ERROR))


class LaterResponses:
    """Runs the coroutines of one handler."""

    def __init__(self, on_failed: Callable[[HttpExchange, Exception], None] = fail) -> None:
        """*on_failed* responds for a coroutine that raised an error."""
        self._on_failed = on_failed
        self._tasks: set[asyncio.Task[None]] = set()  # the loop itself refers to its tasks only weakly

    def respond(self, exchange: HttpExchange, making: Awaitable[Sequence[Buffer]]) -> None:
        task = asyncio.get_running_loop().create_task(self._respond(exchange, making))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _respond(self, exchange: HttpExchange, making: Awaitable[Sequence[Buffer]]) -> None:
        try:
            parts = await making
        except Exception as problem:  # noqa: BLE001 - any error becomes the response
            self._on_failed(exchange, problem)
        else:
            exchange.respond(parts)
