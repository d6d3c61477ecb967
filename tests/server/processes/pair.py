"""The owner's side and the frontend process's side of a link, in one process."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from fakes.submitted import Submitted
from support.waiting import until_async

from naiad.core.errors import NotReadyError
from naiad.engine.open_request import OpenRequest
from naiad.frontends.tracing.tracer import Tracer
from naiad.guests.memory.link_memory import LinkMemory
from naiad.protocol.datatypes import Datatype
from naiad.protocol.inference import InferRequest, InferResponse, InputTensor
from naiad.server.processes.link import Link
from naiad.server.processes.remote_engine import RemoteEngine
from naiad.server.processes.session import ProcessSession

SILENT = "silent"
"""The model whose requests the engine does not answer."""


class Engine:
    """An engine with one version of every model, which answers each request at once, without outputs.

    Attributes:
        requests: The requests so far, but for those to `SILENT`.
        submitted: All requests as they are known to those who submitted them.
        is_answering: Whether it answers requests.
        refusal: What it raises for every model, if anything.
    """

    is_exiting = False

    def __init__(self) -> None:
        self.requests: list[InferRequest] = []
        self.submitted: list[Submitted] = []
        self.is_answering = True
        self.refusal: Exception | None = None
        self.version = SimpleNamespace(
            number=1, config=SimpleNamespace(decoupled=False), shared_inputs=None, forwarding=None, row=None
        )
        self.version.direct = self.version  # as a version of a model has it

    def route(self, name: str, version: int) -> Any:
        if self.refusal is not None:
            raise self.refusal
        return self.version

    def find_target(self, name: str, version: int) -> Any:
        return self.version

    def model_metadata(self, name: str, version: int) -> Any:
        return None

    def model_config(self, name: str, version: int) -> Any:
        return {}

    def submit(self, request: InferRequest, sink: Any) -> Submitted:
        submitted = Submitted()
        self.submitted.append(submitted)
        if request.model_name == SILENT:
            return submitted
        self.requests.append(request)
        if self.is_answering:
            sink.send(InferResponse(request.model_name, 1, request.request_id), True)
        return submitted

    @property
    def cancelled(self) -> list[int]:
        """Which requests were cancelled, from 1 on in the order in which they came."""
        return [number for number, each in enumerate(self.submitted, 1) if each.is_cancelled]

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


def answer_while_blocked(link: Link, owner: Link) -> None:
    """Let the owner's side handle what it has been sent when the frontend's side, on the same loop, blocks for an answer."""
    receive = link.receive

    def receive_answered(timeout: float | None = 0) -> bool:
        if timeout != 0:
            link.flush()
            owner.receive()
            owner.flush()
        return receive(timeout)

    link.receive = receive_answered  # type: ignore[method-assign]


class Pair:
    """Both sides over a real socket pair, on one loop."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        loop = asyncio.get_running_loop()
        owner, frontend = socket.socketpair()
        self.memory = LinkMemory(1)
        self.session = ProcessSession(self.engine, self.memory, Tracer(), {}, lambda *_: None)
        self.kinds: list[int] = []  # of the frames that the owner has got
        self.opened: dict[int, OpenRequest] = {}  # those of `sink`, by their numbers on the link
        self.owner = Link(owner, loop, self._on_frame, self._close_session)
        self.session.connect(self.owner)
        self.memory.on_inputs_removed = self.session.forget_part
        self.memory.on_outputs_removed = self.session.forget_segment
        self.remote = RemoteEngine(lambda: None)
        self.link = Link(frontend, loop, self.remote.on_frame, self.remote.on_link_end, self.remote.on_received)
        answer_while_blocked(self.link, self.owner)
        self.remote.connect(self.link)

    def _on_frame(self, kind: int, payload: bytes) -> None:
        self.kinds.append(kind)
        self.session.on_frame(kind, payload)

    def sink(self, number: int, on_response: Callable[[], object] = lambda: None) -> Sink:
        """The sink of the next request, which has this number; its responses are those that the test sends."""
        made = Sink(on_response)
        opened = self.opened[number] = self.remote.submit(replace(request(SILENT), request_id=f"id {number}"), made)
        assert opened.key == number
        self.link.flush()
        self.owner.receive()
        return made

    def know_route(self, name: str) -> None:
        """Have the frontend's side know where requests to a model go."""
        self.remote.is_decoupled(name)

    async def settle(self, condition: Callable[[], object]) -> None:
        await until_async(condition)

    def close(self) -> None:
        self._close_session()
        self.link.close()

    def _close_session(self) -> None:
        self.session.close(NotReadyError("the process has exited"))
