"""Opens the ports of a server and connects each to its frontend.

`app` imports this module after the models began to load. Their guests start in processes of their own, and the imports
of this module take about as long as such a start.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING

from naiad.config.server.options import ServerOptions
from naiad.engine.engine import Engine
from naiad.engine.loading.loader import Loader
from naiad.environments.store.entries import entry_sizes
from naiad.frontends.access import Access
from naiad.frontends.extensions import Extensions
from naiad.frontends.grpc.settings import CompressionLevel, GrpcSettings
from naiad.frontends.http1.listener import HttpListener
from naiad.frontends.http1.messages import HttpExchange
from naiad.frontends.http1.request_reader import RequestLimits
from naiad.frontends.kserve_grpc.frontend import GrpcFrontend
from naiad.frontends.kserve_http.server import HttpFrontend
from naiad.frontends.log_settings import ServerLog
from naiad.frontends.metrics.custom_families import custom_families
from naiad.frontends.metrics.families import Collector
from naiad.frontends.metrics.naiad_families import guest_families, store_families
from naiad.frontends.metrics.server import MetricsFrontend
from naiad.frontends.metrics.triton_families import cache_families
from naiad.frontends.regions import ClientRegions
from naiad.frontends.tracing.tracer import Tracer

if TYPE_CHECKING:
    from naiad.frontends.console.state import ModelOrigin
    from naiad.frontends.openai.api import OpenAiApi

__all__ = ["listen", "metrics_frontend"]

logger = logging.getLogger("naiad.app")


async def listen(engine: Engine, loader: Loader, options: ServerOptions, log: ServerLog, stack: AsyncExitStack) -> None:
    """Serve on all ports that the options name, until *stack* is closed.

    The server is not ready before the last port is open. A client that waits for readiness on one port may then use any
    other.

    Raises:
        NaiadError: If a port is not available.
    """
    engine.is_reachable = False
    tracer = Tracer(options.trace.config)
    stack.callback(tracer.close)
    regions = ClientRegions(is_allowed=options.general.allow_client_shm)
    extensions = Extensions(regions=regions, log=log, tracer=tracer, model_metrics=engine.metrics)
    openai = _openai_api(engine, loader, options, extensions)
    await _start_frontends(engine, options, extensions, stack, _fallback(engine, loader, options, openai))
    await _start_openai(engine, options, stack, openai)
    engine.is_reachable = True


def _grpc_settings(options: ServerOptions) -> GrpcSettings:
    """The gRPC flags as settings of the transport."""
    return GrpcSettings(
        keepalive_time_ms=options.grpc.keepalive_time,
        keepalive_timeout_ms=options.grpc.keepalive_timeout,
        keepalive_permit_without_calls=options.grpc.keepalive_permit_without_calls,
        http2_max_pings_without_data=options.grpc.max_pings_without_data,
        http2_min_recv_ping_interval_without_data_ms=options.grpc.min_recv_ping_interval,
        http2_max_ping_strikes=options.grpc.max_ping_strikes,
        max_connection_age_ms=options.grpc.max_connection_age,
        max_connection_age_grace_ms=options.grpc.max_connection_age_grace,
        response_compression=CompressionLevel[options.grpc.response_compression.upper()],
    )


def metrics_frontend(engine: Engine, options: ServerOptions, *more: Collector) -> MetricsFrontend:
    """The frontend of all metrics and those of *more* collectors, not started."""
    return MetricsFrontend(
        engine,
        address=options.metrics.address,
        port=options.metrics.port,
        collectors=[
            lambda: cache_families(None if engine.response_cache is None else engine.response_cache.statistics()),
            lambda: guest_families(engine.instances()),
            lambda: store_families(entry_sizes(options.environments.store)),
            lambda: custom_families(engine.metrics),
            *more,
        ],
        with_system=options.metrics.with_cpu,
        with_counters=options.metrics.config.counters,
    )


async def _start_frontends(
    engine: Engine,
    options: ServerOptions,
    extensions: Extensions,
    stack: AsyncExitStack,
    fallback: Callable[[HttpExchange], bool] | None,
) -> None:
    grace = options.general.exit_timeout_secs
    if options.grpc.is_enabled:
        grpc = GrpcFrontend(
            engine,
            address=options.grpc.address,
            port=options.grpc.port,
            reuse_port=options.grpc.reuse_port,
            settings=_grpc_settings(options),
            extensions=extensions,
            access=Access(restrictions=options.grpc.restrictions, forward=options.grpc.forward_pattern),
            tls=options.grpc.tls,
        )
        port = await grpc.start()
        stack.push_async_callback(grpc.stop, grace)
        logger.info("Started GRPCInferenceService at %s:%d", options.grpc.address, port)
    if options.http.is_enabled:
        http = HttpFrontend(
            engine,
            address=options.http.address,
            port=options.http.port,
            reuse_port=options.http.reuse_port,
            max_json=options.http.max_input_size,
            limits=RequestLimits(header_bytes=options.http.max_header_bytes),
            extensions=extensions,
            access=Access(restrictions=options.http.restrictions, forward=options.http.forward_pattern),
            tls=options.http.tls,
            fallback=fallback,
        )
        port = await http.start()
        stack.push_async_callback(http.stop, grace)
        logger.info("Started HTTPService at %s:%d", options.http.address, port)
        if options.http.ui:
            logger.info("Started the page at %s:%d/ui", options.http.address, port)
        if options.openai_shares_http:
            logger.info("Started OpenAI's API at %s:%d", options.http.address, port)
    if options.metrics.is_enabled:
        metrics = metrics_frontend(engine, options)
        port = await metrics.start()
        stack.push_async_callback(metrics.stop)
        logger.info("Started Metrics Service at %s:%d", options.metrics.address, port)


async def _start_openai(
    engine: Engine, options: ServerOptions, stack: AsyncExitStack, openai: OpenAiApi | None
) -> None:
    if openai is None or options.openai.port is None or options.openai_shares_http:
        return
    listener = HttpListener(
        openai.handle,
        engine.cancel,
        address=options.openai.address,
        port=options.openai.port,
        advice="choose another --openai-port or --openai-address",
        limits=RequestLimits(header_bytes=options.http.max_header_bytes),
        tls=options.http.tls,
    )
    port = await listener.start()
    stack.push_async_callback(listener.stop, options.general.exit_timeout_secs)
    logger.info("Started OpenAI's API at %s:%d", options.openai.address, port)


def _fallback(
    engine: Engine, loader: Loader, options: ServerOptions, openai: OpenAiApi | None
) -> Callable[[HttpExchange], bool] | None:
    """The handler of paths on the HTTP port that are not KServe's; None if only KServe is served there."""
    handlers: list[Callable[[HttpExchange], bool]] = []
    if openai is not None and options.openai_shares_http:
        handlers.append(openai.try_handle)
    if options.http.ui:
        from naiad.frontends.console.page import Console  # imported late, here and below: most servers do not use it
        from naiad.frontends.console.state import ConsoleState

        handlers.append(Console(ConsoleState(engine, lambda: _origins(loader))).try_handle)
    return (lambda exchange: any(handle(exchange) for handle in handlers)) if handlers else None


