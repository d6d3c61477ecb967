"""Opens the ports of a server and connects each to its frontend.

`app` imports this module after the models began to load. Their guests start in separate processes, and the imports
of this module take about as long as such a start.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from naiad.config.server.access import Restrictions
from naiad.config.server.console_options import EVERYWHERE, LOOPBACK
from naiad.config.server.options import ServerOptions
from naiad.core.gpus import GpuMeter, gpu_uuid
from naiad.core.logs import RecentLines
from naiad.engine.facade import EngineFacade
from naiad.environments.store.entries import entry_sizes
from naiad.frontends.access import Access
from naiad.frontends.extensions import Extensions
from naiad.frontends.grpc.settings import CompressionLevel, GrpcSettings
from naiad.frontends.http1.heads import Head
from naiad.frontends.http1.listener import HttpListener
from naiad.frontends.http1.messages import HttpExchange
from naiad.frontends.http1.page_guard import PageRules
from naiad.frontends.http1.request_reader import RequestLimits
from naiad.frontends.http1.timeouts import HttpTimeouts
from naiad.frontends.kserve_grpc.frontend import GrpcFrontend
from naiad.frontends.kserve_http.server import HttpFrontend
from naiad.frontends.listening import Acceptor
from naiad.frontends.log_settings import ServerLog
from naiad.frontends.metrics.families import Collector
from naiad.frontends.metrics.naiad_families import (
    connection_families,
    demand_families,
    guest_families,
    refusal_families,
    request_memory_families,
    store_families,
)
from naiad.frontends.metrics.server import MetricsFrontend
from naiad.frontends.metrics.triton_families import cache_families, custom_families, gpu_families
from naiad.frontends.offload.background import Background
from naiad.frontends.open_connections import ConnectionCount, default_limit
from naiad.frontends.refusals import RefusalLog
from naiad.frontends.regions import ClientRegions, RegionRegistry
from naiad.frontends.request_memory import RequestMemory
from naiad.frontends.tracing.request_tracer import RequestTracer
from naiad.frontends.tracing.tracer import Tracer
from naiad.guests.memory.machine import available_memory
from naiad.protocol.model_metrics import ModelMetricFamily
from naiad.server.http_api import ApiServices, HttpApi, MetricsPage, openai_package

if TYPE_CHECKING:
    from naiad.engine.engine import Engine
    from naiad.engine.loading.loader import Loader
    from naiad.frontends.api_page.document import ApiDocument
    from naiad.frontends.api_page.handler import ApiPage
    from naiad.frontends.console.page import StateSource


class Frontend(Protocol):
    """A started frontend."""

    def drain(self) -> None:
        """Serve on, and ask clients to connect elsewhere."""

    async def stop(self, grace: float) -> None:
        """Stop listening, wait up to *grace* seconds for responses that are due, and close all connections."""


class Listeners:
    """The open ports of a server."""

    def __init__(
        self, tracer: RequestTracer, count: ConnectionCount, memory: RequestMemory, refusals: RefusalLog
    ) -> None:
        self.tracer = tracer
        self.count = count  # counts the connections of all ports but that of metrics
        self.memory = memory  # the memory of the requests of all ports
        self.refusals = refusals  # logs requests that any port refuses because of who sends them
        self.metrics: MetricsFrontend | None = None  # which `open_metrics` starts; None if disabled
        self.started: list[str] = []  # a line for the log about each service that was started
        self.ports: dict[str, int] = {}  # the number of each open port: `http`, `grpc`, `openai`, `metrics`
        self._frontends: list[Frontend] = []

    def add(self, frontend: Frontend) -> None:
        self._frontends.append(frontend)

    async def open_metrics(self, address: str) -> None:
        """Serve the metrics, if the options enable them; NaiadError if the port is not available.

        To be called when all other ports of the server are open, those of other processes included. Servers that share
        their ports each have a metrics port, which shows during a replacement that the new server is ready.
        """
        if self.metrics is not None:
            port = self.ports["metrics"] = await self.metrics.start()
            self.started.append(f"Started Metrics Service at {address}:{port}")

    def drain(self) -> None:
        for frontend in self._frontends:
            frontend.drain()

    async def stop_clients(self, grace: float) -> None:
        """Stop all frontends but that of metrics; requests in flight have *grace* seconds."""
        await asyncio.gather(*(frontend.stop(grace) for frontend in self._frontends))

    async def stop(self, grace: float) -> None:
        """Stop all frontends, with *grace* seconds for requests in flight; metrics are served until the others stop."""
        await self.stop_clients(grace)
        if self.metrics is not None:
            await self.metrics.stop()


class Connections(Protocol):
    """Deals the connections of all listeners among the processes of a server."""

    def use(self, count: ConnectionCount) -> None:
        """Have *count* know of the connections of all processes, or leave its limits to the process that does."""

    def listener(self, name: str) -> Acceptor:
        """What accepts the connections of a listener of this process."""


ProcessRoles: TypeAlias = Callable[[], Mapping[int, str]]
ConsoleMaker: TypeAlias = "Callable[[AsyncExitStack, ProcessRoles], StateSource]"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerServices:
    """What listeners need beside the engine's facade."""

    log: ServerLog
    tracer: Callable[[], RequestTracer]  # makes the tracer of these listeners' requests
    regions: RegionRegistry  # shared memory that clients registered
    exit_seconds: Callable[[], float]  # seconds that requests in flight have when the listeners stop
    model_metrics: Iterable[ModelMetricFamily]  # the models' own metrics; each iteration gives the current ones
    adapters: Callable[[str, str], Awaitable[Sequence[str]]]  # of a model and version, for OpenAI's API
    context: Callable[[str, str], Awaitable[int]]  # of tokens of a model and version; 0 if unknown
    api_document: Callable[[], Awaitable[bytes]]  # OpenAPI, as JSON, for the page of the API
    # Makes the source of the page's documents, which is closed with the stack; None where the page is not served. The
    # second argument returns the server's processes other than guests, with the role of each.
    console: ConsoleMaker | None = None
    metrics: Callable[[Listeners], MetricsFrontend] | None = None  # None where it is not served
    metrics_page: MetricsPage | None = None  # where another process serves the endpoint; else None
    ask_coordinator: Callable[..., Any] | None = None  # by name; None in a server of one process
    created: int = field(default_factory=lambda: int(time.time()))  # of the models, in seconds since 1970
    connections: Connections | None = None  # deals them among processes; None for one process
    share: int = 1  # number of processes that share the limit on the memory of requests


