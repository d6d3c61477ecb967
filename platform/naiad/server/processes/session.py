"""Another process of the server as the coordinator sees it: its requests and calls, and what it is told."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from naiad_stub import wire

from naiad.core.errors import NaiadError, unexpected_error
from naiad.engine.engine import Engine
from naiad.engine.open_request import OpenRequest
from naiad.engine.served import Target
from naiad.frontends.regions import RegionPart
from naiad.frontends.tracing.tracer import Tracer
from naiad.guests.memory.link_memory import LinkMemory
from naiad.protocol.inference import InferRequest, Sink, SubmittedRequest
from naiad.server.processes.link import Link, Payload
from naiad.server.processes.messages import (
    CallResult,
    FrameKind,
    RemoteCall,
    UsedRegions,
    VersionRoute,
    error_fields,
    pack,
    unpack,
)
from naiad.server.processes.request_link import RequestLink
from naiad.server.processes.request_session import REQUEST_KINDS, RequestSession

logger = logging.getLogger("naiad.frontends")

# Methods of the engine that another process calls by their names.
_FACADE = (
    "server_metadata",
    "is_started",
    "is_live",
    "is_ready",
    "check_server_ready",
    "check_ready",
    "stalls",
    "is_model_ready",
    "gather_counts",
    "statistics",
    "ready_index",
    "repository_index",
    "load",
    "unload",
)

Service = Callable[..., Any]


class _EngineModels:
    """Implements `OwnModels` with the engine, which finds a version by its name: the one that serves now."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def is_exiting(self) -> bool:
        return self._engine.is_exiting

    def route(self, name: str, version: int, load: int) -> Target:  # noqa: ARG002 - the signature of `OwnModels`
        return self._engine.route(name, version)

    def find_target(self, name: str, version: int, load: int) -> Target:  # noqa: ARG002 - the signature of `OwnModels`
        return self._engine.find_target(name, version)

    def submit(
        self, request: InferRequest, sink: Sink, load: int, on_taken: Callable[[str], None] | None = None
    ) -> SubmittedRequest:
        del load, on_taken  # for replicas
        return self._engine.submit(request, sink)


