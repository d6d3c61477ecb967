"""Traces of requests that reach the server in several processes: the coordinator decides, and writes all of them.

While traces are on, other processes send it requests with what a trace needs of them. So it samples the requests of all
processes in one sequence. For each request that it traces, the process with the connection reports when the response
was sent.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from naiad.engine.facade import EngineFacade
from naiad.protocol.inference import InferRequest, Sink, SubmittedRequest
from naiad.server.processes.messages import TracedArrival
from naiad.server.processes.remote_engine import RemoteEngine


class RemoteTracer:
    """Implements `RequestTracer` in a process beside the coordinator."""

    def __init__(self, engine: RemoteEngine) -> None:
        self._engine = engine
        # The coordinator announces changes, and waits until each process has taken them in.
        self.is_on: bool = engine.ask("is_tracing")

    def switch(self, is_on: bool) -> None:  # noqa: FBT001 - by its position, from the link
        self.is_on = is_on

    def submit(
        self,
        engine: EngineFacade,  # noqa: ARG002 - the signature of `RequestTracer`
        request: InferRequest,
        sink: Sink,
        protocol: str,
        headers: Mapping[str, str],
    ) -> SubmittedRequest:
        return self._engine.submit(request, sink, TracedArrival(protocol, time.monotonic_ns(), dict(headers)))

    def settings(self, model: str = "") -> Mapping[str, str | list[str]]:
        found: Mapping[str, str | list[str]] = self._engine.ask("trace_settings", model)
        return found

    async def change(self, model: str, changes: Mapping[str, Any]) -> None:
        if changes:
            await self._engine.call("change_traces", model, dict(changes))

    def reopen(self) -> None:
        """See `RequestTracer`: the coordinator has the file."""

    def close(self) -> None:
        """See `RequestTracer`: nothing is pending here."""
