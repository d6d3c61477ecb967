"""The server from start to stop: builds its objects and connects them; no other module does.

The start overlaps two things that take time: guests start as separate processes; meanwhile a thread imports the modules
of the listeners, and the ports open. Guests come first, because they take the longest. While models load, the server is
live and not ready. Ports that are shared with other servers open afterwards: the kernel would give this server
connections that the others could serve.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import uvloop

from naiad.config.server.backend_settings import ENVIRONMENT_SETTING, WITHOUT_EFFECT, effective_settings
from naiad.config.server.option_rows import option_rows
from naiad.config.server.options import ModelControlMode, ServerOptions
from naiad.core import garbage_collection
from naiad.core.background_imports import import_in_background
from naiad.core.errors import NaiadError
from naiad.core.gpus import find_gpus, gpu_uuid
from naiad.core.logs import ActiveLog, RecentLines, log_block
from naiad.engine.calls.model_control import ModelControl
from naiad.engine.engine import Engine
from naiad.engine.lifecycle.restart import RestartPolicy
from naiad.engine.loading.loader import Loader, LoadSettings
from naiad.engine.scheduling.rate_limit import EVERY_DEVICE, ResourceCapacity
from naiad.engine.serving.rate_limiter import SharedRateLimiter
from naiad.engine.settings import EngineSettings
from naiad.environments.manager import EnvironmentManager
from naiad.environments.policy import store_policy
from naiad.environments.ready_environment import activated_environment, withheld_variables
from naiad.environments.store.opening import open_store
from naiad.guests.loop_poller import default_busy_poll_us
from naiad.guests.memory.link_memory import LinkMemory
from naiad.guests.memory.machine import require_proc
from naiad.models.repository.read import gpu_placement
from naiad.models.repository.repositories import open_repositories_of
from naiad.models.resolution.resolve import resolution_settings
from naiad.models.resolution.tables import agent_table, backend_table, failed_models, model_table, option_table
from naiad.server.ports import require_free_ports
from naiad.server.processes.spawned import SpawnedProcesses
from naiad.server.signals import call_on_hangup, stop_on_signals

if TYPE_CHECKING:
    from naiad.engine.serving.replicas import ReplicaMaker
    from naiad.frontends.tracing.tracer import Tracer
    from naiad.server.listeners import Listeners
    from naiad.server.processes.pool import ProcessPool
    from naiad.server.processes.replicas import ReplicaProcesses

logger = logging.getLogger("naiad.app")

_FAILED = 1
_LAUNCH_SECONDS = 0.3  # how long the imports of the listeners leave the processor to the launch of guests
_WITHOUT_EFFECT_REASON = (
    "the host uses anonymous segments that grow with use, a socket for messages, and no pool of threads for calls; the "
    "parameter memory_limit of a model limits its memory"
)


class Supervisor(Protocol):
    """The connection to the program that started this server."""

    async def run(self, engine: Engine) -> None:
        """Answer the program's questions; runs from before the models load until the server stops."""

    def on_listening(self, ports: Mapping[str, int]) -> None:
        """The server is ready for clients; *ports* has the number of each open port by name (`Listeners.ports`)."""


class OpenPorts(NamedTuple):
    """The open ports of a server, of all its processes."""

    listeners: Listeners  # those of this process
    drain: Callable[[], None]  # has clients connect to other servers
    reopen: Callable[[], None]  # opens the trace file again by its name, and the log file in the other processes


class StartedProcesses(NamedTuple):
    """The other processes of the server, before they listen."""

    pool: ProcessPool
    tracer: Tracer  # traces requests of all of them
    created: int


def serve(
    options: ServerOptions, log: ActiveLog, supervisor: Supervisor | None = None, *, is_brief: bool = False
) -> int:
    """Run a server until SIGINT or SIGTERM; returns the exit code.

    With *is_brief*, the last line of a failed start says why, and the table of options is left out unless the log is
    verbose. Else both are as in the reference.
    """
    try:
        return uvloop.run(_serve(options, log, supervisor, is_brief=is_brief))
    except NaiadError as error:
        if is_brief:
            logger.error("cannot serve: %s", error.message)  # noqa: TRY400 - an error of the user's input needs no traceback
        else:
            logger.error("error: creating server: %s - %s", error.code.value, error.message)  # noqa: TRY400 - as above
        return _FAILED


