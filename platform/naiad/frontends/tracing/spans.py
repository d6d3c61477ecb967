"""Traces as spans of OpenTelemetry, exported over OTLP/HTTP: names, events and attributes are the reference's.

The spans of a client's request are nested:

- `InferRequest`: events on the client's connection
  - the model's name: events in the server
    - `compute`: the execution by the model
    - the names of other models: requests that this one causes

(SRV src/tracer.cc, docs/user_guide/trace.md)
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from itertools import count
from typing import TYPE_CHECKING

import orjson

from naiad.config.server.trace_options import OpenTelemetryConfig
from naiad.core.errors import Code, NaiadError, OptionError
from naiad.core.extras import install_command
from naiad.frontends.tracing.request_trace import ComputeTimes
from naiad.protocol.inference import InferRequest, InferResponse

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span

_SERVICE = "triton-inference-server"
_SCOPE = "triton-server"
_ROOT = "InferRequest"
_MAX_SHUTDOWN_SECONDS = 3  # how long the server's shutdown waits for a collector that does not respond


class SpanExporter:
    """Creates spans and sends them to a collector, in batches, on OpenTelemetry's own thread."""

    def __init__(self, options: OpenTelemetryConfig) -> None:
        """Start to export spans; OptionError if OpenTelemetry is not installed."""
        try:
            from opentelemetry import trace
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.sdk.trace.sampling import ALWAYS_ON
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError as error:
            raise OptionError(
                f"cannot export traces (--trace-config=mode=opentelemetry): {error}; "
                f"install OpenTelemetry with: {install_command('opentelemetry')}"
            ) from error
        attributes = dict(text.split("=", 1) for text in options.resource)
        # `Tracer` has sampled already: a second decision by OpenTelemetry's own sampler would drop spans.
        self._provider = TracerProvider(
            sampler=ALWAYS_ON,
            resource=Resource.create({"service.name": _SERVICE, **attributes}),
            shutdown_on_exit=False,
        )
        self._exporter = OTLPSpanExporter(endpoint=options.url[-1] if options.url else None)
        self._provider.add_span_processor(
            BatchSpanProcessor(
                self._exporter,
                max_queue_size=options.bsp_max_queue_size,
                schedule_delay_millis=options.bsp_schedule_delay,
                max_export_batch_size=options.bsp_max_export_batch_size,
            )
        )
        self._tracer = self._provider.get_tracer(_SCOPE)
        self._propagator = TraceContextTextMapPropagator()
        self._trace = trace
        self._ids = count(1)

    def context_of(self, headers: Mapping[str, str]) -> Context | None:
        """The trace context in a request's headers (W3C); None if it is missing or invalid."""
        if "traceparent" not in headers:
            return None
        context = self._propagator.extract(headers)
        return context if self._trace.get_current_span(context).get_span_context().is_valid else None

    def start(self, request: InferRequest, context: Context | None, received: int) -> SpanRecorder:
        """Start the spans of a client's request, which had arrived at *received* (monotonic ns)."""
        root = _RootSpan(self, context, received)
        return SpanRecorder(request, root, root.context)

    def close(self) -> None:
        """Export the pending spans, and stop."""
        # `shutdown` of the provider blocks until the collector has received all spans; the timer aborts that.
        abort = threading.Timer(_MAX_SHUTDOWN_SECONDS, self._exporter.shutdown)
        abort.daemon = True
        abort.start()
        self._provider.shutdown()
        abort.cancel()

    # -- for the recorders --------------------------------------------------------------------------------------

    def next_id(self) -> int:
        """The id of a new trace, counted from 1 as in the reference."""
        return next(self._ids)

    def start_span(self, name: str, parent: Context | None, when: int) -> tuple[Span, Context]:
        span = self._tracer.start_span(name, parent, self._trace.SpanKind.SERVER, start_time=when)
        return span, self._trace.set_span_in_context(span)

    def serialize(self, context: Context) -> bytes:
        """A context as JSON of its headers, to be sent to another process."""
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, context)
        return orjson.dumps(carrier) if carrier else b""

    def mark_failed(self, span: Span, error: NaiadError) -> None:
        """Set a span's status to ERROR, unless the client has cancelled the request."""
        if error.code is not Code.CANCELLED:
            span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, error.message))


class _RootSpan:
    """The span of a client's connection, shared by the recorders of its request and of those it causes."""

    def __init__(self, exporter: SpanExporter, context: Context | None, began: int) -> None:
        self.exporter = exporter
        # Converts monotonic times to the system time that spans use. Computed once, since the system clock may be set
        # while a request runs.
        self.offset = time.time_ns() - time.monotonic_ns()
        self.span, self.context = exporter.start_span(_ROOT, context, began + self.offset)


class SpanRecorder:
    """Stores events as events of spans."""

    __slots__ = ("_context", "_id", "_is_child", "_root", "_span")

    def __init__(self, request: InferRequest, root: _RootSpan, parent_context: Context, parent: int = 0) -> None:
        self._root = root
        self._is_child = parent > 0
        self._id = root.exporter.next_id()
        self._span, self._context = root.exporter.start_span(
            request.model_name, parent_context, time.monotonic_ns() + root.offset
        )
        self._span.set_attributes(
            {
                "triton.model_name": request.model_name,
                "triton.trace_id": self._id,
                "triton.trace_parent_id": parent,
            }
        )
        if request.request_id:
            self._span.set_attribute("triton.request_id", request.request_id)

    @property
    def context(self) -> bytes:
        """Context for spans of the model's own, as JSON: they become children of this one."""
        return self._root.exporter.serialize(self._context)

    def record(self, name: str, when: int) -> None:
        self._span.add_event(name, timestamp=when + self._root.offset)

    def record_transport(self, name: str, when: int) -> None:
        self._root.span.add_event(name, timestamp=when + self._root.offset)

    def record_compute(self, times: ComputeTimes) -> None:
        offset = self._root.offset
        span, _ = self._root.exporter.start_span("compute", self._context, times.start + offset)
        for name, when in times.events():
            span.add_event(name, timestamp=when + offset)
        span.end(times.end + offset)

    def begin(self) -> None:
        self.record("REQUEST_START", time.monotonic_ns())

    def record_response(self, response: InferResponse) -> None:
        self._span.set_attribute("triton.model_version", response.model_version)

    def end_request(self, error: NaiadError | None) -> None:
        now = time.monotonic_ns()
        self.record("REQUEST_END", now)
        if error is not None:
            self._root.exporter.mark_failed(self._span, error)
            if not self._is_child:
                self._root.exporter.mark_failed(self._root.span, error)
        self._span.end(now + self._root.offset)

    def close(self) -> None:
        """End the connection's span; a child has none."""
        if not self._is_child:
            self._root.span.end(time.monotonic_ns() + self._root.offset)

    def create_child(self, request: InferRequest) -> SpanRecorder:
        return SpanRecorder(request, self._root, self._context, self._id)
