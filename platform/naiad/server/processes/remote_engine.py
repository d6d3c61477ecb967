"""The engine as a process beside the coordinator has it: `EngineFacade` over the link to that.

Methods that are not coroutines block for a round trip, unless the answer is kept. What is kept of routes is dropped
when the coordinator announces a change, which it does before it replies to the call that made the change. So each use
of a kept route first handles what has arrived.

A request goes to a replica of this process, if it has one, else over the link (`request_link`).
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

from naiad.config.model.model_config import ModelConfig, freeze
from naiad.config.model.text import parse_mapping
from naiad.core.errors import NaiadError
from naiad.engine.open_request import OpenRequest
from naiad.engine.served import Target
from naiad.guests.calls import ModelCall
from naiad.guests.memory.link_memory import LinkMemory
from naiad.protocol.inference import Buffer, InferRequest, Sink
from naiad.protocol.metadata import ModelMetadata
from naiad.protocol.model_names import LATEST
from naiad.server.processes.calls import ProcessExitedError, Service
from naiad.server.processes.link import Payload
from naiad.server.processes.messages import FrameKind, GuestCaller, TracedArrival, VersionRoute, unpack
from naiad.server.processes.own_replicas import OwnReplica, OwnReplicas
from naiad.server.processes.peer import Peer, exited_error
from naiad.server.processes.request_link import KnownRoute

# What the coordinator calls here also while a call to it blocks: what the answer refers to, what comes with a
# descriptor, which are taken in their order, and changes of regions, which the next request may name.
_URGENT = frozenset(
    {
        *("routes_changed", "segment", "part", "table", "connections", "peer", "ping"),
        *("region", "cuda_region", "take_regions", "return_regions"),
    }
)


def _is_urgent(kind: int, payload: Payload) -> bool:
    return kind == FrameKind.RESULT or (kind == FrameKind.CALL and unpack(payload).name in _URGENT)


class _StepTarget:
    """What a step's requests go to; implements `Target`. Clients' requests alone are executed here."""

    direct = None
    device = 0
    gpus = None
    open_sequences = 0
    reason = ""

    def __init__(self, route: VersionRoute, config: ModelConfig, accept: Callable[[OpenRequest], None]) -> None:
        self.config = config
        self.number = route.number
        self.metadata = route.metadata
        self.accept = accept


class RemoteEngine:
    """Implements `naiad.engine.facade.EngineFacade` in a process beside the coordinator."""

    coordinator: Peer

    def __init__(self, sock: socket.socket, on_exit: Callable[[], None]) -> None:
        """The coordinator is at the other end of *sock*; *on_exit* is called when it has exited."""
        self.connections: socket.socket | None = None  # what clients' connections come through
        self.memory = LinkMemory()  # that other processes share with guests here
        self.peers: dict[int, Peer] = {}  # the other processes beside the coordinator that run, by number
        self._sought: dict[tuple[str, int], asyncio.Future[VersionRoute]] = {}  # routes that were asked for
        self._loop = asyncio.get_running_loop()
        self.replicas = OwnReplicas(self)  # that this process runs
        self.services: dict[str, Service] = {  # what the coordinator calls
            **self.replicas.services,
            "connections": self._use_connections,
            "peer": self._add_peer,
            "ping": lambda: None,
        }

        def end() -> None:
            self.coordinator.calls.close()
            on_exit()

        self.coordinator = Peer(
            sock,
            end,
            self.replicas,
            self.memory,
            self.services,
            ProcessExitedError("Server exiting"),
            self._send_again,
            is_urgent=_is_urgent,
            find_route=self._find_route,
        )
        self.requests = self.coordinator.requests  # to the coordinator's models
        self.notify = self.coordinator.calls.notify
        self.call = call = cast("Callable[..., Any]", self.coordinator.calls.call)
        # What only the coordinator knows. Methods that are not to be awaited block until it has answered.
        self.check_server_ready = partial(call, "check_server_ready")
        self.check_ready = partial(call, "check_ready")
        self.repository_index = partial(call, "repository_index")
        self.gather_counts = partial(call, "gather_counts")
        self.server_metadata = partial(self.ask, "server_metadata")
        self.is_started = partial(self.ask, "is_started")
        self.is_live = partial(self.ask, "is_live")
        self.is_ready = partial(self.ask, "is_ready")
        self.stalls = partial(self.ask, "stalls")
        self.is_model_ready = partial(self.ask, "is_model_ready")
        self.statistics = partial(self.ask, "statistics")
        self.ready_index = partial(self.ask, "ready_index")

    def _peers(self) -> list[Peer]:
        return [self.coordinator, *self.peers.values()]

    @property
    def request_count(self) -> int:
        return self.replicas.request_count + sum(each.requests.request_count for each in self._peers())

    def trim(self) -> bool:
        left = [each.requests.trim() for each in self._peers()]
        return any(left)

    def ask(self, method: str, *arguments: Any) -> Any:
        """Call a method of the coordinator, and block until it has returned; raises what the method raises."""
        result = self.call(method, *arguments)
        try:
            while not result.done():
                self.coordinator.link.receive(None)
            return result.result()
        finally:
            del result  # an error that it holds refers to this frame: see `errors.fresh`

    # -- the facade -------------------------------------------------------------------------------------------------

    def model_metadata(self, name: str, version: int = LATEST) -> ModelMetadata:
        return self._current_route(name, version).metadata

    def model_config(self, name: str, version: int = LATEST) -> Mapping[str, Any]:
        return self._current_route(name, version).config

    async def load(self, name: str, parameters: Mapping[str, str | Buffer]) -> bool:
        plain = {key: value if isinstance(value, str) else bytes(value) for key, value in parameters.items()}
        return bool(await self.call("load", name, plain))

    async def unload(self, name: str, *, unload_dependents: bool = False) -> None:
        await self.call("unload", name, unload_dependents=unload_dependents)

    def is_decoupled(self, name: str, version: int = LATEST) -> bool:
        """See `EngineFacade`. A request is checked against the answer when it reaches the coordinator."""
        return self._known_route(name, version).is_decoupled

    def reserve_input(self, name: str, version: int, size: int, ahead: int) -> memoryview | None:
        known = self._known_route(name, version)
        if known.replica is not None:
            return known.replica.reserve_input(size, ahead)
        return None if known.part is None else known.part.reserve(size, ahead)

    def submit(self, request: InferRequest, sink: Sink, arrival: TracedArrival | None = None) -> OpenRequest:
        """See `EngineFacade`; traced with *arrival*. What only the coordinator can reject is answered to the sink."""
        opened = OpenRequest(request, sink)
        known = self._known_route(request.model_name, request.model_version)
        if arrival is not None:
            opened.origin = arrival
        elif request.device is None and self._send_near(self._process_for(known), known, opened):
            self.replicas.received += 1
            return opened
        self.requests.send_request(opened, known)
        return opened

    def _submit_step(self, opened: OpenRequest) -> None:
        """As for a client's request, but it counts as none."""
        request = opened.request
        known = self._known_route(request.model_name, request.model_version)
        # The ensemble's request was accepted before the server began to exit: its steps are executed here.
        process = None if self.replicas.is_exiting and known.replica is not None else self._process_for(known)
        if not self._send_near(process, known, opened):
            self.replicas.received -= 1  # the coordinator counts what comes to it
            self.requests.send_request(opened, known)

    def _process_for(self, known: KnownRoute) -> int | None:
        """The process that a request is to go to; None for this one."""
        if known.replica is not None:
            return known.replica.better_process()
        return self.replicas.process_of(_route_of(known).row)

    def _send_near(self, process: int | None, known: KnownRoute, opened: OpenRequest) -> bool:
        """Pass a request to this process, or to another one but the coordinator; whether it is one of these."""
        if process is None:
            assert known.replica is not None
            known.replica.accept(opened)
            return True
        if process not in self.peers:
            return False
        requests = self.peers[process].requests
        requests.send_request(opened, requests.route_to(known.load, is_decoupled=known.is_decoupled))
        row = _route_of(known).row
        assert row is not None
        self.replicas.note_sent(row, process)
        return True

    def _send(self, opened: OpenRequest) -> None:
        """Send a request to the coordinator."""
        self.requests.send_request(opened, self._find_route(opened))

    def _send_again(self, opened: OpenRequest) -> None:
        """Send a request to the version that serves its name now: the coordinator has not the one that was meant."""
        request = opened.request
        self.requests.routes.pop((request.model_name, request.model_version), None)
        try:
            self._send(opened)
        except NaiadError as error:
            opened.reject(error)

    def _send_elsewhere(self, opened: OpenRequest) -> None:
        """Send a request to the coordinator, whose replica in another process takes none any more."""
        try:
            self._send(opened)
        except NaiadError as error:
            opened.reject(error)
        else:
            self.replicas.received -= 1  # as in `_submit_step`

    # -- routes ---------------------------------------------------------------------------------------------------

    def find(self, name: str, version: int) -> Target:
        """See `StepModels`: what the steps of ensembles that are executed here go to."""
        known = self._known_route(name, version)
        if known.target is None:
            route, replica = _route_of(known), known.replica
            config = freeze(parse_mapping(route.config, name)) if replica is None else replica.config
            known.target = _StepTarget(route, config, self._submit_step)
        return known.target

    def _known_route(self, name: str, version: int) -> KnownRoute:
        return self.requests.routes.get((name, version)) or self._ask_route(name, version)

    def _current_route(self, name: str, version: int) -> VersionRoute:
        self.receive()
        return _route_of(self._known_route(name, version))

    def receive(self, *, wait: bool = False) -> None:
        """Take in what the coordinator has announced so far, or, with *wait*, block until something arrives.

        NotReadyError if the coordinator has exited while this waited.
        """
        if wait:
            self.requests.open_link().receive(None)
        else:
            self.coordinator.link.receive()

    def _find_route(self, opened: OpenRequest) -> KnownRoute:
        """The route of a request to the coordinator, which looks for that of a call if it is not known here."""
        name, version = opened.request.model_name, opened.request.model_version
        if isinstance(opened.origin, GuestCaller):
            return self.requests.routes.get((name, version)) or KnownRoute(0, is_decoupled=False)
        return self._known_route(name, version)

    def _ask_route(self, name: str, version: int) -> KnownRoute:
        while True:
            changes = self.requests.route_changes
            route: VersionRoute = self.ask("route", name, version)
            if changes == self.requests.route_changes:  # else a change came with the answer, which is old then
                return self._keep_route(name, version, route)

    def _keep_route(self, name: str, version: int, route: VersionRoute) -> KnownRoute:
        load = route.number
        known = KnownRoute(load, route.is_decoupled, self.requests.part_of(load), self.replicas.find(load), route)
        self.requests.routes[name, version] = known
        return known

    # -- calls of guests here ---------------------------------------------------------------------------------------

    def replica_for(self, call: ModelCall) -> OwnReplica | None:
        """See `Routes`. Where it is not known what serves a name, the coordinator is asked for later calls."""
        key = call.request.model_name, call.request.model_version
        known = self.requests.routes.get(key)
        if known is None:
            if key not in self._sought:
                sought = self._sought[key] = self.call("find_route", *key)
                sought.add_done_callback(partial(self._on_sought, key, self.requests.route_changes))
            return None
        replica = known.replica
        return replica if replica is not None and replica.takes_call(is_decoupled=call.is_decoupled) else None

    def send_call(self, opened: OpenRequest, caller: GuestCaller) -> None:
        opened.origin = caller
        self._send(opened)

    def _on_sought(self, key: tuple[str, int], changes: int, route: asyncio.Future[VersionRoute]) -> None:
        del self._sought[key]
        # The call that asked for it gets the error.
        if changes == self.requests.route_changes and route.exception() is None:
            self._keep_route(*key, route.result())

    # -- other processes ------------------------------------------------------------------------------------------

    def on_replica_closed(self) -> None:
        """A replica of this process takes no requests any more."""
        for peer in self._peers():
            peer.session.on_routes_changed()

    def on_replica_opened(self, load: int) -> None:
        """A replica of this process takes requests from now on, or has ended: look for it at the next one."""
        self.requests.forget_routes_to(load)

    def _use_connections(self, descriptor: int) -> None:
        self.connections = socket.socket(fileno=descriptor)

    def _add_peer(self, descriptor: int, number: int) -> None:
        """Another process has started, maybe in place of one that has exited."""
        before = self.peers.pop(number, None)
        if before is not None:
            before.close()

        def on_end() -> None:
            if self.peers.get(number) is peer:
                del self.peers[number]
            peer.close()

        sock, exited = socket.socket(fileno=descriptor), exited_error(number)
        peer = Peer(sock, on_end, self.replicas, self.memory, {}, exited, self._send_elsewhere)
        self.peers[number] = peer


def _route_of(known: KnownRoute) -> VersionRoute:
    assert known.route is not None  # it was found by a name
    return known.route