async def _serve(options: ServerOptions, log: ActiveLog, supervisor: Supervisor | None, *, is_brief: bool) -> int:
    stopping = stop_on_signals(log.flush)
    if options.log.file is not None:
        call_on_hangup(log.reopen)
    require_free_ports(options)
    _require_valid_tls(options)
    recent = log.keep_recent() if options.http.ui else None  # before the models load: the page shows why they failed
    replicas = make_replicas(options)
    if replicas is not None and recent is not None:
        replicas.keep_lines = recent.add
    loader = build_loader(options, replicas=replicas)
    engine = build_engine(options, loader)
    engine.is_reachable = False
    async with AsyncExitStack() as stack:
        if replicas is not None:
            stack.callback(replicas.close)
        stack.push_async_callback(engine.stop)
        if supervisor is not None:
            supervising = asyncio.ensure_future(supervisor.run(engine))
            stack.callback(supervising.cancel)
        processes = None
        if replicas is not None:
            processes = start_processes(engine, loader.link_memory, replicas, options, log, stack)
        starting, may_listen = asyncio.ensure_future(engine.start()), asyncio.Event()
        if options.general.listen_while_loading and not (options.http.reuse_port or options.grpc.reuse_port):
            may_listen.set()
        listening = await stack.enter_async_context(AsyncExitStack())

        async def open_ports() -> OpenPorts:
            await _import_listeners(starting, loader.launching)
            await may_listen.wait()
            opened = await listen(engine, loader, options, log, listening, processes, recent)
            if not starting.done():
                ports = ", ".join(f"{name} {port}" for name, port in opened.listeners.ports.items())
                logger.info("The models load, and the server answers meanwhile: %s", ports)
            return opened

        opening = asyncio.ensure_future(open_ports())
        stack.push_async_callback(_cancel, opening)  # called first, so that the ports are closed after it
        failures = await _loaded(engine, starting, opening, stopping)
        if failures is None:
            return 0
        log_block(logger, agent_table())
        log_block(logger, backend_table(loader.resolutions.values()))
        log_block(logger, model_table(engine.outcomes()))
        if not is_brief or options.log.verbosity:
            log_block(logger, option_table(option_rows(options, engine.server_metadata())))
        if failures and options.general.exit_on_error:
            why = failed_models(engine.outcomes())
            if is_brief and why:
                logger.error("cannot serve: %s", why)
            else:
                logger.error("error: creating server: Internal - failed to load all models")
            return _FAILED
        may_listen.set()
        ports = await opening
        for line in ports.listeners.started:
            logger.info("%s", line)
        # A client that waits for readiness on one port may then use any other.
        engine.is_reachable = True
        if supervisor is not None:
            supervisor.on_listening(ports.listeners.ports)
        if options.log.file is not None or options.trace.config.file:
            call_on_hangup(log.reopen, ports.reopen)
        garbage_collection.settle()
        await stopping.wait()
        # Not ready from now on: load balancers send new requests to other servers.
        engine.is_reachable = False
        if options.general.drain_seconds:
            stopping.clear()
            await _drain(ports.drain, options.general.drain_seconds, stopping)
        logger.info("Waiting for in-flight requests to complete.")
        await engine.end_loads()
        if replicas is not None:
            replicas.close_replicas()
        await engine.finish_sequences()
    return 0


async def _loaded(
    engine: Engine,
    starting: asyncio.Future[list[NaiadError]],
    opening: asyncio.Future[OpenPorts],
    stopping: asyncio.Event,
) -> list[NaiadError] | None:
    """Wait for the models; the errors of those that failed, None after a signal. NaiadError for a port or file."""
    signalled = asyncio.ensure_future(stopping.wait())
    ends: list[asyncio.Future[Any]] = [starting, signalled]
    await asyncio.wait([*ends, opening], return_when=asyncio.FIRST_COMPLETED)
    if opening.done() and opening.exception() is None:
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    if starting.done():
        return starting.result()
    if signalled.done():
        logger.info("Stopping before the models are loaded; a second signal ends at once.")
    await engine.end_loads()
    await _cancel(starting)
    if not signalled.done():
        opening.result()  # raises the reason
    return None


