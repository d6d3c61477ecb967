"""The process that loads models, of a server that has several: it serves the ports like the others.

The other processes ask it for what there is one of (models, settings, regions, traces, stored responses); its own
listeners use the same things directly.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

from naiad.config.server.options import ServerOptions
from naiad.core.gpus import gpu_uuid
from naiad.core.logs import ActiveLog
from naiad.engine.engine import Engine
from naiad.engine.lifecycle.process_placement import COORDINATOR
from naiad.frontends.console.page import StateSource
from naiad.frontends.metrics.families import Family
from naiad.frontends.metrics.server import MetricsFrontend
from naiad.frontends.regions import ClientRegions
from naiad.frontends.tracing.tracer import Tracer
from naiad.server.http_api import openai_package
from naiad.server.listeners import Listeners, ListenerServices, listen, metrics_frontend
from naiad.server.processes.dealing import ConnectionDealer
from naiad.server.processes.pool import ProcessPool
from naiad.server.processes.process_metrics import process_families, role_of
from naiad.server.processes.shared_regions import SharedRegions
from naiad.server.processes.shared_services import SharedLog


async def listen_in_processes(
    engine: Engine,
    pool: ProcessPool,
    tracer: Tracer,
    services: ListenerServices,
    options: ServerOptions,
    log: ActiveLog,
    stack: AsyncExitStack,  # ends the processes
) -> Listeners:
    """Serve on all ports, in all processes, until *stack* is closed; metrics in this one alone. NaiadError if not."""
    engine.wait_announced = pool.wait_sent
    shared_log = SharedLog(log, pool)
    regions = SharedRegions(ClientRegions(is_allowed=options.general.allow_client_shm, find_gpu=gpu_uuid), pool)
    tracer.on_change = lambda is_on: pool.announce("tracing", is_on)
    stored = {} if options.openai.port is None else openai_package().coordinator_services(options)

    async def collect() -> None:
        await asyncio.gather(pool.collect(), engine.gather_counts())

    def metrics(listeners: Listeners) -> MetricsFrontend:
        def families() -> Sequence[Family]:
            return pool.families(_own_families(listeners, engine, pool), engine.received_count)

        return metrics_frontend(engine, options, families, prepare=collect)

    def roles() -> Mapping[int, str]:
        return {os.getpid(): role_of(COORDINATOR), **{pid: role_of(number) for number, pid in pool.pids.items()}}

    connections = pool.connections = ConnectionDealer()
    stack.callback(connections.close)
    console = None if services.console is None else services.console(stack, roles)
    page = None if console is None else _ConsoleOfProcesses(console, pool)
    services = replace(
        services,
        log=shared_log,
        tracer=lambda: tracer,
        regions=regions,
        metrics=metrics,
        ask_coordinator=lambda name, *arguments: stored[name](*arguments),
        console=None if page is None else (lambda *_: page),
        connections=connections,
        share=options.general.processes,
    )
    own = await listen(engine, services, options, stack)
    if page is not None:
        page.own = lambda: {"connections": own.count.open, "requests": engine.received_count}
        pool.services["console_document"] = page.document
    if own.metrics is not None:
        pool.services["metrics_page"] = own.metrics.page
    pool.services.update(stored)
    pool.services.update(_services(services, regions, shared_log, tracer))
    pool.first_calls = regions.calls

    async def stop() -> None:
        exit_time = engine.exit_time
        grace = exit_time.for_requests()
        connections.stop()
        await asyncio.gather(pool.stop(grace, exit_time.for_models()), own.stop_clients(grace))

    stack.push_async_callback(stop)
    await pool.start(_with_ports(options, own.ports))
    await own.open_metrics(options.metrics.address)
    return own


def _with_ports(options: ServerOptions, ports: Mapping[str, int]) -> ServerOptions:
    """The options of the other processes: with the ports that are open."""
    http, grpc, openai = options.http, options.grpc, options.openai
    return replace(
        options,
        http=replace(http, port=ports.get("http", http.port)),
        grpc=replace(grpc, port=ports.get("grpc", grpc.port)),
        openai=replace(openai, port=ports.get("openai", openai.port)),
    )


class _ConsoleOfProcesses:
    """The documents of the page; the state also has what each process has to do."""

    def __init__(self, source: StateSource, pool: ProcessPool) -> None:
        self.own: Callable[[], Mapping[str, int]] = dict  # what this process has to do
        self._source = source
        self._pool = pool

    async def document(self, name: str, *arguments: str) -> Any:
        document = await self._source.document(name, *arguments)
        if name == "state":
            figures = {os.getpid(): self.own(), **await self._pool.figures()}
            for process in document["processes"]:
                process.update(figures.get(process["pid"], {}))
        return document


def _own_families(listeners: Listeners, engine: Engine, pool: ProcessPool) -> Sequence[Family]:
    requests = max(engine.in_flight - pool.request_count, 0)
    return process_families(COORDINATOR, listeners.count, listeners.memory, requests=requests)


def _services(
    services: ListenerServices, regions: SharedRegions, log: SharedLog, tracer: Tracer
) -> Mapping[str, Callable[..., Any]]:
    """What other processes may call beside the engine's facade."""
    return {
        "api_document": services.api_document,
        "model_metrics": lambda: list(services.model_metrics),
        "adapters": services.adapters,
        "context": services.context,
        "is_tracing": lambda: tracer.is_on,
        "trace_settings": tracer.settings,
        "change_traces": tracer.change,
        "log_settings": lambda: log.settings,
        "change_log": log.change,
        "register_region": regions.register,
        "register_cuda_region": regions.register_cuda,
        "unregister_region": regions.unregister,
        "find_part": regions.part,
    }
