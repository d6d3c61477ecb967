"""Traces as spans of OpenTelemetry, exported over OTLP/HTTP: names, events and attributes are the reference's.

A client's request has a span `InferRequest` with what happened on its connection, in that one named for the model with
what happened to it in the server, and in that a span `compute`. Requests it leads to have their spans in the model's.
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
from naiad.errors import Code, NaiadError, OptionError
from naiad.frontends.tracing.request_trace import Computation, RequestTrace
from naiad.protocol.inference import InferRequest, InferResponse

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span

_SERVICE = "triton-inference-server"
_SCOPE = "triton-server"
_ROOT = "InferRequest"
_MOST_WAIT_SECONDS = 3
"""How long the end of the server goes on trying to reach a collector."""


class SpanExport:
    """Makes spans and sends them to a collector, many at a time, from a thread of its own."""

    def __init__(self, options: OpenTelemetryConfig) -> None:
        """Begin to export.

        Raises:
            OptionError: If OpenTelemetry is not installed.
        """
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
                f"--trace-config=mode=opentelemetry needs packages that are not installed ({error}); "
                "install them with: pip install 'naiad[opentelemetry]'"
            ) from error
        said = dict(text.split("=", 1) for text in options.resource)
        # Which requests are traced is decided already, and a context that came with one has it traced in any case.
        self._provider = TracerProvider(
            sampler=ALWAYS_ON, resource=Resource.create({"service.name": _SERVICE, **said}), shutdown_on_exit=False
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
        """The context that came with a request; None where none did."""
        if "traceparent" not in headers:
            return None
        context = self._propagator.extract(headers)
        return context if self._trace.get_current_span(context).get_span_context().is_valid else None

    def root(self, request: InferRequest, context: Context | None) -> SpanTrace:
        """The trace of a client's request, in the *context* it came with, if any."""
        root = _Root(self, context)
        return SpanTrace(request, root, root.inside)

    def close(self) -> None:
        """Export what waits."""
        giving_up = threading.Timer(_MOST_WAIT_SECONDS, self._exporter.shutdown)
        giving_up.daemon = True
        giving_up.start()
        self._provider.shutdown()
        giving_up.cancel()

    # -- for the traces -----------------------------------------------------------------------------------------

    def new_id(self) -> int:
        """A number for a trace, as the reference counts them."""
        return next(self._ids)

    def begin(self, name: str, inside: Context | None, when: int) -> tuple[Span, Context]:
        """Begin a span; return it with the context of those inside it."""
        span = self._tracer.start_span(name, inside, self._trace.SpanKind.SERVER, start_time=when)
        return span, self._trace.set_span_in_context(span)

    def describe(self, context: Context) -> bytes:
        """A context as headers in JSON, for those in another process."""
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, context)
        return orjson.dumps(carrier) if carrier else b""

    def mark_failed(self, span: Span, error: NaiadError) -> None:
        """Note that what a span is about failed; a client that changed its mind is no failure."""
        if error.code is not Code.CANCELLED:
            span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, error.message))


class _Root:
    """A client's request: the span of its connection, and what its trace and those it leads to share."""

    def __init__(self, export: SpanExport, context: Context | None) -> None:
        now = time.monotonic_ns()
        self.export = export
        self.offset = time.time_ns() - now  # spans have the time of day, which may be set while a request runs
        self.span, self.inside = export.begin(_ROOT, context, now + self.offset)


class SpanTrace(RequestTrace):
    """Notes as events of spans."""

    __slots__ = ("_id", "_inside", "_is_child", "_root", "_span")

    def __init__(self, request: InferRequest, root: _Root, inside: Context, parent: int = 0) -> None:
        super().__init__(request)
        self._root = root
        self._is_child = parent > 0
        self._id = root.export.new_id()
        self._span, self._inside = root.export.begin(request.model_name, inside, time.monotonic_ns() + root.offset)
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
        """The span as JSON, so that a model's own can be inside it."""
        return self._root.export.describe(self._inside)

    def note(self, name: str, when: int) -> None:
        """Note what happened to the request in the server."""
        self._span.add_event(name, timestamp=when + self._root.offset)

    def note_transport(self, name: str, when: int) -> None:
        """Note what happened on the client's connection."""
        self._root.span.add_event(name, timestamp=when + self._root.offset)

    def note_computation(self, times: Computation) -> None:
        """Note how a model worked on it."""
        offset = self._root.offset
        span, _ = self._root.export.begin("compute", self._inside, times.start + offset)
        span.add_event("COMPUTE_START", timestamp=times.start + offset)
        span.add_event("COMPUTE_INPUT_END", timestamp=times.input_end + offset)
        span.add_event("COMPUTE_OUTPUT_START", timestamp=times.output_start + offset)
        span.add_event("COMPUTE_END", timestamp=times.end + offset)
        span.end(times.end + offset)

    def begin(self) -> None:
        """Note what is asked."""
        self.note("REQUEST_START", time.monotonic_ns())

    def answered(self, response: InferResponse) -> None:
        """Note a response."""
        self._span.set_attribute("triton.model_version", response.model_version)

    def end_request(self, error: NaiadError | None) -> None:
        """The request has its last response, which was an error or not."""
        now = time.monotonic_ns()
        self.note("REQUEST_END", now)
        if error is not None:
            self._root.export.mark_failed(self._span, error)
            if not self._is_child:
                self._root.export.mark_failed(self._root.span, error)
        self._span.end(now + self._root.offset)

    def end(self) -> None:
        """Nothing more will be noted of this request."""
        if not self._is_child:
            self._root.span.end(time.monotonic_ns() + self._root.offset)

    def child_of(self, request: InferRequest) -> SpanTrace:
        """Make the trace of a request that this one leads to."""
        return SpanTrace(request, self._root, self._inside, self._id)
