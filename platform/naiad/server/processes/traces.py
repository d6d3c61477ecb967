"""Traces of requests that pass between two processes: they are kept where they begin.

The monotonic clock is the same in all processes, so times are recorded as another process has measured them.
"""

from __future__ import annotations

from collections.abc import Callable

from naiad.core import clock
from naiad.core.errors import NaiadError
from naiad.frontends.tracing.request_trace import TraceRecorder, record_answer, record_sending
from naiad.protocol.delivery import reject_sink
from naiad.protocol.inference import InferRequest, InferResponse, Sink


class RemoteTrace:
    """Implements `naiad.protocol.inference.Trace` in the process that executes a request of the coordinator."""

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


class TimedSink:
    """Passes on the responses to a request that the coordinator traces, and reports when the connection took them."""

    __slots__ = ("_notify", "_number", "_sink")

    def __init__(self, number: int, sink: Sink, notify: Callable[..., None]) -> None:
        self._number = number
        self._sink = sink
        self._notify = notify

    def send(self, response: InferResponse | None, final: bool) -> None:  # noqa: FBT001 - the signature of Sink
        began = clock.monotonic_ns()
        self._sink.send(response, final)
        self._notify("traced_sending", self._number, began, clock.monotonic_ns(), final)

    def reject(self, error: NaiadError) -> None:
        began = clock.monotonic_ns()
        reject_sink(self._sink, error)
        self._notify("traced_sending", self._number, began, clock.monotonic_ns(), True)


class TracedSink:
    """The coordinator's sink of a traced request of another process.

    The trace ends once its last response was sent, or cannot be any more.
    """

    __slots__ = ("_is_answered", "_is_gone", "_protocol", "_recorder", "_sink")

    def __init__(self, recorder: TraceRecorder, sink: Sink, protocol: str) -> None:
        self._recorder = recorder
        self._sink = sink
        self._protocol = protocol
        self._is_answered = False
        self._is_gone = False

    def send(self, response: InferResponse | None, final: bool) -> None:  # noqa: FBT001 - the signature of Sink
        record_answer(self._recorder, response, final=final)
        self._is_answered = final
        self._sink.send(response, final)
        self._end()

    def reject(self, error: NaiadError) -> None:
        """See `RejectableSink`: no failure of the model."""
        self._recorder.end_request(None)
        self._is_answered = True
        reject_sink(self._sink, error)
        self._end()

    def _end(self) -> None:
        if self._is_answered and self._is_gone:
            self._recorder.close()

    def on_sent(self, began: int, ended: int, *, final: bool) -> None:
        record_sending(self._recorder, self._protocol, began, ended)
        if final:
            self._recorder.close()

    def on_process_end(self) -> None:
        self._is_gone = True
        self._end()