def server_services(
    engine: Engine, loader: Loader, options: ServerOptions, log: ServerLog, recent: RecentLines | None = None
) -> ListenerServices:
    """The services of listeners in the process of the engine; *recent* has the last lines of the log, if any."""

    def console(stack: AsyncExitStack, roles: ProcessRoles) -> StateSource:
        from naiad.server.console_source import make_console_state  # imported late: most servers do not use it

        state = make_console_state(engine, loader, options, recent, roles)
        stack.push_async_callback(state.close)
        return state

    @cache
    def document() -> ApiDocument:
        from naiad.frontends.api_page.document import ApiDocument, ServedApis

        served = ServedApis(openai=options.openai_shares_http, openai_port=options.openai.port, console=options.http.ui)
        return ApiDocument(engine, served)

    return ListenerServices(
        log=log,
        tracer=lambda: Tracer(options.trace.config),
        regions=ClientRegions(is_allowed=options.general.allow_client_shm, find_gpu=gpu_uuid),
        exit_seconds=engine.exit_time.for_requests,
        model_metrics=engine.metrics,
        adapters=lambda model, version: asyncio.to_thread(adapters_of, loader, model, version),
        context=lambda model, version: asyncio.to_thread(context_of, loader, model, version),
        api_document=lambda: document().read(),
        console=console if options.http.ui else None,
        metrics=lambda listeners: metrics_frontend(
            engine,
            options,
            lambda: connection_families(listeners.count),
            lambda: request_memory_families(listeners.memory),
        ),
    )


