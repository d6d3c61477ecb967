"""The server from start to end: the one place that builds its objects and ties them together."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack

import uvloop

from naiad.config.backend_settings import effective_settings
from naiad.config.options import ModelControlMode, ServerOptions
from naiad.engine.control import ModelControl
from naiad.engine.engine import Engine
from naiad.engine.limited import SharedLimiter
from naiad.engine.loading import Loader, LoadSettings
from naiad.engine.settings import EngineSettings
from naiad.environments.entries import entry_sizes
from naiad.environments.manager import EnvironmentManager
from naiad.environments.policy import store_policy
from naiad.errors import NaiadError
from naiad.frontends.access import Access
from naiad.frontends.extensions import Extensions
from naiad.frontends.grpc.server import GrpcFrontend
from naiad.frontends.grpc.settings import CompressionLevel, GrpcSettings
from naiad.frontends.http.connection import Limits
from naiad.frontends.http.listener import HttpListener
from naiad.frontends.http.messages import Exchange
from naiad.frontends.http.server import HttpFrontend
from naiad.frontends.log_settings import Log
from naiad.frontends.metrics.cache import cache_families
from naiad.frontends.metrics.collect import Collector
from naiad.frontends.metrics.custom import custom_families
from naiad.frontends.metrics.guests import guest_families, store_families
from naiad.frontends.metrics.server import MetricsFrontend
from naiad.frontends.openai.api import OpenAiApi, OpenAiSettings
from naiad.frontends.openai.template import ChatTemplate
from naiad.frontends.regions import ClientRegions
from naiad.frontends.tracing import Tracer
from naiad.frontends.ui.page import Ui
from naiad.frontends.ui.state import Origin, State
from naiad.lifecycle.restart import RestartPolicy
from naiad.logs import log_block
from naiad.repository.repositories import open_repositories
from naiad.resolution.settings import resolution_settings
from naiad.resolution.tables import agent_table, backend_table, model_table
from naiad.scheduling.rate_limit import EVERY_DEVICE, Limit
from naiad.workers.pulse import default_busy_poll_us

logger = logging.getLogger("naiad.app")

_FAILED = 1
_COLLECT_EVERY = 10_000
_WITHOUT_EFFECT = frozenset(
    {
        "shm-default-byte-size",
        "shm-growth-byte-size",
        "shm-region-prefix-name",
        "shm_message_queue_size",
        "thread-pool-size",
    }
)
_WHY = "segments are anonymous and grow by being used, messages travel on a socket, and calls wait in no pool"


def serve(options: ServerOptions, log: Log) -> int:
    """Run a server, whose *log* clients may set otherwise, until it is told to stop; return the exit code."""
    try:
        return uvloop.run(_serve(options, log))
    except NaiadError as error:
        logger.error("error: creating server: %s - %s", error.code.value, error.message)  # noqa: TRY400 - the user's
        return _FAILED


async def _serve(options: ServerOptions, log: Log) -> int:
    stopping = _stop_on_signals()
    loader = build_loader(options)
    engine = build_engine(options, loader)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(engine.stop)
        starting = asyncio.ensure_future(engine.start())
        await asyncio.wait([starting, asyncio.ensure_future(stopping.wait())], return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            return 0
        failures = starting.result()
        log_block(logger, agent_table())
        log_block(logger, backend_table(loader.resolutions.values()))
        log_block(logger, model_table(engine.outcomes()))
        if failures and options.exit_on_error:
            logger.error("error: creating server: Internal - failed to load all models")
            return _FAILED
        tracer = Tracer(options.trace)
        stack.callback(tracer.close)
        regions = ClientRegions(is_allowed=options.allow_client_shm)
        extensions = Extensions(regions=regions, log=log, tracer=tracer, model_metrics=engine.metrics)
        openai = _openai_api(engine, options, extensions)
        await _start_frontends(engine, options, extensions, stack, _further(engine, loader, options, openai))
        await _start_openai(engine, options, stack, openai)
        _settle_memory()
        await stopping.wait()
        logger.info("Waiting for in-flight requests to complete.")
        await engine.finish_sequences()
    return 0


def build_loader(options: ServerOptions, debugged: tuple[str, str] | None = None) -> Loader:
    """What loads models, and what that stands on; *debugged* names a model to run under a debugger, and which."""
    for warning in options.warnings:  # here, as all that starts a server does
        logger.warning("%s", warning)
    for key in sorted(_WITHOUT_EFFECT & effective_settings(options.backend_configs, "python").keys()):
        logger.info("backend setting '%s' is accepted and has no effect: %s", key, _WHY)
    resolution = resolution_settings(options)
    settings = LoadSettings(
        resolution=resolution,
        auto_complete=options.auto_complete,
        restart=RestartPolicy(options.stub_restart_limit, options.stub_restart_window_secs),
        start_timeout=options.python_settings.stub_timeout_seconds,
        debugged=debugged,
        limiter=_limiter(options),
        prewarm=options.prewarm,
        busy_poll_us=default_busy_poll_us() if options.busy_poll_us < 0 else options.busy_poll_us,
    )
    library, policy = resolution.guest.library_dir, store_policy(options)
    return Loader(settings, EnvironmentManager(options.env_store, guest_library=library, policy=policy))


def _limiter(options: ServerOptions) -> SharedLimiter | None:
    limits = options.resource_limits
    if limits is None:
        return None
    return SharedLimiter(
        Limit(limit.name, limit.count, EVERY_DEVICE if limit.device is None else limit.device) for limit in limits
    )


def build_engine(options: ServerOptions, loader: Loader) -> Engine:
    """The engine; on a running event loop."""
    settings = EngineSettings(
        server_id=options.server_id,
        repositories=open_repositories(options.model_repositories, is_namespaced=options.model_namespacing),
        is_explicit=options.model_control_mode is ModelControlMode.EXPLICIT,
        poll_seconds=options.repository_poll_secs if options.model_control_mode is ModelControlMode.POLL else None,
        startup_models=options.load_models,
        strict_config=not options.auto_complete,
        strict_readiness=options.strict_readiness,
        config_name=options.model_config_name,
        load_threads=options.model_load_thread_count,
        load_retries=options.model_load_retry_count,
        exit_timeout=options.exit_timeout_secs,
        metrics=options.metrics,
        response_cache_size=options.response_cache_size,
    )
    engine = Engine(settings, loader)
    ModelControl(engine)
    return engine


def grpc_settings(options: ServerOptions) -> GrpcSettings:
    """The gRPC flags as settings of the transport."""
    return GrpcSettings(
        keepalive_time_ms=options.grpc_keepalive_time,
        keepalive_timeout_ms=options.grpc_keepalive_timeout,
        keepalive_permit_without_calls=options.grpc_keepalive_permit_without_calls,
        http2_max_pings_without_data=options.grpc_http2_max_pings_without_data,
        http2_min_recv_ping_interval_without_data_ms=options.grpc_http2_min_recv_ping_interval_without_data,
        http2_max_ping_strikes=options.grpc_http2_max_ping_strikes,
        max_connection_age_ms=options.grpc_max_connection_age,
        max_connection_age_grace_ms=options.grpc_max_connection_age_grace,
        response_compression=CompressionLevel[options.grpc_infer_response_compression_level.upper()],
    )


def metrics_frontend(engine: Engine, options: ServerOptions, *more: Collector) -> MetricsFrontend:
    """The page of all metrics and *more*, not started."""
    return MetricsFrontend(
        engine,
        address=options.metrics_address,
        port=options.metrics_port,
        collectors=[
            lambda: cache_families(engine.response_cache),
            lambda: guest_families(engine.instances()),
            lambda: store_families(entry_sizes(options.env_store)),
            lambda: custom_families(engine.metrics),
            *more,
        ],
        with_system=options.allow_cpu_metrics,
        with_counters=options.metrics.counters,
    )


async def _start_frontends(
    engine: Engine,
    options: ServerOptions,
    extensions: Extensions,
    stack: AsyncExitStack,
    further: Callable[[Exchange], bool] | None,
) -> None:
    grace = options.exit_timeout_secs
    if options.allow_grpc:
        grpc = GrpcFrontend(
            engine,
            address=options.grpc_address,
            port=options.grpc_port,
            reuse_port=options.reuse_grpc_port,
            settings=grpc_settings(options),
            extensions=extensions,
            access=Access(restrictions=options.grpc_restrictions, forward=options.grpc_forward),
            tls=options.grpc_tls,
        )
        port = await grpc.start()
        stack.push_async_callback(grpc.stop, grace)
        logger.info("Started GRPCInferenceService at %s:%d", options.grpc_address, port)
    if options.allow_http:
        http = HttpFrontend(
            engine,
            address=options.http_address,
            port=options.http_port,
            reuse_port=options.reuse_http_port,
            max_json=options.http_max_input_size,
            limits=Limits(header_bytes=options.max_header_bytes),
            extensions=extensions,
            access=Access(restrictions=options.http_restrictions, forward=options.http_forward),
            tls=options.http_tls,
            further=further,
        )
        port = await http.start()
        stack.push_async_callback(http.stop, grace)
        logger.info("Started HTTPService at %s:%d", options.http_address, port)
        if options.ui:
            logger.info("Started the page at %s:%d/ui", options.http_address, port)
        if options.openai_shares_http:
            logger.info("Started OpenAI's API at %s:%d", options.http_address, port)
    if options.allow_metrics:
        metrics = metrics_frontend(engine, options)
        port = await metrics.start()
        stack.push_async_callback(metrics.stop)
        logger.info("Started Metrics Service at %s:%d", options.metrics_address, port)


async def _start_openai(
    engine: Engine, options: ServerOptions, stack: AsyncExitStack, openai: OpenAiApi | None
) -> None:
    if openai is None or options.openai is None or options.openai_shares_http:
        return
    listener = HttpListener(
        openai.handle,
        engine.cancel,
        address=options.openai.address,
        port=options.openai.port,
        advice="choose another --openai-port or --openai-address",
        limits=Limits(header_bytes=options.max_header_bytes),
        tls=options.http_tls,
    )
    port = await listener.start()
    stack.push_async_callback(listener.stop, options.exit_timeout_secs)
    logger.info("Started OpenAI's API at %s:%d", options.openai.address, port)


def _further(
    engine: Engine, loader: Loader, options: ServerOptions, openai: OpenAiApi | None
) -> Callable[[Exchange], bool] | None:
    """What answers on the port of HTTP for paths that are none of KServe's."""
    handlers: list[Callable[[Exchange], bool]] = []
    if openai is not None and options.openai_shares_http:
        handlers.append(openai.handle_further)
    if options.ui:
        handlers.append(Ui(State(engine, lambda: _origins(loader))).handle_further)
    return (lambda exchange: any(handle(exchange) for handle in handlers)) if handlers else None


def _origins(loader: Loader) -> Mapping[tuple[str, str], Origin]:
    return {
        (key, str(version)): Origin(
            backend=resolution.backend,
            code=str(resolution.model_file),
            environment=str(resolution.environment or "the host's interpreter"),
        )
        for (key, version), resolution in loader.resolutions.items()
    }


def _openai_api(engine: Engine, options: ServerOptions, extensions: Extensions) -> OpenAiApi | None:
    given = options.openai
    if given is None:
        return None
    settings = OpenAiSettings(
        keys=given.keys,
        default_tokens=given.default_tokens,
        lora_separator=given.lora_separator,
        chat_template=ChatTemplate(given.chat_template) if given.chat_template is not None else None,
        max_json=options.http_max_input_size,
        restrictions=options.http_restrictions,
        origins=given.origins,
    )
    return OpenAiApi(engine, extensions.tracer, settings)


def _stop_on_signals() -> asyncio.Event:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stop(number: int) -> None:
        if stopping.is_set():
            logger.warning("signal %d again; still stopping", number)
        stopping.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, number)
    return stopping


def _settle_memory() -> None:
    """Keep the collector off what lives as long as the server: a full collection would stop all requests for it."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECT_EVERY, 20, 20)
