"""Calls of a process's guests to models whose only instances are in another process than this one and the coordinator.

They take the link between both processes, with their tensors in shared memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

from naiad.core.errors import NaiadError
from naiad.engine.calls.model_calls import Events
from naiad.guests.worker import Worker
from naiad.protocol.delivery import reject_sink
from naiad.protocol.inference import InferRequest, InferResponse, Sink

__all__ = ["HomeCall", "HomeInstances", "TakenBackSink"]


class HomeInstances(NamedTuple):
    """Stands for the guests of a version in another process, where it is reported what calls wait for.

    Attributes:
        load: The number of the version's load.
    """

    load: int


class _PlainConfig(NamedTuple):
    """Implements `CallConfig`."""

    decoupled: bool


class HomeCall:
    """One call for one response to a version in another process; implements `CallTarget`.

    Attributes:
        config: What is known of the version's configuration.
        reason: Empty: the other process knows whether the version can serve.
        device: Nothing: tensors in GPU memory do not pass between processes.
        gpus: None, for the same reason.
        on_taken_back: Called if the other process does not have the version any more.
    """

    config = _PlainConfig(decoupled=False)
    reason = ""
    device = 0
    gpus = None

    def __init__(self, send: Callable[[InferRequest, Sink], int], cancel: Callable[[int], None], load: int) -> None:
        """A call that is not sent yet.

        Args:
            send: Sends a request, which an idle instance is to take, to the version; the request's number.
            cancel: Cancels the request with a number, and drops its response.
            load: The number of the version's load.
        """
        self.on_taken_back: Callable[[], None] = lambda: None
        self._send = send
        self._cancel = cancel
        self._load = load
        self._sink: TakenBackSink | None = None

    def submit(self, request: InferRequest, sink: Sink, *, needs_idle: bool = False) -> int:  # noqa: ARG002 - as `Target`
        """See `Target`, as for the methods below."""
        self._sink = TakenBackSink(sink, self.on_taken_back)
        return self._send(request, self._sink)

    def cancel(self, key: int) -> None:
        """Its response is dropped, too: a call for one response is cancelled only when nothing waits for it."""
        self._cancel(key)

    def drop_responses(self, key: int) -> None:
        """Nothing waits for the response: the other process need not go on."""
        self._cancel(key)

    def confirm_sent(self, key: int, count: int) -> None:
        """Nothing: a call for one response has no use for that."""

    def reject_waiting(self, key: int, error: NaiadError) -> None:
        """Answer the call with *error*, whether or not it waits: the coordinator has found that it never ends."""
        sink, self._sink = self._sink, None
        if sink is not None:
            self._cancel(key)
            sink.end(InferResponse("", -1, error=error))

    def is_waiting(self, key: int) -> bool:  # noqa: ARG002 - the signature of `Target`
        """False: nothing is known of that here, and nothing is decided by it."""
        return False

    def waits_of(self, key: int) -> Events:  # noqa: ARG002 - the signature of `Target`
        """Its instances, for the report to the coordinator."""
        return cast("Sequence[Sequence[Worker]]", ((HomeInstances(self._load),),))


class TakenBackSink:
    """Passes on the response to a call, unless the call comes back or ends before."""

    __slots__ = ("_on_taken_back", "_sink")

    def __init__(self, sink: Sink, on_taken_back: Callable[[], None]) -> None:
        self._sink: Sink | None = sink
        self._on_taken_back = on_taken_back

    def send(self, response: InferResponse | None, final: bool) -> None:  # noqa: FBT001 - the signature of Sink
        """See `Sink.send`."""
        if self._sink is not None:
            self._sink.send(response, final)

    def reject(self, error: NaiadError) -> None:
        """See `RejectableSink`."""
        if self._sink is not None:
            reject_sink(self._sink, error)

    def end(self, response: InferResponse) -> None:
        """Pass on a last response, and nothing that comes afterwards."""
        self.send(response, True)
        self._sink = None

    def take_back(self) -> None:
        """The other process does not have the version any more."""
        self._sink = None
        self._on_taken_back()