async def listen(
    engine: EngineFacade, services: ListenerServices, options: ServerOptions, stack: AsyncExitStack
) -> Listeners:
    """Serve on all ports but that of metrics (`open_metrics`) until *stack* is closed; NaiadError if one is taken."""
    tracer = services.tracer()
    stack.callback(tracer.close)
    memory = _request_memory(options, services.share)
    stack.callback(memory.close)
    background = Background(memory.budget.limit)
    extensions = Extensions(
        regions=services.regions,
        log=services.log,
        tracer=tracer,
        model_metrics=services.model_metrics,
        background=background,
        memory=memory,
        refusals=RefusalLog(),
    )
    stack.push_async_callback(background.close)
    total = options.connections.total
    # The default is of each process, as the limit on open files is.
    count = ConnectionCount(
        default_limit() * services.share if total is None else total, options.connections.per_address
    )
    if services.connections is not None:
        services.connections.use(count)
    listeners = Listeners(tracer, count, memory, extensions.refusals)
    metrics = None if services.metrics is None or not options.metrics.is_enabled else services.metrics(listeners)
    page = services.metrics_page if metrics is None else metrics.page
    openai = _openai_api(engine, services, options, extensions, page)
    fallback = _fallback(engine, services, options, openai, extensions.refusals, stack)
    stack.push_async_callback(lambda: listeners.stop(services.exit_seconds()))
    part = (lambda _: None) if services.connections is None else services.connections.listener
    await _start_frontends(engine, options, extensions, listeners, fallback, _admit_fallback(options, openai), part)
    await _start_openai(options, listeners, openai, part("openai"))
    listeners.metrics = metrics
    return listeners


