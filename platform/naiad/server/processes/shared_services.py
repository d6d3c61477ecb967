"""What one process has for all: other processes ask the coordinator for it, which tells them of changes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from naiad.core.logs import ActiveLog, LogSettings
from naiad.engine.facade import EngineFacade
from naiad.protocol.inference import InferRequest, Sink, SubmittedRequest
from naiad.protocol.model_metrics import ModelMetricFamily
from naiad.server.processes.messages import TracedArrival
from naiad.server.processes.remote_engine import RemoteEngine

if TYPE_CHECKING:  # which the other processes do not have
    from naiad.server.processes.pool import ProcessPool


class SharedLog:
    """Implements `ServerLog` in the coordinator: changes its own log, and has the other processes change theirs."""

    def __init__(self, log: ActiveLog, processes: ProcessPool) -> None:
        self._log = log
        self._processes = processes
        self.is_verbose = log.is_verbose

    @property
    def settings(self) -> LogSettings:
        return self._log.settings

    async def change(self, settings: LogSettings) -> None:
        self._log.apply(settings)
        self.is_verbose = self._log.is_verbose
        self._processes.broadcast("log_settings", settings)
        await self._processes.wait_sent()


class RemoteLog:
    """Implements `ServerLog` in a process beside the coordinator."""

    def __init__(self, log: ActiveLog, engine: RemoteEngine) -> None:
        self._log = log
        self._engine = engine
        self.apply(engine.ask("log_settings"))  # this process may have been started after a change
        engine.services["log_settings"] = self.apply
        engine.services["reopen_log"] = log.reopen

    @property
    def settings(self) -> LogSettings:
        self.apply(self._engine.ask("log_settings"))
        return self._log.settings

    async def change(self, settings: LogSettings) -> None:
        await self._engine.call("change_log", settings)
        self.apply(settings)

    def apply(self, settings: LogSettings) -> None:
        """Apply *settings* in this process."""
        self._log.apply(settings)
        self.is_verbose = self._log.is_verbose


class RemoteTracer:
    """Implements `RequestTracer` in a process beside the coordinator, which decides and writes all traces.

    While traces are on, other processes send it requests with what a trace needs of them. So it samples the requests of
    all processes in one sequence. For each request that it traces, the process with the connection reports when the
    response was sent.
    """

    def __init__(self, engine: RemoteEngine) -> None:
        self._engine = engine
        # The coordinator announces changes, and waits until each process has taken them in.
        self.is_on: bool = engine.ask("is_tracing")
        engine.services["tracing"] = self._switch

    def _switch(self, is_on: bool) -> None:  # noqa: FBT001 - by its position, from the link
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


class RemoteMetrics:
    """The models' own metrics, read from the coordinator."""

    def __init__(self, engine: RemoteEngine) -> None:
        self._engine = engine

    def __iter__(self) -> Iterator[ModelMetricFamily]:
        return iter(self._engine.ask("model_metrics"))


class RemoteState:
    """The documents of the page, read from the coordinator."""

    def __init__(self, engine: RemoteEngine) -> None:
        self._engine = engine

    async def document(self, name: str, *arguments: str) -> Any:
        return await self._engine.call("console_document", name, *arguments)
