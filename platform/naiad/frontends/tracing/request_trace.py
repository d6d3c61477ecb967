"""The trace of one request: what the engine calls, the sinks in front of a client's, and the recorder behind them.

A client's request is the root of a tree. Steps of an ensemble, and calls of models that pass the trace on, are its
children. `RequestTrace` is what the engine knows (`protocol.inference.Trace`). Its `TraceRecorder` decides what to
store: JSON records for files (`records`), or spans of OpenTelemetry (`spans`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from naiad.core.errors import NaiadError
from naiad.protocol.delivery import reject_sink
from naiad.protocol.inference import InferRequest, InferResponse, Sink


class ComputeTimes(NamedTuple):
    """When a model executed a request, in nanoseconds of the monotonic clock."""

    start: int  # the host began to send it to a guest
    input_end: int  # the guest began to execute
    output_start: int  # the guest finished executing
    end: int  # the host received the response

    def events(self) -> Iterator[tuple[str, int]]:
        """The times by the names of their events, in order."""
        names = ("COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END")
        return zip(names, self, strict=True)


class TraceRecorder(Protocol):
    """Stores what happens to one request; times are nanoseconds of the monotonic clock."""

    @property
    def context(self) -> bytes:
        """Context for spans of the model's own, as JSON; empty for none."""

    def record(self, name: str, when: int) -> None:
        """Record an event in the server."""

    def record_transport(self, name: str, when: int) -> None:
        """Record an event on the client's connection."""

    def record_compute(self, times: ComputeTimes) -> None:
        """Record the execution by a model."""

    def begin(self) -> None:
        """Record the start of the request and its inputs."""

    def record_response(self, response: InferResponse) -> None:
        """Record a response."""

    def end_request(self, error: NaiadError | None) -> None:
        """Record the end of the request, and its error if it has failed."""

    def close(self) -> None:
        """Finish the record: nothing follows."""

    def create_child(self, request: InferRequest) -> TraceRecorder:
        """A recorder for a request that this one causes."""


class RequestTrace:
    """Passes the engine's notes about one request to its recorder."""

    __slots__ = ("_outer", "recorder")

    def __init__(self, request: InferRequest, recorder: TraceRecorder) -> None:
        self.recorder = recorder
        self._outer = request.trace  # an ensemble installs its own trace on a step to measure it

    @property
    def context(self) -> bytes:
        return self.recorder.context

    def on_computed(self, queued: int, laid_out: int, started: int, ended: int, done: int) -> None:
        if self._outer is not None:
            self._outer.on_computed(queued, laid_out, started, ended, done)
        self.recorder.record("QUEUE_START", queued)
        self.recorder.record_compute(ComputeTimes(laid_out, started, ended, done))

    def on_composed(self, queued: int, laid_out: int, started: int, ended: int, done: int) -> None:
        """Record when a request to an ensemble was queued; the traces of its steps have the executions."""
        if self._outer is not None:
            self._outer.on_composed(queued, laid_out, started, ended, done)
        self.recorder.record("QUEUE_START", queued)

    def start_child(self, request: InferRequest, sink: Sink) -> Sink:
        recorder = self.recorder.create_child(request)
        request.trace = RequestTrace(request, recorder)
        recorder.begin()
        return _ChildSink(recorder, sink)

    def on_rejected(self) -> None:
        record_rejection(self.recorder)


@dataclass(slots=True, eq=False)
class _ChildSink:
    """Records the responses to a request that another request caused, and passes them on."""

    _recorder: TraceRecorder
    _sink: Sink

    def send(self, response: InferResponse | None, final: bool) -> None:  # noqa: FBT001 - signature of Sink
        recorder = self._recorder
        if response is not None:
            recorder.record_response(response)
        if final:
            # Before the response is passed on: it may end the parent's request, and with it the whole tree.
            recorder.end_request(None if response is None else response.error)
            recorder.close()
        self._sink.send(response, final)

    def reject(self, error: NaiadError) -> None:
        record_rejection(self._recorder)
        reject_sink(self._sink, error)


def begin_trace(recorder: TraceRecorder, protocol: str, received: int) -> None:
    """Record the beginning of a client's request, which had arrived at *received* (monotonic ns)."""
    word = "RECV" if protocol == "HTTP" else "WAITREAD"
    # The connection reports a request once it is complete, so both events get the time of its arrival.
    recorder.record_transport(f"{protocol}_{word}_START", received)
    recorder.record_transport(f"{protocol}_{word}_END", received)
    recorder.begin()


def record_answer(recorder: TraceRecorder, response: InferResponse | None, *, final: bool) -> None:
    """Record a response to a client's request before it is sent."""
    if response is not None:
        recorder.record_response(response)
    recorder.record_transport("INFER_RESPONSE_COMPLETE", time.monotonic_ns())
    if final:
        recorder.end_request(None if response is None else response.error)


def record_rejection(recorder: TraceRecorder) -> None:
    """Record the end of a rejected request; not as a failure, since the client caused it."""
    recorder.end_request(None)
    recorder.close()


def record_sending(recorder: TraceRecorder, protocol: str, began: int, ended: int) -> None:
    """Record when the connection took a response (monotonic ns)."""
    recorder.record_transport(f"{protocol}_SEND_START", began)
    recorder.record_transport(f"{protocol}_SEND_END", ended)


@dataclass(slots=True, eq=False)
class RootSink:
    """Records the responses to a client's request, and passes them to its connection."""

    _recorder: TraceRecorder
    _sink: Sink
    _protocol: str

    def send(self, response: InferResponse | None, final: bool) -> None:  # noqa: FBT001 - signature of Sink
        recorder = self._recorder
        record_answer(recorder, response, final=final)
        began = time.monotonic_ns()
        self._sink.send(response, final)
        record_sending(recorder, self._protocol, began, time.monotonic_ns())
        if final:
            recorder.close()

    def reject(self, error: NaiadError) -> None:
        record_rejection(self._recorder)
        reject_sink(self._sink, error)
