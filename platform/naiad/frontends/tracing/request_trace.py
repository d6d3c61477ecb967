"""The trace of one request and of those it leads to, whatever becomes of what is noted.

A client's request has the root of a tree. Steps of ensembles, and calls of models that hand the trace on, have
children. Kinds of traces say where notes go: into files (`trace_records`), into spans (`trace_spans`).
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import NamedTuple

from naiad.errors import NaiadError
from naiad.protocol.inference import InferRequest, InferResponse, Sink


class Computation(NamedTuple):
    """When a model worked on a request: monotonic nanoseconds.

    Attributes:
        start: It was taken to a guest.
        input_end: It began there.
        output_start: It was finished there.
        end: It was answered.
    """

    start: int
    input_end: int
    output_start: int
    end: int


class RequestTrace(ABC):
    """What is noted of one request; times are nanoseconds of the monotonic clock."""

    __slots__ = ("_behind", "request")

    def __init__(self, request: InferRequest) -> None:
        self.request = request
        self._behind = request.trace  # an ensemble's step looks at times itself

    @property
    @abstractmethod
    def context(self) -> bytes:
        """What the model is told, as JSON; empty where there is nothing to tell."""

    @abstractmethod
    def note(self, name: str, when: int) -> None:
        """Note what happened to the request in the server."""

    @abstractmethod
    def note_transport(self, name: str, when: int) -> None:
        """Note what happened on the client's connection."""

    @abstractmethod
    def note_computation(self, times: Computation) -> None:
        """Note how a model worked on it."""

    @abstractmethod
    def begin(self) -> None:
        """Note what is asked."""

    @abstractmethod
    def answered(self, response: InferResponse) -> None:
        """Note a response."""

    @abstractmethod
    def end_request(self, error: NaiadError | None) -> None:
        """The request has its last response, which was an error or not."""

    @abstractmethod
    def end(self) -> None:
        """Nothing more will be noted."""

    @abstractmethod
    def child_of(self, request: InferRequest) -> RequestTrace:
        """Make the trace of a request that this one leads to."""

    # -- what the engine calls (`protocol.inference.Trace`) -----------------------------------------------------

    def on_computed(self, queued: int, laid_out: int, started: int, ended: int, done: int) -> None:
        """Note when the request was queued, and how a model worked on it."""
        if self._behind is not None:
            self._behind.on_computed(queued, laid_out, started, ended, done)
        self.note("QUEUE_START", queued)
        self.note_computation(Computation(laid_out, started, ended, done))

    def on_composed(self, queued: int, laid_out: int, started: int, ended: int, done: int) -> None:
        """Note when a request to an ensemble was queued: what was computed is in its steps' traces."""
        if self._behind is not None:
            self._behind.on_composed(queued, laid_out, started, ended, done)
        self.note("QUEUE_START", queued)

    def start_child(self, request: InferRequest, sink: Sink) -> Sink:
        """Trace a request that this one leads to; return the sink for its responses."""
        trace = self.child_of(request)
        request.trace = trace
        trace.begin()
        return _ChildSink(trace, sink)

    def on_rejected(self) -> None:
        """Note that it was not taken up: by no means an error of the server."""
        self.end_request(None)
        self.end()


class _ChildSink:
    """Notes responses to a request that another one led to, on their way to that."""

    __slots__ = ("_sink", "_trace")

    def __init__(self, trace: RequestTrace, sink: Sink) -> None:
        self._trace = trace
        self._sink = sink

    def send(self, response: InferResponse | None, final: bool) -> None:  # noqa: FBT001 - Sink
        """Take a response."""
        trace = self._trace
        if response is not None:
            trace.answered(response)
        if final:
            # Before the response goes on: what it leads to may end the request that this one belongs to.
            trace.end_request(None if response is None else response.error)
            trace.end()
        self._sink.send(response, final)


class RootSink:
    """Notes responses to a client's request, on their way to its connection."""

    __slots__ = ("_protocol", "_sink", "_trace")

    def __init__(self, trace: RequestTrace, sink: Sink, protocol: str) -> None:
        self._trace = trace
        self._sink = sink
        self._protocol = protocol
        received = "RECV" if protocol == "HTTP" else "WAITREAD"
        # The connection tells of a request once it is whole, so that both times are the one of its arrival.
        now = time.monotonic_ns()
        trace.note_transport(f"{protocol}_{received}_START", now)
        trace.note_transport(f"{protocol}_{received}_END", now)
        trace.begin()

    def send(self, response: InferResponse | None, final: bool) -> None:  # noqa: FBT001 - Sink
        """Take a response."""
        trace = self._trace
        if response is not None:
            trace.answered(response)
        trace.note_transport("INFER_RESPONSE_COMPLETE", time.monotonic_ns())
        if final:
            trace.end_request(None if response is None else response.error)
        trace.note_transport(f"{self._protocol}_SEND_START", time.monotonic_ns())
        self._sink.send(response, final)
        trace.note_transport(f"{self._protocol}_SEND_END", time.monotonic_ns())
        if final:
            trace.end()
