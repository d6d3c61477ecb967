"""The trace of a request that the coordinator has sent to a replica: it is kept there, and notes of it go back."""

from __future__ import annotations

from collections.abc import Callable

from naiad.protocol.inference import InferRequest, Sink


class RemoteTrace:
    """Implements `naiad.protocol.inference.Trace` in the process that executes the request.

    The monotonic clock is the same in all processes, so the coordinator records the times as they are.
    """

    __slots__ = ("_notify", "context", "number")

    def __init__(self, number: int, context: bytes | None, notify: Callable[..., None]) -> None:
        """*number* is the request's on the link to the coordinator, where *notify* calls services."""
        self.context = context
        self.number = number
        self._notify = notify

    def on_computed(self, queued: int, laid_out: int, started: int, ended: int, done: int) -> None:
        """See `Trace`; called before the last response, which the coordinator gets after this."""
        self._notify("computed", self.number, queued, laid_out, started, ended, done)

    on_composed = on_computed  # an ensemble or a cache that answers it measures the same five times

    def start_child(self, request: InferRequest, sink: Sink) -> Sink:  # noqa: ARG002 - see `Trace`
        """The sink itself: calls go to the coordinator, where the child begins."""
        return sink

    def on_rejected(self) -> None:
        """Nothing to do: the coordinator gets the error."""