def _request_memory(options: ServerOptions, share: int) -> RequestMemory:
    limit = options.general.memory_limit_requests
    limit = available_memory() // 4 if limit is None else limit
    return RequestMemory(limit // share, asyncio.get_running_loop())


def _http_restrictions(options: ServerOptions) -> Restrictions:
    given = options.http.restrictions
    return given if options.hardening is None else options.hardening.http(given)


def _grpc_restrictions(options: ServerOptions) -> Restrictions:
    given = options.grpc.restrictions
    return given if options.hardening is None else options.hardening.grpc(given)


def _grpc_settings(options: ServerOptions) -> GrpcSettings:
    return GrpcSettings(
        keepalive_time_ms=options.grpc.keepalive_time,
        keepalive_timeout_ms=options.grpc.keepalive_timeout,
        keepalive_permit_without_calls=options.grpc.keepalive_permit_without_calls,
        http2_max_pings_without_data=options.grpc.max_pings_without_data,
        http2_min_recv_ping_interval_without_data_ms=options.grpc.min_recv_ping_interval,
        http2_max_ping_strikes=options.grpc.max_ping_strikes,
        max_connection_age_ms=options.grpc.max_connection_age,
        max_connection_age_grace_ms=options.grpc.max_connection_age_grace,
        message_timeout_ms=int(options.connections.client_timeout * 1000),
        response_compression=CompressionLevel[options.grpc.response_compression.upper()],
    )


def _page_rules(options: ServerOptions) -> PageRules:
    return PageRules(
        hosts=options.http.allowed_hosts,
        origins=options.http.allowed_origins,
        openai_origins=options.openai.allowed_origins,
    )


def _http_timeouts(options: ServerOptions) -> HttpTimeouts:
    return HttpTimeouts(
        header=options.connections.client_timeout,
        body=options.connections.client_timeout,
        keepalive=options.http.keepalive_timeout,
        send=options.connections.client_timeout,
    )


def metrics_frontend(
    engine: Engine,
    options: ServerOptions,
    *more: Collector,
    prepare: Callable[[], Awaitable[None]] | None = None,
) -> MetricsFrontend:
    """The frontend of all metrics and those of *more* collectors, which may need *prepare*; not started."""
    if options.metrics.with_gpu:
        meter = GpuMeter()
        more = (lambda: gpu_families(meter.read()), *more)
    return MetricsFrontend(
        engine,
        address=options.metrics.address,
        port=options.metrics.port,
        pages=_page_rules(options),
        collectors=[
            lambda: cache_families(None if engine.response_cache is None else engine.response_cache.statistics()),
            lambda: refusal_families(engine.statistics(), engine.refusals()),
            lambda: guest_families(engine.instances()),
            lambda: demand_families(engine.demand_status()),
            lambda: store_families(entry_sizes(options.environments.store)),
            lambda: custom_families(engine.metrics),
            *more,
        ],
        with_system=options.metrics.with_cpu,
        with_counters=options.metrics.config.counters,
        prepare=prepare,
    )


async def _start_frontends(
    engine: EngineFacade,
    options: ServerOptions,
    extensions: Extensions,
    listeners: Listeners,
    fallback: Callable[[HttpExchange], bool] | None,
    admit_fallback: Callable[[Head], bool],
    part: Callable[[str], Acceptor | None],
) -> None:
    if options.grpc.is_enabled:
        grpc = GrpcFrontend(
            engine,
            address=options.grpc.address,
            port=options.grpc.port,
            reuse_port=options.grpc.reuse_port,
            settings=_grpc_settings(options),
            extensions=extensions,
            access=Access(restrictions=_grpc_restrictions(options), forward=options.grpc.forward_pattern),
            tls=options.grpc.tls,
            count=listeners.count,
            acceptor=part("grpc"),
        )
        port = listeners.ports["grpc"] = await grpc.start()
        listeners.add(grpc)
        listeners.started.append(f"Started GRPCInferenceService at {options.grpc.address}:{port}")
    if options.http.is_enabled:
        http = HttpFrontend(
            engine,
            address=options.http.address,
            port=options.http.port,
            reuse_port=options.http.reuse_port,
            max_json=options.http.max_input_size,
            limits=RequestLimits(body_bytes=options.http.max_body_size),
            extensions=extensions,
            access=Access(restrictions=_http_restrictions(options), forward=options.http.forward_pattern),
            tls=options.http.tls,
            fallback=fallback,
            admit_fallback=admit_fallback,
            timeouts=_http_timeouts(options),
            count=listeners.count,
            pages=_page_rules(options),
            acceptor=part("http"),
        )
        port = listeners.ports["http"] = await http.start()
        listeners.add(http)
        listeners.started.append(f"Started HTTPService at {options.http.address}:{port}")
        if options.http.ui:
            listeners.started.append(f"Started the page at {_page_address(options, port)}")
        if options.openai_shares_http:
            listeners.ports["openai"] = port
            listeners.started.append(f"Started OpenAI's API at {options.http.address}:{port}")


def _page_address(options: ServerOptions, port: int) -> str:
    """The address of the page as a link, and who may open it."""
    http = options.http
    given = [each for each in (http.ui_address, http.address) if each not in {LOOPBACK, EVERYWHERE, "::", "::1"}]
    host = given[0] if given else "localhost"
    link = f"{'https' if http.tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}/ui"
    return f"{link} (for this machine alone: --ui-address)" if http.ui_address == LOOPBACK else link


async def _start_openai(
    options: ServerOptions, listeners: Listeners, openai: HttpApi | None, acceptor: Acceptor | None
) -> None:
    if openai is None or options.openai.port is None or options.openai_shares_http:
        return
    listener = HttpListener(
        openai.handle,
        address=options.openai.address,
        port=options.openai.port,
        reuse_port=options.http.reuse_port,
        advice="choose another --openai-port or --openai-address",
        limits=RequestLimits(body_bytes=options.http.max_body_size),
        memory=listeners.memory,
        admit=openai.admit,
        tls=options.http.tls,
        timeouts=_http_timeouts(options),
        count=listeners.count,
        pages=_page_rules(options),
        refused=listeners.refusals,
        acceptor=acceptor,
    )
    port = listeners.ports["openai"] = await listener.start()
    listeners.add(listener)
    listeners.started.append(f"Started OpenAI's API at {options.openai.address}:{port}")


def _fallback(
    engine: EngineFacade,
    services: ListenerServices,
    options: ServerOptions,
    openai: HttpApi | None,
    refusals: RefusalLog,
    stack: AsyncExitStack,
) -> Callable[[HttpExchange], bool] | None:
    """The handler of paths on the HTTP port that are not KServe's; None if only KServe is served there."""
    handlers: list[Callable[[HttpExchange], bool]] = []
    if openai is not None and options.openai_shares_http:
        handlers.append(openai.try_handle)
    if services.console is not None and options.http.is_enabled:
        from naiad.frontends.console.page import Console, ConsoleSettings, ServedTo

        address = options.http.ui_address
        settings = ConsoleSettings(
            password=options.http.ui_password,
            served_to=ServedTo(
                is_local=address == LOOPBACK,
                address="" if address in {LOOPBACK, EVERYWHERE} else address,
                hosts=options.http.allowed_hosts,
            ),
            can_control=options.http.ui_control,
        )
        source = services.console(stack, lambda: {os.getpid(): "server"})
        handlers.append(Console(source, engine, settings, refusals).try_handle)
    if options.http.is_enabled and options.http.api_page:
        handlers.append(_api_page(services, options, refusals))
    return (lambda exchange: any(handle(exchange) for handle in handlers)) if handlers else None


def _api_page(
    services: ListenerServices, options: ServerOptions, refusals: RefusalLog
) -> Callable[[HttpExchange], bool]:
    """The handler of the page of the API; made when a path asks for it, which few do of most servers."""

    @cache
    def page() -> ApiPage:
        from naiad.frontends.api_page.handler import ApiPage

        return ApiPage(services.api_document, _http_restrictions(options), refusals)

    def try_handle(exchange: HttpExchange) -> bool:
        path = exchange.request.path
        return path.rstrip(b"/").endswith((b"/docs", b"/openapi.json")) and page().try_handle(exchange)

    return try_handle


def _admit_fallback(options: ServerOptions, openai: HttpApi | None) -> Callable[[Head], bool]:
    """Which requests to the handler of `_fallback` have a body that is read: those to OpenAI's API."""
    if openai is None or not options.openai_shares_http:
        return lambda _: False
    return openai.admit


def adapters_of(loader: Loader, model: str, version: str) -> Sequence[str]:
    """The names of the adapters of a model's version, for OpenAI's API."""
    folder = _folder_of(loader, model, version)
    return openai_package().adapter_names(folder) if folder is not None else ()


def context_of(loader: Loader, model: str, version: str) -> int:
    """The number of tokens that a model's version takes, for OpenAI's API; 0 if unknown."""
    folder = _folder_of(loader, model, version)
    return openai_package().context_length(folder) if folder is not None else 0


def _folder_of(loader: Loader, model: str, version: str) -> Path | None:
    for (key, number), resolution in loader.resolutions.items():
        if str(number) == version and model in (key, resolution.model):
            return resolution.model_dir / version
    return None


def _openai_api(
    engine: EngineFacade,
    services: ListenerServices,
    options: ServerOptions,
    extensions: Extensions,
    metrics: MetricsPage | None,
) -> HttpApi | None:
    if options.openai.port is None:
        return None
    return openai_package().make_api(
        engine,
        options,
        extensions,
        ApiServices(
            adapters=services.adapters,
            context=services.context,
            metrics=metrics,
            created=services.created,
            ask_coordinator=services.ask_coordinator,
        ),
    )
