"""Traces of requests: which are traced, what is noted of them, and settings that change while the server runs.

Rules and texts: SRV src/tracer.cc. A request that is not traced costs the look at `Tracer.is_on`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import fields, replace
from types import MappingProxyType
from typing import Any

from naiad.config.server.trace_options import OpenTelemetryConfig, TraceConfig
from naiad.engine.door import EngineDoor
from naiad.errors import InvalidRequestError, NaiadError
from naiad.frontends.tracing.files import TraceFile
from naiad.frontends.tracing.records import RecordedTrace
from naiad.frontends.tracing.request_trace import RequestTrace, RootSink
from naiad.frontends.tracing.spans import SpanExport
from naiad.protocol.inference import InferRequest, Sink

logger = logging.getLogger("naiad.trace")

NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class _Setting:
    """One effective setting and what was sampled under it."""

    def __init__(self, options: TraceConfig, file: TraceFile) -> None:
        self.options = options
        self.left = options.count
        self._file = file
        self._seen = 0
        self._batch: list[list[dict[str, Any]]] = []

    def is_on(self) -> bool:
        options = self.options
        if options.open_telemetry is not None:  # which traces requests that come with a context, whatever else is set
            return "TIMESTAMPS" in options.levels
        return bool(options.levels and options.rate and options.file) and self.left != 0

    def samples(self) -> bool:
        """Whether the next request is traced, where it comes without a context."""
        if not (self.options.rate and self.left and self.is_on()):
            return False
        self._seen += 1
        if self._seen % self.options.rate:
            return False
        self.left -= self.left > 0
        return True

    def take(self, events: list[dict[str, Any]]) -> None:
        if not self.options.log_frequency:
            self._file.add(events)
            return
        self._batch.append(events)
        if len(self._batch) >= self.options.log_frequency:
            self.flush()

    def flush(self) -> None:
        if self._batch:
            self._file.write_numbered(self._batch)
            self._batch = []


class Tracer:
    """Decides which requests are traced, by settings for all models and for single ones.

    Attributes:
        is_on: Whether any request may be traced.
    """

    def __init__(self, options: TraceConfig | None = None) -> None:
        self._defaults = options or TraceConfig()
        self._file = TraceFile(self._defaults.file)
        self._changes: dict[str, dict[str, Any]] = {"": {}}
        self._settings = {"": _Setting(self._defaults, self._file)}
        self.is_on = self._settings[""].is_on()
        exported = self._defaults.open_telemetry
        self._export = None if exported is None else SpanExport(exported)
        self._warn_of_tensors(self._defaults)

    def submit(
        self, engine: EngineDoor, request: InferRequest, sink: Sink, protocol: str, headers: Mapping[str, str]
    ) -> int:
        """Submit a request, which is traced if its turn has come, or if a context came with it; return its ticket.

        Args:
            engine: Who answers.
            request: The request.
            sink: Gets its responses.
            protocol: `HTTP` or `GRPC`.
            headers: Those of `PROPAGATED` that came with it.

        Raises:
            NaiadError: If the engine refuses it.
        """
        traced = self.traced(request, sink, protocol, headers)
        try:
            return engine.submit(request, traced)
        except NaiadError:
            if request.trace is not None:
                request.trace.on_rejected()
            raise

    def traced(self, request: InferRequest, sink: Sink, protocol: str, headers: Mapping[str, str] = NO_HEADERS) -> Sink:
        """Trace a request if its turn has come, or if a context came with it; return the sink for its responses."""
        setting = self._settings.get(request.model_name) or self._settings[""]
        trace: RequestTrace
        if self._export is None:
            if not setting.samples():
                return sink
            trace = RecordedTrace.root(request, setting.options.levels, setting.take)
        else:
            context = self._export.context_of(headers) if setting.is_on() else None
            if not setting.samples() and context is None:
                return sink
            trace = self._export.root(request, context)
        request.trace = trace
        return RootSink(trace, sink, protocol)

    def settings(self, model: str = "") -> dict[str, str | list[str]]:
        """The settings that hold for all models or for one, as clients see them."""
        setting = self._settings.get(model) or self._settings[""]
        options = setting.options
        found: dict[str, str | list[str]] = {
            "trace_level": list(options.levels) or ["OFF"],
            "trace_rate": str(options.rate),
            "trace_count": str(setting.left),
        }
        if options.open_telemetry is None:
            found |= {"log_frequency": str(options.log_frequency), "trace_file": options.file}
        found["trace_mode"] = options.mode
        return found | exporter_settings(options.open_telemetry)

    def change(self, model: str, changes: Mapping[str, Any]) -> None:
        """Set fields of `TraceConfig` for all models (no name) or one; None gives a field back to the general setting.

        Raises:
            InvalidRequestError: If nothing could be traced so, though it should be.
        """
        if not changes:
            return
        own = {**self._changes.get(model, {}), **changes}
        own = {field: value for field, value in own.items() if value is not None}
        effective = self._effective({**self._changes, model: own}, model)
        _check(effective)
        self._warn_of_tensors(effective)
        self._changes[model] = own
        for name, setting in list(self._settings.items()):
            if model in {"", name}:
                setting.flush()
                del self._settings[name]
        if not own and model:
            del self._changes[model]
        for name in self._changes:
            if name not in self._settings:
                self._settings[name] = _Setting(self._effective(self._changes, name), self._file)
        self.is_on = any(setting.is_on() for setting in self._settings.values())

    def close(self) -> None:
        """Write what was traced."""
        for setting in self._settings.values():
            setting.flush()
        self._file.close()
        if self._export is not None:
            self._export.close()

    @staticmethod
    def _warn_of_tensors(options: TraceConfig) -> None:
        if options.open_telemetry is not None and "TENSORS" in options.levels:
            logger.error("Tensor level tracing is not supported by the mode: opentelemetry")

    def _effective(self, changes: Mapping[str, Mapping[str, Any]], model: str) -> TraceConfig:
        return replace(self._defaults, **{**changes[""], **changes[model]})


def _check(options: TraceConfig) -> None:
    reason = ""
    if options.levels and not options.rate:
        reason = "sample rate must be non-zero"
    elif options.levels and not options.file and options.open_telemetry is None:
        reason = "trace file name is not given"
    if reason:
        raise InvalidRequestError(f"Attempting to set invalid trace setting :{reason}")


def exporter_settings(options: OpenTelemetryConfig | None) -> dict[str, str | list[str]]:
    """How spans are exported, if they are, as clients see it: what was given more than once is a list."""
    found: dict[str, str | list[str]] = {}
    if options is None:
        return found
    for field in fields(options):
        value = getattr(options, field.name)
        if isinstance(value, int):
            found[field.name] = str(value)
        elif value:
            found[field.name] = list(value) if len(value) > 1 else value[0]
    return found
