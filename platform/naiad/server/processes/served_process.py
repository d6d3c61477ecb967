"""What the coordinator serves another process with: the models that are here, and what it may call by name."""

from __future__ import annotations

import socket
from collections import ChainMap
from collections.abc import Callable, MutableMapping

from naiad.engine.engine import Engine
from naiad.engine.open_request import OpenRequest
from naiad.engine.served import Target
from naiad.frontends.tracing.tracer import Tracer
from naiad.guests.memory.link_memory import LinkMemory
from naiad.protocol.inference import InferRequest
from naiad.server.processes.calls import ProcessExitedError, Service
from naiad.server.processes.messages import VersionRoute
from naiad.server.processes.peer import Peer

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


class _EngineModels:
    """Implements `OwnModels` with the engine, which finds a version by its name: the one that serves now."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def is_exiting(self) -> bool:
        return self._engine.is_exiting

    def admitted_target(self, request: InferRequest, load: int) -> Target:  # noqa: ARG002 - the signature of `OwnModels`
        return self._engine.admitted_target(request)

    def find_target(self, name: str, version: int, load: int) -> Target:  # noqa: ARG002 - the signature of `OwnModels`
        return self._engine.find_target(name, version)


def serve_process(
    sock: socket.socket,
    on_end: Callable[[], None],
    engine: Engine,
    memory: LinkMemory,
    tracer: Tracer,
    services: MutableMapping[str, Service],
    exited: ProcessExitedError,
    send_elsewhere: Callable[[OpenRequest], None],
) -> Peer:
    """One other process, at the other end of *sock*, as the coordinator has it.

    *services* is what the process may call beside the engine's facade, by name; "find_part" is for its requests. It may
    be completed until the process listens.
    """

    def route_to(found: Target, name: str, version: int) -> VersionRoute:
        peer.session.share_inputs(found)
        return VersionRoute(
            number=found.number,
            is_decoupled=found.config.decoupled,
            metadata=engine.model_metadata(name, version),
            config=engine.model_config(name, version),
            row=None if found.direct is None else found.direct.row,
        )

    own: dict[str, Service] = {name: getattr(engine, name) for name in _FACADE}
    own["route"] = lambda name, version: route_to(engine.route(name, version), name, version)
    # The same for a call of a model: one that names no model that serves is not counted as refused.
    own["find_route"] = lambda name, version: route_to(engine.find_target(name, version), name, version)
    peer = Peer(
        sock,
        on_end,
        _EngineModels(engine),
        memory,
        ChainMap(own, services),
        exited,
        send_elsewhere,
        tracer=tracer,
        find_part=lambda *place: services["find_part"](*place),  # noqa: PLW0108 - it may be added later
    )
    return peer
