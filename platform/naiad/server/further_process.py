"""A process of a server beside the coordinator: listeners, replicas of models, and links to the other processes.

The coordinator starts it with one end of a socket pair and the first message, its configuration. It ends with the
coordinator: by a command, or by a signal of the kernel.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import socket
import sys
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import uvloop
from naiad_stub.process_title import name_process, rewrite_arguments

from naiad.config.server.options import ServerOptions
from naiad.core import garbage_collection, heap
from naiad.core.background_imports import import_in_background
from naiad.core.errors import NaiadError
from naiad.core.logs import ActiveLog, configure
from naiad.engine.lifecycle.exit_time import FINALIZE_SECONDS
from naiad.server.listeners import ListenerServices, listen
from naiad.server.processes.dealing import ConnectionReceiver
from naiad.server.processes.messages import ProcessConfiguration
from naiad.server.processes.process_metrics import process_families, role_of
from naiad.server.processes.remote_engine import RemoteEngine
from naiad.server.processes.shared_regions import RemoteRegions
from naiad.server.processes.shared_services import RemoteLog, RemoteMetrics, RemoteState, RemoteTracer

_TRIM_PERIOD = 2.0


class _Commands:
    """The coordinator's commands, as events of the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, engine: RemoteEngine) -> None:
        self.configuration: asyncio.Future[tuple[int, ProcessConfiguration]] = loop.create_future()
        self.listen: asyncio.Future[ServerOptions] = loop.create_future()
        self.listening: asyncio.Future[None] = loop.create_future()  # done once the ports are open, or cannot be opened
        self.stop: asyncio.Future[tuple[float, float]] = loop.create_future()
        self.regions: RemoteRegions
        self._stopped = 0.0
        self._engine = engine
        engine.services.update({"configure": self._configure, "listen": self._listen, "stop": self._stop})
        # What listeners have, once the ports are open.
        engine.services.update(dict.fromkeys(("drain", "log_settings", "reopen_log", "tracing"), lambda *_: None))

    def _configure(self, number: int, configuration: ProcessConfiguration) -> None:
        engine, options = self._engine, configuration.options
        engine.memory.processes = configuration.processes - 1
        engine.replicas.begin(options)
        self.regions = RemoteRegions(engine, is_allowed=options.general.allow_client_shm)
        engine.services.update(self.regions.services)
        self.configuration.set_result((number, configuration))

    def _listen(self, options: ServerOptions) -> asyncio.Future[None]:
        self.listen.set_result(options)
        return self.listening

    def _stop(self, for_requests: float, for_models: float) -> None:
        if not self.stop.done():
            self._stopped = asyncio.get_running_loop().time()
            self.stop.set_result((for_requests, for_models))

    def for_requests(self) -> float:
        """See `ExitTime`; after the command to stop."""
        return max(self._stopped + self.stop.result()[0] - asyncio.get_running_loop().time(), 0.0)

    def for_models(self) -> float:
        """See `ExitTime`; after the command to stop."""
        return max(self.for_requests(), min(self.stop.result()[1], FINALIZE_SECONDS))


async def _trim_periodically(engine: RemoteEngine) -> None:
    """Return memory to the system in pauses of traffic."""
    while True:
        await asyncio.sleep(_TRIM_PERIOD)
        while engine.trim():
            await asyncio.sleep(0)
        engine.replicas.maintain()


def main(descriptor: int) -> None:
    """Serve until the coordinator, at the other end of the socket pair of *descriptor*, ends this process."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # Service managers send them to all processes: this one follows the coordinator. They are not ignored, which
        # guests that it starts would inherit. `nohup` ignores SIGHUP, for guests as well: it stays ignored.
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    heap.fix_thresholds()
    uvloop.run(_serve(socket.socket(fileno=descriptor)))


async def _serve(sock: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    engine = RemoteEngine(sock, lambda: os._exit(1))  # the coordinator is gone, and with it every request
    replicas = engine.replicas
    commands = _Commands(loop, engine)
    number, configuration = await commands.configuration
    name_process(role_of(number))
    rewrite_arguments(1, [b"naiad-process", str(number).encode()])
    with configure(configuration.log, is_queued=True) as log:
        if configuration.options.http.ui:  # the page shows the log of all processes, of restarts of models for one
            log.pass_on(partial(engine.notify, "log_lines"), loop)
        first: list[asyncio.Future[Any]] = [commands.listen, commands.stop]
        await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        if commands.stop.done() or await _serve_ports(engine, commands, configuration, log, number):
            # Clients of other processes may have requests here: they are disconnected when that time is over, and
            # models have theirs after it, as in a server of one process.
            await replicas.finish_requests(commands.for_requests())
            await replicas.stop(commands.for_models())
    engine.coordinator.link.flush()
    with contextlib.suppress(OSError):
        sys.stderr.flush()


async def _serve_ports(
    engine: RemoteEngine, commands: _Commands, configuration: ProcessConfiguration, log: ActiveLog, number: int
) -> bool:
    """Serve the ports until the command to stop; whether they could be opened."""
    options = await commands.listen
    async with AsyncExitStack() as stack:
        shared_log, tracer = RemoteLog(log, engine), RemoteTracer(engine)
        assert engine.connections is not None
        connections = ConnectionReceiver(engine.connections, partial(engine.notify, "connection_ended"))
        stack.callback(connections.close)
        services = ListenerServices(
            log=shared_log,
            tracer=lambda: tracer,
            regions=commands.regions,
            exit_seconds=lambda: commands.stop.result()[0] if commands.stop.done() else 0.0,
            model_metrics=RemoteMetrics(engine),
            api_document=partial(engine.call, "api_document"),
            console=(lambda _stack, _roles: RemoteState(engine)) if options.http.ui else None,
            adapters=partial(engine.call, "adapters"),
            context=partial(engine.call, "context"),
            metrics_page=(lambda: engine.call("metrics_page")) if options.metrics.is_enabled else None,
            ask_coordinator=engine.ask,
            created=configuration.created,
            share=configuration.processes,
            connections=connections,
        )
        await import_in_background("naiad.protocol.numpy_types")  # before clients may use up the file descriptors
        try:
            listeners = await listen(engine, services, options, stack)
        except NaiadError as error:
            commands.listening.set_exception(error)
            return False
        engine.services["drain"] = listeners.drain
        engine.services["metrics"] = lambda: process_families(
            number, listeners.count, listeners.memory, requests=engine.request_count
        )
        commands.listening.set_result(None)
        gc.collect()
        garbage_collection.settle()
        trimming = asyncio.get_running_loop().create_task(_trim_periodically(engine))
        await commands.stop
        trimming.cancel()
    return True
