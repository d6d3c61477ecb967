"""A collector of spans for tests: an HTTP server that decodes OTLP and keeps what it gets."""

from __future__ import annotations

import http.server
import threading
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from support.waiting import until


@dataclass
class Span:
    """One span as it came; ids in hexadecimal."""

    name: str
    trace: str
    id: str
    parent: str
    kind: int
    attributes: dict[str, Any]
    events: list[tuple[str, int]]
    begin: int
    end: int
    state: str
    error: str
    resource: dict[str, str]
    scope: str

    @property
    def event_names(self) -> list[str]:
        return [name for name, _ in self.events]


@dataclass
class Collector:
    """A running collector, to be used as a context manager."""

    spans: list[Span] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def __enter__(self) -> Collector:  # noqa: PYI034 - typing.Self is 3.11+
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.take(self.path, ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *args: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = False
        self._server.block_on_close = False
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/v1/traces"

    def take(self, path: str, request: ExportTraceServiceRequest) -> None:
        self.requests.append(path)
        for group in request.resource_spans:
            resource = {pair.key: pair.value.string_value for pair in group.resource.attributes}
            for scoped in group.scope_spans:
                self.spans.extend(_span(span, resource, scoped.scope.name) for span in scoped.spans)

    def wait_for(self, count: int) -> list[Span]:
        """The spans, once there are so many."""
        until(lambda: len(self.spans) >= count, f"{count} spans")
        return self.spans


def _span(span: Any, resource: dict[str, str], scope: str) -> Span:
    return Span(
        name=span.name,
        trace=span.trace_id.hex(),
        id=span.span_id.hex(),
        parent=span.parent_span_id.hex(),
        kind=span.kind,
        attributes={pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in span.attributes},
        events=[(event.name, event.time_unix_nano) for event in span.events],
        begin=span.start_time_unix_nano,
        end=span.end_time_unix_nano,
        state=span.trace_state,
        error=span.status.message if span.status.code == span.status.STATUS_CODE_ERROR else "",
        resource=resource,
        scope=scope,
    )


def tree(spans: list[Span], parent: str = "") -> dict[str, Any]:
    """The names of the spans within *parent*, and of those within them: siblings of one name get a number."""
    found: dict[str, Any] = {}
    for span in sorted(spans, key=lambda span: (span.begin, span.name)):
        if span.parent == parent:
            name = span.name if span.name not in found else f"{span.name} {len(found)}"
            found[name] = tree(spans, span.id)
    return found
