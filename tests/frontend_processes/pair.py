"""The owner's side and the frontend process's side of a link, in one process."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

from support.waiting import until_async

from naiad.frontends.tracing.tracer import Tracer
from naiad.guests.memory.frontend_memory import FrontendMemory
from naiad.protocol.datatypes import Datatype
from naiad.protocol.inference import InferRequest, InferResponse, InputTensor
from naiad.protocol.model_names import LATEST
from naiad.server.processes.link import Link
from naiad.server.processes.messages import VersionRoute
from naiad.server.processes.remote_engine import RemoteEngine, _KnownRoute
from naiad.server.processes.session import FrontendSession


class Engine:
    """An engine with one version of every model, which answers each request at once, without outputs."""

    is_exiting = False

    def __init__(self) -> None:
        self.requests: list[InferRequest] = []
        self.version = SimpleNamespace(number=1, config=SimpleNamespace(decoupled=False), direct=None)

    def route(self, name: str, version: int) -> Any:
        return self.version

    def find_target(self, name: str, version: int) -> Any:
        return self.version

    def model_metadata(self, name: str, version: int) -> Any:
        return None

    def model_config(self, name: str, version: int) -> Any:
        return {}

    def submit(self, request: InferRequest, sink: Any) -> int:
        self.requests.append(request)
        sink.send(InferResponse(request.model_name, 1, request.request_id), True)
        return 1

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


def request(name: str, elements: int = 1) -> InferRequest:
    tensor = InputTensor("X", Datatype.FP32, (elements,), bytes(4 * elements))
    return InferRequest(name, -1, [tensor], layout_key=(name, elements))


class Sink:
    """Keeps the responses, and calls a function at each of them."""

    def __init__(self, on_response: Callable[[], object] = lambda: None) -> None:
        self.responses: list[InferResponse | None] = []
        self._on_response = on_response

    def send(self, response: InferResponse | None, final: bool) -> None:
        self.responses.append(response)
        self._on_response()


class Pair:
    """Both sides over a real socket pair, on one loop: so the frontend's side must not block for an answer."""

    def __init__(self) -> None:
        self.engine = Engine()
        loop = asyncio.get_running_loop()
        owner, frontend = socket.socketpair()
        self.memory = FrontendMemory(1)
        self.session = FrontendSession(self.engine, self.memory, Tracer(), {}, lambda *_: None)
        self.session.connect(Link(owner, loop, self.session.on_frame, self.session.close))
        self.memory.on_outputs_removed = self.session.forget_segment
        self.remote = RemoteEngine(lambda: None)
        self.link = Link(frontend, loop, self.remote.on_frame, self.remote.on_link_end, self.remote.on_received)
        self.remote.connect(self.link)

    def sink(self, number: int, on_response: Callable[[], object] = lambda: None) -> Sink:
        made = Sink(on_response)
        self.remote._pending[number] = made, f"id {number}", None
        return made

    def know_route(self, name: str, version: int = LATEST) -> _KnownRoute:
        """Have the frontend's side know where requests to a model go, which it would ask for, and block."""
        route: VersionRoute = self.session._services["route"](name, version)
        if route.inputs is not None and route.inputs not in self.remote._parts:
            self.session._link.flush()
            self.remote.receive()
        part = None if route.inputs is None else self.remote._parts[route.inputs]
        known = self.remote._routes[name, version] = _KnownRoute(route, part)
        return known

    async def settle(self, condition: Callable[[], object]) -> None:
        await until_async(condition)

    def close(self) -> None:
        self.session.close()
        self.link.close()


def run(test: Callable[[Pair], Awaitable[None]]) -> None:
    async def with_pair() -> None:
        pair = Pair()
        try:
            await asyncio.wait_for(test(pair), 30)
        finally:
            pair.close()

    asyncio.run(with_pair())