async def _cancel(task: asyncio.Future[Any]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _require_valid_tls(options: ServerOptions) -> None:
    """Reject certificates and keys that cannot be used (OptionError) before models load, which may take minutes."""
    serves_http = options.http.is_enabled or options.openai.port is not None
    for is_served, files in ((serves_http, options.http.tls), (options.grpc.is_enabled, options.grpc.tls)):
        if is_served and files is not None:
            from naiad.frontends.tls import http_context  # imported late: most servers do without TLS

            http_context(files)


async def listen(
    engine: Engine,
    loader: Loader,
    options: ServerOptions,
    log: ActiveLog,
    stack: AsyncExitStack,
    processes: StartedProcesses | None,
    recent: RecentLines | None = None,
) -> OpenPorts:
    """Serve on all ports until *stack* is closed, in *processes* if there are several; NaiadError if one is taken."""
    from naiad.server import listeners as ports

    services = ports.server_services(engine, loader, options, log, recent)
    if processes is None:
        listeners = await ports.listen(engine, services, options, stack)
        await listeners.open_metrics(options.metrics.address)
        return OpenPorts(listeners, listeners.drain, listeners.tracer.reopen)
    from naiad.server.coordinator import listen_in_processes

    pool, tracer, created = processes
    services = replace(services, created=created)
    listeners = await listen_in_processes(engine, pool, tracer, services, options, log, stack)

    def drain() -> None:
        listeners.drain()
        pool.drain()

    def reopen() -> None:
        listeners.tracer.reopen()
        pool.reopen_logs()

    return OpenPorts(listeners, drain, reopen)


def make_replicas(options: ServerOptions) -> ReplicaProcesses | None:
    """What runs instances in other processes of the server; None if the options ask for one process."""
    if options.general.processes <= 1:
        return None
    from naiad.server.processes.replicas import ReplicaProcesses  # imported late: the usual server has one process

    return ReplicaProcesses(options.general.processes)


def start_processes(
    engine: Engine,
    memory: LinkMemory | None,
    replicas: ReplicaProcesses,
    options: ServerOptions,
    log: ActiveLog,
    stack: AsyncExitStack,
) -> StartedProcesses:
    """Start the processes of a server that has several: they run instances of the models that are loaded now."""
    from naiad.frontends.tracing.tracer import Tracer  # imported late: the usual server has one process
    from naiad.server.processes.messages import ProcessConfiguration
    from naiad.server.processes.pool import ProcessPool

    assert memory is not None
    replicas.services = engine.services
    engine.services.calls.ask_again = replicas.gather_waits
    engine.count_elsewhere = replicas.gather
    spawned = SpawnedProcesses()
    stack.push_async_callback(spawned.close)
    tracer = Tracer(options.trace.config)
    configuration = ProcessConfiguration(options, log.settings, options.general.processes, int(time.time()))
    others = options.general.processes - 1
    pool = ProcessPool(engine, memory, tracer, others, configuration, spawned, replicas)
    stack.push_async_callback(lambda: pool.stop(0.0))  # if the server ends before it listens
    pool.connect()
    return StartedProcesses(pool, tracer, configuration.created)


async def _drain(drain: Callable[[], None], seconds: int, stopping: asyncio.Event) -> None:
    """Serve on for *seconds*, or until the next signal, while clients connect to other servers."""
    logger.info("Not ready any more, and serving for %d more seconds; a second signal ends this.", seconds)
    drain()
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(stopping.wait(), seconds)
    stopping.set()


def build_loader(
    options: ServerOptions,
    debugged: tuple[str, str] | None = None,  # a model to run under a debugger, and the debugger
    *,
    replicas: ReplicaMaker | None = None,  # of a server with several processes, which run instances
) -> Loader:
    """The loader of models; logs the warnings about the options. UnsupportedRequestError if /proc is missing."""
    require_proc()  # here, because every command that starts guests calls this function
    python_settings = effective_settings(options.backends.configs, "python")
    # Here, because every command that starts guests calls this function.
    for warning in (*options.warnings, *withheld_variables(os.environ)):
        logger.warning("%s", warning)
    for key in sorted(python_settings.keys() & WITHOUT_EFFECT):
        logger.info("backend setting '%s' is accepted and has no effect: %s", key, _WITHOUT_EFFECT_REASON)
    if options.models.gpu_fallback == "cpu" and not find_gpus():
        logger.warning(
            "there is no GPU that models may use: instance groups of KIND_GPU are placed on the CPU "
            "(--gpu-fallback=cpu)"
        )
    open_store(options.environments.store)
    resolution = resolution_settings(options)
    settings = LoadSettings(
        resolution=resolution,
        auto_complete=options.models.auto_complete,
        restart=RestartPolicy(
            options.guests.restart_limit, options.guests.restart_window_secs, options.guests.recovery_secs
        ),
        start_timeout=options.backends.python.stub_timeout_seconds,
        activated=None if ENVIRONMENT_SETTING in python_settings else activated_environment(os.environ),
        debugged=debugged,
        limiter=_limiter(options),
        prewarm=options.guests.prewarm,
        hang_seconds=options.guests.hang_seconds,
        log_rate=options.guests.log_rate,
        guest_env=options.guests.environ,
        guest_user=options.guests.user,
        gpu_pools=_gpu_pools(options),
        busy_poll_us=default_busy_poll_us() if options.guests.busy_poll_us < 0 else options.guests.busy_poll_us,
        link_memory=None if replicas is None else LinkMemory(options.general.processes - 1),
        replicas=replicas,
        is_caching=bool(options.cache.size),
    )
    return Loader(settings, EnvironmentManager(options.environments.store, policy=store_policy(options)))


def _gpu_pools(options: ServerOptions) -> Mapping[str, int]:
    """What guests may share of the GPUs that are here, by UUID."""
    found = {}
    for number, size in options.guests.gpu_pools.items():
        uuid = gpu_uuid(number)
        if uuid is None:
            logger.warning("--cuda-memory-pool-byte-size=%d:%d has no effect: there is no GPU %d", number, size, number)
        else:
            found[uuid.hex()] = size
    return found


def _limiter(options: ServerOptions) -> SharedRateLimiter | None:
    limits = options.rate_limit.resources
    if limits is None:
        return None
    return SharedRateLimiter(
        ResourceCapacity(limit.name, limit.count, EVERY_DEVICE if limit.device is None else limit.device)
        for limit in limits
    )


def build_engine(options: ServerOptions, loader: Loader) -> Engine:
    """The engine, not started; call it on a running event loop."""
    settings = EngineSettings(
        server_id=options.general.server_id,
        repositories=open_repositories_of(options),
        is_explicit=options.models.control_mode is ModelControlMode.EXPLICIT,
        poll_seconds=options.models.poll_secs if options.models.control_mode is ModelControlMode.POLL else None,
        is_demand=options.models.control_mode is ModelControlMode.DEMAND,
        demand_load_timeout=options.models.demand_load_timeout,
        demand_idle_seconds=options.models.demand_idle_seconds,
        models_memory=options.models.models_memory,
        startup_models=options.models.startup_models,
        strict_config=not options.models.auto_complete,
        strict_readiness=options.general.strict_readiness,
        gpus=gpu_placement(falls_back=options.models.gpu_fallback == "cpu"),
        config_name=options.models.config_name,
        load_threads=options.models.load_thread_count,
        load_retries=options.models.load_retry_count,
        exit_timeout=options.general.exit_timeout_secs,
        metrics=options.metrics.config,
        counts_latencies=options.http.ui,
        response_cache_size=options.cache.size,
    )
    engine = Engine(settings, loader)
    ModelControl(engine)
    return engine


async def _import_listeners(starting: asyncio.Task[Any], launching: asyncio.Event) -> None:
    """Import the modules of the listeners, and numpy, while guests start.

    The import begins when the guests are launched: earlier, it would compete with the loop that launches them. Guests
    whose environments are built first are not waited for. It ends before the first port is open: clients may then use
    up all file descriptors, and an import of numpy that fails cannot be repeated.
    """
    launched = asyncio.ensure_future(launching.wait())
    await asyncio.wait([starting, launched], timeout=_LAUNCH_SECONDS, return_when=asyncio.FIRST_COMPLETED)
    launched.cancel()  # it is never set if no guest starts
    await import_in_background("naiad.server.listeners")
    await import_in_background("naiad.protocol.numpy_types")
    garbage_collection.resume()
