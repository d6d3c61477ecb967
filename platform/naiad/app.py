"""The server from start to stop: builds its objects and connects them; no other module does.

The start overlaps three things that take time: guests start as processes of their own; meanwhile a thread imports the
modules of the listeners; the ports open when both are done. Guests come first, because they take the longest.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from contextlib import AsyncExitStack
from importlib import import_module
from typing import Any

import uvloop

from naiad import garbage_collection
from naiad.config.server.backend_settings import WITHOUT_EFFECT, effective_settings
from naiad.config.server.options import ModelControlMode, ServerOptions
from naiad.engine.calls.model_control import ModelControl
from naiad.engine.engine import Engine
from naiad.engine.loading.loader import Loader, LoadSettings
from naiad.engine.serving.rate_limiter import SharedRateLimiter
from naiad.engine.settings import EngineSettings
from naiad.environments.manager import EnvironmentManager
from naiad.environments.policy import store_policy
from naiad.environments.ready_environment import withheld_variables
from naiad.errors import NaiadError
from naiad.frontends.log_settings import ServerLog
from naiad.lifecycle.restart import RestartPolicy
from naiad.logs import log_block
from naiad.repository.repositories import open_repositories
from naiad.resolution.resolve import resolution_settings
from naiad.resolution.tables import agent_table, backend_table, model_table
from naiad.scheduling.rate_limit import EVERY_DEVICE, ResourceCapacity
from naiad.workers.loop_poller import default_busy_poll_us

logger = logging.getLogger("naiad.app")

_FAILED = 1
_WITHOUT_EFFECT_REASON = (
    "the host uses anonymous segments that grow with use, a socket for messages, and no pool of threads for calls"
)


def serve(options: ServerOptions, log: ServerLog) -> int:
    """Run a server until SIGINT or SIGTERM; returns the exit code.

    Args:
        options: The options.
        log: The log; clients may change its settings while the server runs.
    """
    try:
        return uvloop.run(_serve(options, log))
    except NaiadError as error:
        logger.error("error: creating server: %s - %s", error.code.value, error.message)  # noqa: TRY400 - an error of the user's input needs no traceback
        return _FAILED


async def _serve(options: ServerOptions, log: ServerLog) -> int:
    stopping = _stop_on_signals()
    loader = build_loader(options)
    engine = build_engine(options, loader)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(engine.stop)
        starting = asyncio.ensure_future(engine.start())
        importing = asyncio.ensure_future(_import_listeners(starting, loader.launching))
        await asyncio.wait([starting, asyncio.ensure_future(stopping.wait())], return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            return 0
        failures = starting.result()
        log_block(logger, agent_table())
        log_block(logger, backend_table(loader.resolutions.values()))
        log_block(logger, model_table(engine.outcomes()))
        if failures and options.general.exit_on_error:
            logger.error("error: creating server: Internal - failed to load all models")
            return _FAILED
        await importing
        from naiad.listeners import listen

        await listen(engine, loader, options, log, stack)
        await asyncio.to_thread(_import, "naiad.protocol.numpy_types")
        garbage_collection.settle()
        await stopping.wait()
        logger.info("Waiting for in-flight requests to complete.")
        await engine.finish_sequences()
    return 0


def build_loader(options: ServerOptions, debugged: tuple[str, str] | None = None) -> Loader:
    """The loader of models, with the environments and the settings it uses; logs the warnings about the options.

    Args:
        options: The server's options.
        debugged: Name of a model to run under a debugger, and the debugger; None for no debugger.
    """
    for warning in (
        *options.warnings,
        *withheld_variables(os.environ),
    ):  # here, because every command that starts guests calls this function
        logger.warning("%s", warning)
    for key in sorted(effective_settings(options.backends.configs, "python").keys() & WITHOUT_EFFECT):
        logger.info("backend setting '%s' is accepted and has no effect: %s", key, _WITHOUT_EFFECT_REASON)
    resolution = resolution_settings(options)
    settings = LoadSettings(
        resolution=resolution,
        auto_complete=options.models.auto_complete,
        restart=RestartPolicy(options.guests.restart_limit, options.guests.restart_window_secs),
        start_timeout=options.backends.python.stub_timeout_seconds,
        debugged=debugged,
        limiter=_limiter(options),
        prewarm=options.guests.prewarm,
        busy_poll_us=default_busy_poll_us() if options.guests.busy_poll_us < 0 else options.guests.busy_poll_us,
    )
    return Loader(settings, EnvironmentManager(options.environments.store, policy=store_policy(options)))


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
        repositories=open_repositories(options.models.repositories, is_namespaced=options.models.is_namespaced),
        is_explicit=options.models.control_mode is ModelControlMode.EXPLICIT,
        poll_seconds=options.models.poll_secs if options.models.control_mode is ModelControlMode.POLL else None,
        startup_models=options.models.startup_models,
        strict_config=not options.models.auto_complete,
        strict_readiness=options.general.strict_readiness,
        config_name=options.models.config_name,
        load_threads=options.models.load_thread_count,
        load_retries=options.models.load_retry_count,
        exit_timeout=options.general.exit_timeout_secs,
        metrics=options.metrics.config,
        response_cache_size=options.cache.size,
    )
    engine = Engine(settings, loader)
    ModelControl(engine)
    return engine


def _stop_on_signals() -> asyncio.Event:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal(number: int) -> None:
        if stopping.is_set():
            logger.warning("signal %d again; still stopping", number)
        stopping.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal, number)
    return stopping


def _import(name: str) -> None:
    """Import a module; called on a thread, while the loop runs."""
    # An importing thread gives up the interpreter lock after the switch interval, 5 ms by default. The loop would wait
    # that long before each of its callbacks.
    interval = sys.getswitchinterval()
    sys.setswitchinterval(0.0005)
    try:
        import_module(name)
    finally:
        sys.setswitchinterval(interval)


async def _import_listeners(starting: asyncio.Task[Any], launching: asyncio.Event) -> None:
    """Import the modules of the listeners while guests start.

    The import begins when the guests are launched: earlier, it would compete with the loop that launches them.
    """
    launched = asyncio.ensure_future(launching.wait())
    await asyncio.wait([starting, launched], return_when=asyncio.FIRST_COMPLETED)
    launched.cancel()  # it is never set if no guest starts
    await asyncio.to_thread(_import, "naiad.listeners")
    garbage_collection.resume()
