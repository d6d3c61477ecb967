"""Decides which requests are traced, by settings that clients can change while the server runs.

Rules and texts: SRV src/tracer.cc. While tracing is off, a request costs one check of `Tracer.is_on`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import fields, replace
from typing import Any

from naiad.config.server.trace_options import OpenTelemetryConfig, TraceConfig
from naiad.core.errors import InvalidRequestError, NaiadError
from naiad.engine.facade import EngineFacade
from naiad.frontends.tracing.files import BATCH_SIZE, TraceFile
from naiad.frontends.tracing.records import CompleteTrace, JsonRecorder
from naiad.frontends.tracing.request_trace import RequestTrace, RootSink, TraceRecorder, begin_trace
from naiad.frontends.tracing.spans import SpanExporter
from naiad.protocol.inference import NO_HEADERS, InferRequest, Sink, SubmittedRequest

logger = logging.getLogger("naiad.trace")


class _EffectiveSettings:
    """The settings that apply to one model, or to all others, and the state of sampling under them."""

    def __init__(self, options: TraceConfig, file: TraceFile) -> None:
        self.options = options
        self.remaining = options.count  # requests that may still be traced; -1 for no limit
        self.on_omitted = file.on_omitted
        self.on_dropped = file.on_dropped
        self._file = file
        self._seen = 0
        self._batch: list[CompleteTrace] = []
        self._batch_size = 0

    def is_on(self) -> bool:
        options = self.options
        if options.open_telemetry is not None:  # requests with a trace context are traced regardless of rate and count
            return "TIMESTAMPS" in options.levels
        return bool(options.levels and options.rate and options.file) and self.remaining != 0

    def sample(self) -> bool:
        """Count a request; return whether its turn to be traced has come."""
        if not (self.options.rate and self.remaining and self.is_on()):
            return False
        self._seen += 1
        if self._seen % self.options.rate:
            return False
        self.remaining -= self.remaining > 0  # -1 stays -1
        return True

    def write(self, trace: CompleteTrace) -> None:
        if not self.options.log_frequency:
            self._file.add(trace)
            return
        self._batch.append(trace)
        self._batch_size += trace.size
        # The frequency may be any number, the memory of traces may not.
        if len(self._batch) >= self.options.log_frequency or self._batch_size >= BATCH_SIZE:
            self.flush()

    def flush(self) -> None:
        if self._batch:
            self._file.write_numbered(self._batch)
            self._batch, self._batch_size = [], 0


class Tracer:
    """Traces requests by settings for all models and for single models."""

    def __init__(self, options: TraceConfig | None = None) -> None:
        self._defaults = options or TraceConfig()
        self._file = TraceFile(self._defaults.file)
        self._changes: dict[str, dict[str, Any]] = {"": {}}
        self._settings = {"": _EffectiveSettings(self._defaults, self._file)}
        self.is_on = self._settings[""].is_on()
        self.on_change: Callable[[bool], Awaitable[None]] = _announce_nothing  # other processes trace, too
        exporter = self._defaults.open_telemetry
        self._exporter = None if exporter is None else SpanExporter(exporter)
        self._warn_about_tensors(self._defaults)

    def submit(
        self, engine: EngineFacade, request: InferRequest, sink: Sink, protocol: str, headers: Mapping[str, str]
    ) -> SubmittedRequest:
        wrapped = self.wrap_sink(request, sink, protocol, headers)
        try:
            return engine.submit(request, wrapped)
        except NaiadError:
            if request.trace is not None:
                request.trace.on_rejected()
            raise

    def wrap_sink(
        self, request: InferRequest, sink: Sink, protocol: str, headers: Mapping[str, str] = NO_HEADERS
    ) -> Sink:
        """Trace a request if it is sampled or has a trace context; return the sink for its responses."""
        recorder = self.start(request, protocol, headers, time.monotonic_ns())
        return sink if recorder is None else RootSink(recorder, sink, protocol)

    def start(
        self, request: InferRequest, protocol: str, headers: Mapping[str, str], received: int
    ) -> TraceRecorder | None:
        """Begin the trace of a request that arrived at *received* (monotonic ns), if it is traced, else None."""
        settings = self._settings.get(request.model_name) or self._settings[""]
        recorder: TraceRecorder
        if self._exporter is None:
            if not settings.sample():
                return None
            recorder = JsonRecorder.root(request, settings.options.levels, settings)
        else:
            context = self._exporter.context_of(headers) if settings.is_on() else None
            if not settings.sample() and context is None:
                return None
            recorder = self._exporter.start(request, context, received)
        request.trace = RequestTrace(request, recorder)
        begin_trace(recorder, protocol, received)
        return recorder

    def settings(self, model: str = "") -> dict[str, str | list[str]]:
        settings = self._settings.get(model) or self._settings[""]
        options = settings.options
        found: dict[str, str | list[str]] = {
            "trace_level": list(options.levels) or ["OFF"],
            "trace_rate": str(options.rate),
            "trace_count": str(settings.remaining),
        }
        if options.open_telemetry is None:
            found |= {"log_frequency": str(options.log_frequency), "trace_file": options.file}
        found["trace_mode"] = options.mode
        return found | exporter_settings(options.open_telemetry)

    async def change(self, model: str, changes: Mapping[str, Any]) -> None:
        if changes:
            self.apply(model, changes)
            await self.on_change(self.is_on)

    def apply(self, model: str, changes: Mapping[str, Any]) -> None:
        """Set fields: `change` for this process alone."""
        overrides = {**self._changes.get(model, {}), **changes}
        overrides = {field: value for field, value in overrides.items() if value is not None}
        effective = self._effective({**self._changes, model: overrides}, model)
        _check(effective)
        self._warn_about_tensors(effective)
        self._changes[model] = overrides
        for name, setting in list(self._settings.items()):
            if model in {"", name}:
                setting.flush()
                del self._settings[name]
        if not overrides and model:
            del self._changes[model]
        for name in self._changes:
            if name not in self._settings:
                self._settings[name] = _EffectiveSettings(self._effective(self._changes, name), self._file)
        self.is_on = any(setting.is_on() for setting in self._settings.values())

    def reopen(self) -> None:
        self._file.reopen()

    def close(self) -> None:
        for setting in self._settings.values():
            setting.flush()
        self._file.close()
        if self._exporter is not None:
            self._exporter.close()

    @staticmethod
    def _warn_about_tensors(options: TraceConfig) -> None:
        if options.open_telemetry is not None and "TENSORS" in options.levels:
            logger.error("Tensor level tracing is not supported by the mode: opentelemetry")

    def _effective(self, changes: Mapping[str, Mapping[str, Any]], model: str) -> TraceConfig:
        return replace(self._defaults, **{**changes[""], **changes[model]})


async def _announce_nothing(_: bool) -> None:  # noqa: FBT001 - see `Tracer.on_change`
    pass


def _check(options: TraceConfig) -> None:
    reason = ""
    if options.levels and not options.rate:
        reason = "sample rate must be non-zero"
    elif options.levels and not options.file and options.open_telemetry is None:
        reason = "trace file name is not given"
    if reason:
        raise InvalidRequestError(f"Attempting to set invalid trace setting :{reason}")


def exporter_settings(options: OpenTelemetryConfig | None) -> dict[str, str | list[str]]:
    """The settings of the exporter as clients receive them, several values as a list; empty without one."""
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