def _origins(loader: Loader) -> Mapping[tuple[str, str], ModelOrigin]:
    from naiad.frontends.console.state import ModelOrigin

    return {
        (key, str(version)): ModelOrigin(
            backend=resolution.backend,
            code=str(resolution.model_file),
            environment=str(resolution.environment or "the host's interpreter"),
        )
        for (key, version), resolution in loader.resolutions.items()
    }


def _adapters(loader: Loader, model: str, version: str) -> Sequence[str]:
    from naiad.frontends.openai.adapters import adapter_names

    for (key, number), resolution in loader.resolutions.items():
        if str(number) == version and model in (key, resolution.model):
            return adapter_names(resolution.model_dir / version)
    return ()


def _openai_api(engine: Engine, loader: Loader, options: ServerOptions, extensions: Extensions) -> OpenAiApi | None:
    given = options.openai
    if given.port is None:
        return None
    from naiad.frontends.openai.api import OpenAiApi, OpenAiSettings
    from naiad.frontends.openai.template import ChatTemplate

    settings = OpenAiSettings(
        keys=given.api_keys,
        default_tokens=given.default_max_tokens,
        lora_separator=given.lora_separator,
        chat_template=ChatTemplate(given.chat_template) if given.chat_template is not None else None,
        max_json=options.http.max_input_size,
        restrictions=options.http.restrictions,
        origins=given.allowed_origins,
        adapters=partial(_adapters, loader),
    )
    return OpenAiApi(engine, extensions.tracer, settings)
