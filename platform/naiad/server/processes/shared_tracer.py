"""Traces of requests that reach the server in several processes: the owner decides, and writes all of them.

While traces are on, frontend processes send requests with what a trace needs of them. So the owner samples the requests
of all processes in one sequence. For each request that it traces, the frontend process reports when the response was
sent.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from naiad.engine.door import EngineDoor
from naiad.frontends.tracing.request_trace import TraceRecorder, record_answer, record_sending
from naiad.protocol.inference import InferRequest, InferResponse, Sink
from naiad.server.processes.messages import TracedArrival
from naiad.server.processes.remote_engine import RemoteEngine


class RemoteTracer:
    """Implements `RequestTracer` in a frontend process.

    Attributes:
        is_on: See `RequestTracer`; the owner announces changes, and waits until each process has taken them in.
    """

    def __init__(self, engine: RemoteEngine) -> None:
        self._engine = engine
        self.is_on: bool = engine.ask("is_tracing")

    def submit(
        self,
        engine: EngineDoor,  # noqa: ARG002 - the signature of `RequestTracer`
        request: InferRequest,
        sink: Sink,
        protocol: str,
        headers: Mapping[str, str],
    ) -> int:
        """See `RequestTracer`."""
        return self._engine.submit(request, sink, TracedArrival(protocol, time.monotonic_ns(), dict(headers)))

    def settings(self, model: str = "") -> Mapping[str, str | list[str]]:
        """See `RequestTracer`."""
        found: Mapping[str, str | list[str]] = self._engine.ask("trace_settings", model)
        return found

    def change(self, model: str, changes: Mapping[str, Any]) -> None:
        """See `RequestTracer`."""
        if changes:
            self._engine.ask("change_traces", model, dict(changes))

    def reopen(self) -> None:
        """See `RequestTracer`: the owner has the file."""

    def close(self) -> None:
        """See `RequestTracer`: nothing is pending here."""


class TracedSink:
    """The owner's sink of a traced request. The trace ends once its last response was sent, or cannot be any more."""

    __slots__ = ("_announce", "_is_answered", "_is_gone", "_protocol", "_recorder", "_sink")

    def __init__(self, recorder: TraceRecorder, sink: Sink, protocol: str, announce: Callable[[], None]) -> None:
        """A sink in front of another one.

        Args:
            recorder: Records the responses.
            sink: Sends them to the frontend process.
            protocol: `HTTP` or `GRPC`.
            announce: Has the frontend process report when it has sent them; called before the first one.
        """
        self._recorder = recorder
        self._sink = sink
        self._protocol = protocol
        self._announce: Callable[[], None] | None = announce
        self._is_answered = False
        self._is_gone = False

    def send(self, response: InferResponse | None, final: bool) -> None:  # noqa: FBT001 - the signature of Sink
        """Record a response and send it."""
        if self._announce is not None:
            self._announce()
            self._announce = None
        record_answer(self._recorder, response, final=final)
        self._is_answered = final
        self._sink.send(response, final)
        if final and self._is_gone:
            self._recorder.close()

    def on_sent(self, began: int, ended: int, *, final: bool) -> None:
        """The frontend process has sent a response."""
        record_sending(self._recorder, self._protocol, began, ended)
        if final:
            self._recorder.close()

    def on_process_end(self) -> None:
        """The frontend process has exited."""
        self._is_gone = True
        if self._is_answered:
            self._recorder.close()
