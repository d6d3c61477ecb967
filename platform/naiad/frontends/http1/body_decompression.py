"""The body of an exchange, decompressed before the exchange is handled further."""

from __future__ import annotations

from collections.abc import Callable

from naiad.core.errors import NotReadyError
from naiad.frontends.callbacks import do_nothing
from naiad.frontends.decompression import SHORT_INPUT, SHORT_OUTPUT, Decompression, DecompressionTask
from naiad.frontends.http1.messages import HttpExchange
from naiad.frontends.request_memory import RequestMemory


def is_decompressed_at_once(body: Decompression, size: int) -> bool:
    """Decompress a short body of *size* bytes; False if the rest is left to `BodyDecompression`."""
    if size > SHORT_INPUT:
        return False
    body.step(SHORT_OUTPUT)
    return body.is_complete


class BodyDecompression:
    """Replaces the body of an exchange by its decompressed form.

    The exchange stays open meanwhile, so that the connection handles its next request afterwards. The work ends when
    the client disconnects. What was decompressed counts in the budget until the response.
    """

    __slots__ = ("_exchange", "_fail", "_task", "_then", "charge")

    def __init__(
        self,
        exchange: HttpExchange,
        body: Decompression,
        memory: RequestMemory,
        then: Callable[[], None],  # called once the exchange's request has its decompressed body
        fail: Callable[[Exception], None],  # called with the error, or with that which *then* raised
    ) -> None:
        self._exchange = exchange
        self._then = then
        self._fail = fail
        self.charge = memory.budget.open(self)
        self._task: DecompressionTask | None = memory.threads.start(body, self._on_step, self._on_done, self._on_failed)
        exchange.on_resume(self._on_resume)

    def resume_receiving(self) -> None:
        if self._task is not None:
            self._task.resume()

    def refuse(self, reason: str) -> None:
        self._on_failed(NotReadyError(reason))

    def _on_step(self, size: int) -> bool:
        return self.charge.add(size - self.charge.size)

    def _on_done(self, body: bytearray) -> None:
        self._task = None
        self._exchange.on_resume(do_nothing)
        self.charge.complete()
        self._exchange.replace_body(memoryview(body), self.charge)
        try:
            self._then()
        except Exception as error:  # noqa: BLE001 - any error becomes the response
            self._fail(error)

    def _on_failed(self, error: Exception) -> None:
        self._end()
        self._fail(error)

    def _on_resume(self) -> None:
        if not self._exchange.is_connected:
            self._end()

    def _end(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self._exchange.on_resume(do_nothing)  # the two refer to each other
        self.charge.release()
