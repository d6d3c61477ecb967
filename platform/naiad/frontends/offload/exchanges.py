"""Work for an HTTP request that is not done at once: what follows it, its errors, and the client that disconnects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from naiad.frontends.callbacks import do_nothing
from naiad.frontends.http1.messages import HttpExchange

T = TypeVar("T")


class Cancellable(Protocol):
    """Work that can be cancelled."""

    def cancel(self) -> None:
        """End it; no callback is called any more."""


def continue_later(
    exchange: HttpExchange,
    # Starts the work, given what to call with its result and with its error.
    start: Callable[[Callable[[T], None], Callable[[Exception], None]], Cancellable],
    then: Callable[[T], None],
    fail: Callable[[Exception], None],  # called with the error of the work, or with that which *then* raised
) -> None:
    """Start work for an exchange, which stays open until *then* or *fail* responds.

    The connection handles no further request meanwhile. The work is cancelled if the client disconnects.
    """

    def on_done(value: T) -> None:
        exchange.on_resume(do_nothing)
        try:
            then(value)
        except Exception as error:  # noqa: BLE001 - any error becomes the response
            fail(error)

    def on_failed(error: Exception) -> None:
        exchange.on_resume(do_nothing)
        fail(error)

    job = start(on_done, on_failed)

    def on_resume() -> None:
        if not exchange.is_connected:
            job.cancel()
            exchange.on_resume(do_nothing)  # else the two would refer to each other

    exchange.on_resume(on_resume)
