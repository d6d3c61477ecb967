"""The sink of a traced request of another process, which reports when it has sent the responses."""

from __future__ import annotations

from collections.abc import Callable

from naiad.core.errors import NaiadError
from naiad.frontends.tracing.request_trace import TraceRecorder, record_answer, record_sending
from naiad.protocol.delivery import reject_sink
from naiad.protocol.inference import InferResponse, Sink


class TracedSink:
    """The coordinator's sink of a traced request of another process.

    The trace ends once its last response was sent, or cannot be any more.
    """

    __slots__ = ("_announce", "_is_answered", "_is_gone", "_protocol", "_recorder", "_sink")

    def __init__(self, recorder: TraceRecorder, sink: Sink, protocol: str, announce: Callable[[], None]) -> None:
        """*announce* has that process report when it has sent the responses; it is called before the first one."""
        self._recorder = recorder
        self._sink = sink
        self._protocol = protocol
        self._announce: Callable[[], None] | None = announce
        self._is_answered = False
        self._is_gone = False

    def send(self, response: InferResponse | None, final: bool) -> None:  # noqa: FBT001 - the signature of Sink
        if self._announce is not None:
            self._announce()
            self._announce = None
        record_answer(self._recorder, response, final=final)
        self._is_answered = final
        self._sink.send(response, final)
        if final and self._is_gone:
            self._recorder.close()

    def reject(self, error: NaiadError) -> None:
        """See `RejectableSink`: no failure of the model."""
        if self._announce is not None:
            self._announce()
            self._announce = None
        self._recorder.end_request(None)
        self._is_answered = True
        reject_sink(self._sink, error)
        if self._is_gone:
            self._recorder.close()

    def on_sent(self, began: int, ended: int, *, final: bool) -> None:
        record_sending(self._recorder, self._protocol, began, ended)
        if final:
            self._recorder.close()

    def on_process_end(self) -> None:
        self._is_gone = True
        if self._is_answered:
            self._recorder.close()
