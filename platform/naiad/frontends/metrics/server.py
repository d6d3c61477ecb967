"""`GET /metrics` over HTTP/1.1, on a separate port."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import psutil

from naiad.core.errors import NaiadError
from naiad.engine.facade import EngineFacade
from naiad.frontends.http1.later_responses import LaterResponses
from naiad.frontends.http1.listener import HttpListener
from naiad.frontends.http1.messages import HttpExchange, reason_phrase, response
from naiad.frontends.http1.page_guard import PageRules
from naiad.frontends.http1.request_reader import RequestLimits
from naiad.frontends.metrics import naiad_families, triton_families
from naiad.frontends.metrics.families import Collector, render
from naiad.frontends.status import HTTP_STATUS
from naiad.protocol.inference import Buffer

_PATHS = (b"/metrics", b"/metrics/")  # as the reference has them
_READ = ("GET", "HEAD")
_TEXT = b"text/plain; charset=utf-8"
_LIMITS = RequestLimits(header_bytes=64 << 10, body_bytes=64 << 10)  # a scrape is a few hundred bytes long
_STOP_SECONDS = 5  # for responses being sent when the server stops; a page of metrics is computed at once

_OK = 200
_NOT_FOUND = 404
_NOT_ALLOWED = 405


class MetricsFrontend:
    """Serves the metrics of the engine and the machine to Prometheus."""

    def __init__(
        self,
        engine: EngineFacade,
        *,
        address: str,
        port: int,  # port to listen on, 0 for any
        collectors: Sequence[Collector] = (),  # make further families, such as models' own metrics
        with_system: bool = True,  # whether to include the machine's processor and memory (--allow-cpu-metrics)
        with_counters: bool = True,  # whether to include sums of durations (--metrics-config=counter_latencies)
        prepare: Callable[[], Awaitable[None]] | None = None,
        pages: PageRules | None = None,  # which Hosts are served; None for the default
    ) -> None:
        self._engine = engine
        self._prepare = prepare
        self._later = LaterResponses()
        self._collectors = tuple(collectors)
        self._with_system = with_system
        self._with_counters = with_counters
        self._listener = HttpListener(
            self._handle,
            address=address,
            port=port,
            service="metrics",
            advice="set another address or port with --metrics-address or --metrics-port",
            limits=_LIMITS,
            error_response=_error_response,
            pages=pages,
        )

    @property
    def connection_count(self) -> int:
        return self._listener.connection_count

    async def start(self) -> int:
        """Listen; return the port. Raises OptionError if the address and port are not available."""
        psutil.cpu_percent()  # the first call starts the interval that utilization is measured over
        return await self._listener.start()

    async def stop(self) -> None:
        await self._listener.stop(_STOP_SECONDS)

    def scrape(self) -> bytes:
        statistics = self._engine.statistics()
        families = triton_families.model_families(statistics, with_durations=self._with_counters)
        families += triton_families.memory_pool_families(statistics)
        families += naiad_families.reported_memory_families(statistics)
        for collector in self._collectors:
            families.extend(collector())
        if self._with_system:
            families.extend(triton_families.system_families())
        return render(families)

    def _handle(self, exchange: HttpExchange) -> None:
        self._later.respond(exchange, self._response(exchange.request.method, exchange.request.path))

    async def _response(self, method: str, path: bytes) -> list[Buffer]:
        if path not in _PATHS:
            return _error_response(_NOT_FOUND)
        if method not in _READ:
            return _error_response(_NOT_ALLOWED, extra=b"Allow: GET, HEAD\r\n")
        return await self.page()

    async def page(self) -> list[Buffer]:
        if self._prepare is not None:
            await self._prepare()
        try:
            return response(_OK, [self.scrape()], _TEXT)
        except NaiadError as error:
            return response(HTTP_STATUS[error.code], [error.message.encode()], _TEXT)


def _error_response(status: int, _message: str = "", extra: bytes = b"") -> list[Buffer]:
    """An error in plain text: the reason phrase of its status."""
    return response(status, [reason_phrase(status)], _TEXT, extra)
