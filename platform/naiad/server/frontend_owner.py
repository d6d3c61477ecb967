"""Serves the ports of a server by frontend processes, on the engine of this process."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from typing import Any

from naiad.config.server.options import ServerOptions
from naiad.core.gpus import gpu_uuid
from naiad.core.logs import ActiveLog
from naiad.engine.engine import Engine
from naiad.frontends.console.page import StateSource
from naiad.frontends.metrics.server import MetricsFrontend
from naiad.frontends.regions import ClientRegions
from naiad.frontends.tracing.tracer import Tracer
from naiad.server.http_api import openai_package
from naiad.server.listeners import Listeners, ListenerServices, listen, metrics_frontend
from naiad.server.processes.messages import FrameKind
from naiad.server.processes.pool import FrontendPool
from naiad.server.processes.ports import reserved_ports, shared_ports, without_frontends
from naiad.server.processes.shared_log import SharedLog
from naiad.server.processes.shared_regions import SharedRegions

__all__ = ["listen_in_processes"]


async def listen_in_processes(
    engine: Engine,
    pool: FrontendPool,
    tracer: Tracer,
    services: ListenerServices,
    options: ServerOptions,
    log: ActiveLog,
    stack: AsyncExitStack,
) -> Listeners:
    """Serve on all ports that the options name until *stack* is closed: metrics in this process, the others in theirs.

    Args:
        engine: The engine.
        pool: The processes, which are connected.
        tracer: Traces requests of all processes.
        services: What the listeners need.
        options: The server's options.
        log: The log.
        stack: Ends the processes.

    Raises:
        NaiadError: If a port is not available, or a process cannot serve.
    """
    shared = stack.enter_context(reserved_ports(options))

    async def collect() -> None:
        await asyncio.gather(pool.collect(), engine.gather_counts())

    services = replace(
        services,
        tracer=lambda: tracer,
        metrics=lambda _: metrics_frontend(engine, options, pool.families, prepare=collect),
    )
    own = await listen(engine, services, without_frontends(options), stack)
    pool.services.update(_owner_services(engine, services, options, log, pool, stack), **_traces(tracer, pool))
    pool.services.update(_openai_services(options, own.metrics))
    stack.push_async_callback(lambda: pool.stop(engine.exit_time.for_requests(), engine.exit_time.for_models()))
    own.started += await pool.start(shared)
    await own.open_metrics(options.metrics.address)
    own.ports |= shared_ports(shared)
    return own


async def _console_document(console: StateSource, pool: FrontendPool, name: str, *arguments: str) -> Any:
    """A document of the page; the state also has what each process has to do."""
    document = await console.document(name, *arguments)
    if name == "state":
        figures = await pool.figures()
        for process in document["processes"]:
            process.update(figures.get(process["pid"], {}))
    return document


def _traces(tracer: Tracer, pool: FrontendPool) -> Mapping[str, Callable[..., Any]]:
    """What frontend processes may call of traces."""

    async def change(model: str, changes: Mapping[str, Any]) -> None:
        tracer.change(model, changes)
        await pool.announce(FrameKind.TRACING, tracer.is_on)

    return {"is_tracing": lambda: tracer.is_on, "trace_settings": tracer.settings, "change_traces": change}


def _openai_services(options: ServerOptions, metrics: MetricsFrontend | None) -> Mapping[str, Callable[..., Any]]:
    """What frontend processes may call for OpenAI's API."""
    if options.openai.port is None:
        return {}
    found = dict(openai_package().owner_services(options))
    if metrics is not None:
        found["metrics_page"] = metrics.page
    return found


def _owner_services(
    engine: Engine,
    services: ListenerServices,
    options: ServerOptions,
    log: ActiveLog,
    pool: FrontendPool,
    stack: AsyncExitStack,
) -> Mapping[str, Callable[..., Any]]:
    """What frontend processes may call beside the engine's door."""
    shared_log = SharedLog(log, lambda settings: pool.broadcast(FrameKind.LOG_SETTINGS, settings))
    registry = ClientRegions(is_allowed=options.general.allow_client_shm, find_gpu=gpu_uuid)
    regions = SharedRegions(registry, pool)
    pool.first_messages = regions.messages

    def settled(change: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
        """*change*, which returns once the other processes can know of it."""

        async def changed(*arguments: Any, **keywords: Any) -> Any:
            result = change(*arguments, **keywords)
            if isinstance(result, Awaitable):
                result = await result
            await pool.wait_sent()
            return result

        return changed

    def roles() -> Mapping[int, str]:
        return {os.getpid(): "owner", **{pid: f"frontend {slot}" for slot, pid in enumerate(pool.pids)}}

    console = None if services.console is None else services.console(stack, roles)
    return {
        **({} if console is None else {"console_document": partial(_console_document, console, pool)}),
        "api_document": services.api_document,
        "model_metrics": lambda: list(services.model_metrics),
        "adapters": services.adapters,
        "context": services.context,
        "log_settings": shared_log.settings,
        "change_log": settled(shared_log.change),
        "register_region": settled(regions.register),
        "unregister_region": settled(regions.unregister),
        "find_part": regions.part,
        "load": settled(engine.load),
        "unload": settled(engine.unload),
    }
