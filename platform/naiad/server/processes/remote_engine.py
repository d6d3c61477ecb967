"""The engine as a process beside the coordinator has it: `EngineFacade` over the link to that.

Methods that are not coroutines block for a round trip, unless the answer is kept. What is kept of routes is dropped
when the coordinator announces a change, which it does before it replies to the call that made the change. So each use
of a kept route first handles what has arrived.

A request goes to a replica of this process, if it has one, else over the link (`request_link`).
"""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from naiad_stub import wire

from naiad.config.model.model_config import ModelConfig
from naiad.core.errors import NaiadError, NotReadyError
from naiad.engine.open_request import OpenRequest
from naiad.engine.served import Target
from naiad.guests.calls import ModelCall
from naiad.guests.memory.link_memory import LinkMemory
from naiad.protocol.inference import Buffer, InferRequest, Sink
from naiad.protocol.metadata import IndexEntry, ModelMetadata, ModelStatistics, ServerMetadata
from naiad.protocol.model_names import LATEST
from naiad.server.processes.link import Link, Payload
from naiad.server.processes.messages import (
    CallResult,
    FrameKind,
    GuestCaller,
    Origin,
    RemoteCall,
    TracedArrival,
    VersionRoute,
    error_of,
    pack,
    unpack,
)
from naiad.server.processes.own_ensembles import OwnEnsemble, StepTargets
from naiad.server.processes.own_replicas import OwnReplica, OwnReplicas
from naiad.server.processes.peer import Peer
from naiad.server.processes.replica_models import ReplicaModels
from naiad.server.processes.request_link import HeldCounts, KnownRoute, RequestLink
from naiad.server.processes.request_session import REQUEST_KINDS, OwnModels, RequestSession

# Commands about regions of clients' shared memory, which are carried out while a call blocks, too.
REGION_KINDS = frozenset({FrameKind.REGION, FrameKind.TAKE_REGIONS, FrameKind.RETURN_REGIONS})