class ProcessSession:
    """One other process, as the coordinator sees it, after `connect`."""

    def __init__(
        self,
        engine: Engine,
        memory: LinkMemory,
        tracer: Tracer,
        services: Mapping[str, Service],
        on_report: Callable[[ProcessSession, Any], None],
        on_gone: Callable[[OpenRequest, int], None] | None = None,
    ) -> None:
        """*on_report* gets what the process reports of itself; *on_gone* is `send_elsewhere` of its `RequestLink`.

        *services* is what the process may call beside the engine's facade, or in its place, by name; "find_part" is for
        its requests. It may be completed until the process listens.
        """
        self.answered_count = 0  # requests that it has answered by its own replicas, as it reported last
        # Gets kind and content of what it sends about its replicas.
        self.on_replica_message: Callable[[int, Any], None] = lambda *_: None

        def find_part(name: str, offset: int, byte_size: int) -> RegionPart:
            part: RegionPart = services["find_part"](name, offset, byte_size)
            return part

        self.requests = RequestSession(_EngineModels(engine), memory, tracer, find_part)  # its requests to models here
        self.to_replicas = RequestLink(send_elsewhere=on_gone)
        self._engine = engine
        self._unconfirmed: deque[asyncio.Future[None]] = deque()
        self._taking: dict[int, asyncio.Future[Sequence[str]]] = {}
        self._is_pinged = False
        self._on_report = on_report
        self._loop = asyncio.get_running_loop()
        self._link: Link | None = None
        self._services = services
        self._facade: dict[str, Service] = {name: getattr(engine, name) for name in _FACADE}
        self._facade["route"] = lambda name, version: self._route_to(self._engine.route(name, version), name, version)
        self._facade["find_route"] = self._find_route
        self._tasks: set[asyncio.Task[None]] = set()
        self._handlers: dict[int, Callable[[Payload], None]] = {
            FrameKind.CALL: self._on_call,
            FrameKind.REPORT: self._on_process_report,
            FrameKind.CONFIRM: self._on_confirm,
            FrameKind.PONG: self._on_pong,
            FrameKind.USED_REGIONS: self._on_used_regions,
            FrameKind.ORDERED: lambda payload: self.on_replica_message(FrameKind.ORDERED, unpack(payload)),
            FrameKind.NOTIFY_COORDINATOR: self._on_notice,
        }
        self.on_routes_changed = self.requests.on_routes_changed
        self.forget_part = self.requests.forget_part
        self.forget_segment = self.requests.forget_segment

    def connect(self, link: Link) -> None:
        self._link = link
        self.requests.connect(link)
        self.to_replicas.connect(link)

    @property
    def received_count(self) -> int:
        return self.requests.received_count

    def on_frame(self, kind: int, payload: Payload) -> None:
        if kind in REQUEST_KINDS:
            self.requests.on_frame(kind, payload)
            return
        handler = self._handlers.get(kind)
        if handler is None:
            self.to_replicas.on_frame(kind, payload)
            return
        try:
            handler(payload)
        except Exception:  # the frames after this one must still be handled
            logger.exception("cannot handle a message of another process")

    def close(self, error: NaiadError) -> None:
        """The process has exited: cancel its requests, and free what it had. Those that it had end with *error*.

        Its calls in progress, such as a load or unload, are completed, as when a client disconnects from a server
        of one process. An unload that is cancelled half-way would leave guests running.
        """
        link, self._link = self._link, None
        if link is not None:
            link.close()
        self.requests.close()
        self.to_replicas.close(error)
        while self._unconfirmed:
            self._on_confirm(b"")
        for taken in self._taking.values():
            if not taken.done():
                taken.set_result(())
        self._taking.clear()

    def send(self, kind: int, message: Any) -> None:
        if self._link is not None:
            self._link.send(pack(kind, message))
            self._link.flush()

    def send_soon(self, kind: int, message: Any) -> None:
        if self._link is not None:
            self._link.send(pack(kind, message))

    def send_descriptor(self, kind: int, message: Any, descriptor: int) -> None:
        if self._link is not None:
            self._link.send_descriptor(pack(kind, message), descriptor)

    def announce(self, kind: int, message: Any) -> asyncio.Future[None]:
        """Send a message that the process confirms; done once it has, or has exited."""
        confirmed = self._loop.create_future()
        if self._link is None:
            confirmed.set_result(None)
            return confirmed
        self._unconfirmed.append(confirmed)
        self.send(kind, message)
        return confirmed

    def _on_confirm(self, _: Payload) -> None:
        confirmed = self._unconfirmed.popleft()
        if not confirmed.done():
            confirmed.set_result(None)

    def take_regions(self, number: int, names: Sequence[str]) -> asyncio.Future[Sequence[str]]:
        """Have the process take regions out of its registry; those of them that it uses."""
        taken: asyncio.Future[Sequence[str]] = self._loop.create_future()
        if self._link is None:
            taken.set_result(())
        else:
            self._taking[number] = taken
            self.send(FrameKind.TAKE_REGIONS, (number, names))
        return taken

    def _on_used_regions(self, payload: Payload) -> None:
        used: UsedRegions = unpack(payload)
        taken = self._taking.pop(used.number)
        if not taken.done():
            taken.set_result(used.names)

    def ping(self) -> bool:
        """Ask for a sign of life; whether the process has given the one that was asked for before."""
        was_alive = not self._is_pinged
        if was_alive and self._link is not None:
            self._is_pinged = True
            self._link.send(wire.frame(FrameKind.PING, b""))
        return was_alive

    def _on_pong(self, _: Payload) -> None:
        self._is_pinged = False

    # -- calls ----------------------------------------------------------------------------------------------------

    def _on_call(self, payload: Payload) -> None:
        call: RemoteCall = unpack(payload)
        try:
            service = self._services.get(call.method) or self._facade[call.method]
            value = service(*call.arguments, **call.keywords)
        except NaiadError as error:
            self._reply(call.number, None, error)
            return
        except Exception as error:
            logger.exception("cannot call '%s'", call.method)
            self._reply(call.number, None, unexpected_error(f"call '{call.method}'", error))
            return
        if isinstance(value, Awaitable):
            task = self._loop.create_task(self._reply_later(call, value))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            self._reply(call.number, value, None)

    async def _reply_later(self, call: RemoteCall, result: Awaitable[Any]) -> None:
        try:
            value = await result
        except NaiadError as error:
            self._reply(call.number, None, error)
        except Exception as error:
            logger.exception("cannot call '%s'", call.method)
            self._reply(call.number, None, unexpected_error(f"call '{call.method}'", error))
        else:
            self._reply(call.number, value, None)

    def _reply(self, number: int, value: Any, error: NaiadError | None) -> None:
        result = CallResult(number, value, None if error is None else error_fields(error))
        try:
            self.send(FrameKind.RESULT, result)
        except Exception as problem:  # another process, or one of its clients, waits for the result
            logger.exception("cannot pack the result of a call of another process")
            failure = error_fields(unexpected_error("return the result of a call", problem))
            self.send(FrameKind.RESULT, CallResult(number, None, failure))

    def _find_route(self, name: str, version: int) -> VersionRoute:
        """The same, for a call of a model: one that names no model that serves is not counted as refused."""
        return self._route_to(self._engine.find_target(name, version), name, version)

    def _route_to(self, found: Target, name: str, version: int) -> VersionRoute:
        shared = self.requests.share_inputs(found)
        return VersionRoute(
            number=found.number,
            is_decoupled=found.config.decoupled,
            metadata=self._engine.model_metadata(name, version),
            config=self._engine.model_config(name, version),
            inputs=None if shared is None else shared.number,
            row=None if found.direct is None else found.direct.row,
        )

    def _on_notice(self, payload: Payload) -> None:
        self.on_replica_message(FrameKind.NOTIFY_COORDINATOR, unpack(payload))

    def _on_process_report(self, payload: Payload) -> None:
        self._on_report(self, unpack(payload))