class RemoteEngine:
    """Implements `naiad.engine.facade.EngineFacade` in a process beside the coordinator, after `connect`."""

    def __init__(self, on_end: Callable[[], None]) -> None:
        """*on_end* is called when the coordinator has exited."""
        # Gets the kind and content of commands that do not concern requests.
        self.on_command: Callable[[int, Any], None] = lambda *_: None
        self.replicas: OwnReplicas | None = None  # that this process runs; None where it runs none
        self.connections: socket.socket | None = None  # what clients' connections come through, with `LISTEN` or before
        # Requests of the coordinator to replicas here; None where there are none.
        self.session: RequestSession | None = None
        self._shared: tuple[OwnModels, LinkMemory] | None = None
        self.peers: dict[int, Peer] = {}  # the other processes beside the coordinator that run, by number
        self._sought: dict[tuple[str, int], asyncio.Task[None]] = {}  # routes that the coordinator was asked for
        self.requests = RequestLink(self._find_route, self._pass_on, self._take_in)  # to the coordinator's models
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._link: Link | None = None
        self._calls: dict[int, asyncio.Future[Any] | CallResult | None] = {}
        self._call_numbers = itertools.count(1)
        self.on_frame = self.requests.on_frame
        self.on_received = self.requests.on_received
        self.send = self.requests.send

    def connect(self, link: Link) -> None:
        self._link = link
        self.requests.connect(link)

    @property
    def request_count(self) -> int:
        own = 0 if self.replicas is None else self.replicas.request_count
        return own + self.requests.request_count + sum(peer.requests.request_count for peer in self.peers.values())

    def trim(self) -> bool:
        left = [each.trim() for each in (self.requests, *(peer.requests for peer in self.peers.values()))]
        return any(left)

    @property
    def held(self) -> HeldCounts:
        """What it holds of requests to the coordinator, and of the coordinator's memory."""
        return self.requests.held

    # -- calls ----------------------------------------------------------------------------------------------------

    def ask(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        """Call a method of the coordinator, and block until it has returned; raises what the method raises."""
        link = self.requests.open_link()
        number = next(self._call_numbers)
        self._calls[number] = None
        link.send(pack(FrameKind.CALL, RemoteCall(number, method, arguments, keywords)))
        self.requests.blocking += 1
        try:
            while self._calls[number] is None:
                if not link.receive(None) and not link.is_open:
                    raise NotReadyError("Server exiting")
        finally:
            self.requests.blocking -= 1
            result = self._calls.pop(number)
            self.requests.resume_later()
        assert isinstance(result, CallResult)
        if result.error is not None:
            raise error_of(result.error)
        return result.value

    async def call(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        """Call a method of the coordinator; raises what the method raises."""
        link = self.requests.open_link()
        number = next(self._call_numbers)
        waiting = self._loop.create_future()
        self._calls[number] = waiting
        link.send(pack(FrameKind.CALL, RemoteCall(number, method, arguments, keywords)))
        try:
            return await waiting
        finally:
            del waiting  # an error that it holds refers to this frame: see `errors.fresh`

    # -- the facade -------------------------------------------------------------------------------------------------

    def server_metadata(self) -> ServerMetadata:
        found: ServerMetadata = self.ask("server_metadata")
        return found

    def is_started(self) -> bool:
        return bool(self.ask("is_started"))

    def is_live(self) -> bool:
        return bool(self.ask("is_live"))

    def is_ready(self) -> bool:
        return bool(self.ask("is_ready"))

    async def check_server_ready(self) -> bool:
        return bool(await self.call("check_server_ready"))

    async def check_ready(self, name: str, version: int = LATEST) -> bool:
        return bool(await self.call("check_ready", name, version))

    def stalls(self, name: str, version: int = LATEST) -> str:
        return str(self.ask("stalls", name, version))

    def is_model_ready(self, name: str, version: int = LATEST) -> bool:
        return bool(self.ask("is_model_ready", name, version))

    def model_metadata(self, name: str, version: int = LATEST) -> ModelMetadata:
        return self._current_route(name, version).route.metadata

    def model_config(self, name: str, version: int = LATEST) -> Mapping[str, Any]:
        return self._current_route(name, version).route.config

    def statistics(self, name: str = "", version: int = LATEST) -> Sequence[ModelStatistics]:
        found: Sequence[ModelStatistics] = self.ask("statistics", name, version)
        return found

    def ready_index(self) -> Sequence[IndexEntry]:
        found: Sequence[IndexEntry] = self.ask("ready_index")
        return found

    async def repository_index(self) -> Sequence[IndexEntry]:
        found: Sequence[IndexEntry] = await self.call("repository_index")
        return found

    async def load(self, name: str, parameters: Mapping[str, str | Buffer]) -> bool:
        plain = {key: value if isinstance(value, str) else bytes(value) for key, value in parameters.items()}
        return bool(await self.call("load", name, plain))

    async def unload(self, name: str, *, unload_dependents: bool = False) -> None:
        await self.call("unload", name, unload_dependents=unload_dependents)

    async def gather_counts(self) -> None:
        await self.call("gather_counts")

    def is_decoupled(self, name: str, version: int = LATEST) -> bool:
        """See `EngineFacade`. A request is checked against the answer when it reaches the coordinator."""
        known = self._known_route(name, version)
        return known.route.is_decoupled

    def reserve_input(self, name: str, version: int, size: int, ahead: int) -> memoryview | None:
        known = self._known_route(name, version)
        if known.replica is not None:
            return known.replica.reserve_input(size, ahead)
        return None if known.part is None else known.part.reserve(size, ahead)

    def submit(self, request: InferRequest, sink: Sink, arrival: TracedArrival | None = None) -> OpenRequest:
        """See `EngineFacade`; traced with *arrival*. What only the coordinator can reject is answered to the sink."""
        opened = OpenRequest(request, sink)
        if arrival is None and self.replicas is not None and request.device is None:
            known = self._known_route(request.model_name, request.model_version)
            process = self._process_for(known)
            if self._submit_near(process, known, opened):
                self.replicas.received += 1
                return opened
        self.requests.submit(opened, None if arrival is None else Origin(arrival))
        return opened

    def submit_step(self, opened: OpenRequest) -> None:
        """See `ModelAccess`: as for a client's request, but it counts as none."""
        assert self.replicas is not None
        request = opened.request
        known = self._known_route(request.model_name, request.model_version)
        # The ensemble's request was accepted before the server began to exit: its steps are executed here.
        process = None if self.replicas.is_exiting and known.replica is not None else self._process_for(known)
        if not self._submit_near(process, known, opened):
            self.replicas.received -= 1  # the coordinator counts what comes to it
            self.requests.submit(opened)

    def _process_for(self, known: KnownRoute) -> int | None:
        """The process that a request is to go to; None for this one."""
        if known.replica is not None:
            return known.replica.better_process()
        assert self.replicas is not None
        return self.replicas.process_of(known.route.row)

    def _submit_near(self, process: int | None, known: KnownRoute, opened: OpenRequest) -> bool:
        """Submit a request to this process, or to another one but the coordinator; whether it is one of these."""
        if process is None:
            assert known.replica is not None
            known.replica.submit(opened)
            return True
        if process not in self.peers:
            return False
        peer, route = self.peers[process].requests, known.route
        peer.submit(opened, None, peer.route_to(route))
        assert self.replicas is not None
        assert route.row is not None
        self.replicas.note_sent(route.row, process)
        return True

    def _send_elsewhere(self, opened: OpenRequest, _: int) -> None:
        """Send a request to the coordinator, whose replica in another process takes none any more."""
        try:
            self.requests.submit(opened)
        except NaiadError as error:
            opened.reject(error)
        else:
            assert self.replicas is not None
            self.replicas.received -= 1  # as in `submit_step`

    # -- routes ---------------------------------------------------------------------------------------------------

    def find_model(self, name: str, version: int) -> tuple[VersionRoute, ModelConfig | None]:
        known = self._known_route(name, version)
        replica = known.replica
        if replica is None:
            return known.route, None
        return known.route, replica.version.config if isinstance(replica, OwnReplica) else replica.execution.config

    def _known_route(self, name: str, version: int) -> KnownRoute:
        return self.requests.routes.get((name, version)) or self._find_route(name, version)

    def _current_route(self, name: str, version: int) -> KnownRoute:
        self.receive()
        return self._known_route(name, version)

    def receive(self, *, wait: bool = False) -> None:
        """Take in what the coordinator has sent so far, or, with *wait*, block until something arrives.

        Responses are passed on in a later turn. NotReadyError if the coordinator has exited while this waited.
        """
        link = self.requests.open_link() if wait else self._link
        if link is None:
            return
        self.requests.blocking += 1
        try:
            link.receive(None if wait else 0.0)
        finally:
            self.requests.blocking -= 1
            self.requests.resume_later()

    def _find_route(self, name: str, version: int) -> KnownRoute:
        changes = -1
        while changes != self.requests.route_changes:  # a change may have arrived with the answer, which is old then
            changes = self.requests.route_changes
            route: VersionRoute = self.ask("route", name, version)
        return self._keep_route(name, version, route)

    def _keep_route(self, name: str, version: int, route: VersionRoute) -> KnownRoute:
        replica: OwnReplica | OwnEnsemble | None = None
        if self.replicas is not None:
            replica = self.replicas.find(route.number) or self.replicas.find_ensemble(route.number)
        known = self.requests.routes[name, version] = KnownRoute(route, self.requests.part_of(route.inputs), replica)
        return known

    # -- calls of guests here ---------------------------------------------------------------------------------------

    def target_of(self, call: ModelCall) -> Target | None:
        """See `Routes`. Where it is not known what serves a name, the coordinator is asked for later calls."""
        key = call.request.model_name, call.request.model_version
        known = self.requests.routes.get(key)
        if known is None:
            if key not in self._sought:
                self._sought[key] = self._loop.create_task(self._seek_route(*key))
            return None
        replica = known.replica
        if replica is None or isinstance(replica, OwnEnsemble):
            return None  # the coordinator, which looks for deadlocks, knows what each step of an ensemble waits for
        return replica.version if replica.takes_call(is_decoupled=call.is_decoupled) else None

    def note_call(self, target: Target) -> None:
        assert self.replicas is not None
        replica = self.replicas.find(target.number)
        if replica is not None:
            replica.note_load(replica.version.in_flight)

    def submit_call(self, opened: OpenRequest, caller: GuestCaller) -> None:
        self.requests.submit(opened, Origin(caller=caller), self.requests.route_of_call(opened.request))

    async def _seek_route(self, name: str, version: int) -> None:
        changes = self.requests.route_changes
        try:
            route: VersionRoute = await self.call("find_route", name, version)
        except NaiadError:
            return  # the call that asked for it gets the error
        finally:
            del self._sought[name, version]
        if changes == self.requests.route_changes:
            self._keep_route(name, version, route)

    # -- other processes ------------------------------------------------------------------------------------------

    def share_replicas(self, memory: LinkMemory) -> None:
        """Take requests of other processes, which share *memory* with guests here, to replicas of this one."""
        assert self.replicas is not None
        assert self._link is not None
        models = ReplicaModels(self.replicas)
        self._shared = models, memory
        self.session = RequestSession(models, memory)
        self.session.connect(self._link)
        self.replicas.memory = memory
        self.replicas.models = StepTargets(self)
        self.replicas.on_closed = self._on_replica_closed
        memory.on_inputs_removed = self._on_inputs_removed
        memory.on_outputs_removed = self._on_outputs_removed

    def _sessions(self) -> list[RequestSession]:
        assert self.session is not None
        return [self.session, *(peer.session for peer in self.peers.values())]

    def _on_replica_closed(self) -> None:
        for session in self._sessions():
            session.on_routes_changed()

    def _on_inputs_removed(self, number: int) -> None:
        for session in self._sessions():
            session.forget_part(number)

    def _on_outputs_removed(self, number: int) -> None:
        for session in self._sessions():
            session.forget_segment(number)

    def _on_peer(self, number: int, descriptor: int) -> None:
        """Another process has started, maybe in place of one that has exited."""
        if self._shared is None:
            os.close(descriptor)
            return
        before = self.peers.pop(number, None)
        if before is not None:
            before.close()
        sock = socket.socket(fileno=descriptor)
        self.peers[number] = Peer(number, sock, *self._shared, self._send_elsewhere, partial(self._on_peer_end, number))

    def _on_peer_end(self, number: int, peer: Peer) -> None:
        if self.peers.get(number) is peer:
            del self.peers[number]

    def on_replica_opened(self, load: int) -> None:
        """A replica of this process takes requests from now on, or has ended: look for it at the next one."""
        self.requests.forget_routes_to(load)

    # -- frames ---------------------------------------------------------------------------------------------------

    def _pass_on(self, kind: int, content: Any) -> None:
        self.on_command(kind, content)

    def _take_in(self, kind: int, payload: Payload) -> bool:
        """Handle a frame that does not concern requests at once, if it has to be; whether it was."""
        if kind == FrameKind.RESULT:
            self._on_result(unpack(payload))
        elif kind in REGION_KINDS:
            self.on_command(kind, unpack(payload))
        elif kind == FrameKind.TRACING:
            self.on_command(kind, unpack(payload))
            self.send(wire.frame(FrameKind.CONFIRM, b""))
        elif kind == FrameKind.TABLE:
            assert self._link is not None
            assert self.replicas is not None
            self.replicas.use_table(self._link.descriptors.popleft(), *unpack(payload))
        elif kind in REQUEST_KINDS:
            assert self.session is not None
            self.session.on_frame(kind, payload)
        elif kind == FrameKind.CONNECTIONS:
            assert self._link is not None
            self.connections = socket.socket(fileno=self._link.descriptors.popleft())
        elif kind == FrameKind.PEER:
            assert self._link is not None
            self._on_peer(unpack(payload), self._link.descriptors.popleft())
        elif kind == FrameKind.PING:
            self.send(wire.frame(FrameKind.PONG, b""))
        else:
            return False
        return True

    def on_link_end(self) -> None:
        for waiting in self._calls.values():
            if isinstance(waiting, asyncio.Future) and not waiting.done():
                waiting.set_exception(NotReadyError("Server exiting"))
        self._on_end()

    def _on_result(self, result: CallResult) -> None:
        waiting = self._calls.get(result.number)
        if isinstance(waiting, asyncio.Future):
            del self._calls[result.number]
            if waiting.done():
                return  # its caller was cancelled
            if result.error is None:
                waiting.set_result(result.value)
            else:
                waiting.set_exception(error_of(result.error))
        elif result.number in self._calls:
            self._calls[result.number] = result
