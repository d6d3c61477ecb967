"""The owner's side and the frontend process's side of a link, in one process."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from support.links import HeldCounts, held_by
from support.waiting import until_async

from naiad.core.errors import NaiadError
from naiad.engine.open_request import OpenRequest
from naiad.frontends.tracing.tracer import Tracer
from naiad.guests.memory.link_memory import LinkMemory
from naiad.protocol.datatypes import Datatype
from naiad.protocol.inference import InferRequest, InferResponse, InputTensor
from naiad.server.processes.calls import ProcessExitedError
from naiad.server.processes.link import Link, Payload
from naiad.server.processes.remote_engine import RemoteEngine
from naiad.server.processes.served_process import serve_process

SILENT = "silent"
"""The model whose requests the engine does not answer."""


class Taken:
    """Implements `Holder` for one request, and keeps what is done with it."""

    def __init__(self) -> None:
        self.acts: list[str] = []
        self.confirmed = 0

    @property
    def is_cancelled(self) -> bool:
        return "cancel" in self.acts

    def cancel_request(self, _: OpenRequest) -> None:
        self.acts.append("cancel")

    def drop_responses(self, _: OpenRequest) -> None:
        self.acts.append("drop_responses")

    def confirm_responses(self, _: OpenRequest, count: int) -> None:
        self.confirmed += count

    def reject_waiting(self, _: OpenRequest, error: NaiadError) -> None:
        raise error

    def is_waiting(self, _: OpenRequest) -> bool:
        return False

    def waits_of(self, _: OpenRequest) -> tuple[()]:
        return ()


class Engine:
    """An engine with one version of every model, which answers each request at once, without outputs.

    Attributes:
        requests: The requests so far, but for those to `SILENT`.
        submitted: What is done with each request, those to `SILENT` included.
        sinks: What gets the responses to each of these.
        on_change: What is called when the versions change.
        is_answering: Whether it answers requests.
        refusal: What it raises for every model, if anything.
    """

    is_exiting = False

    def __init__(self) -> None:
        self.requests: list[InferRequest] = []
        self.submitted: list[Taken] = []
        self.sinks: list[Any] = []
        self.on_change: Callable[[], None] = lambda: None
        self.is_answering = True
        self.refusal: Exception | None = None
        self.version = SimpleNamespace(
            number=1, config=SimpleNamespace(decoupled=False), shared_inputs=None, forwarding=None, row=None
        )
        self.version.direct = self.version  # as a version of a model has it
        self.version.accept = self._accept

    def admitted_target(self, request: InferRequest) -> Any:
        return self.route(request.model_name, request.model_version)

    def route(self, name: str, version: int) -> Any:
        if self.refusal is not None:
            raise self.refusal
        return self.version

    def find_target(self, name: str, version: int) -> Any:
        return self.version

    def on_routes_changed(self, on_change: Callable[[], None]) -> None:
        self.on_change = on_change

    def model_metadata(self, name: str, version: int) -> Any:
        return None

    def model_config(self, name: str, version: int) -> Any:
        return {}

    def _accept(self, opened: OpenRequest) -> None:
        taken = Taken()
        self.submitted.append(taken)
        self.sinks.append(opened.sink)
        opened.holder, made = taken, opened.request
        if made.model_name == SILENT:
            return
        self.requests.append(made)
        if self.is_answering:
            opened.sink.send(InferResponse(made.model_name, 1, made.request_id), True)

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
    """Keeps the responses, and how often they have ended; calls a function at each of them."""

    def __init__(self, on_response: Callable[[], object] = lambda: None) -> None:
        self.responses: list[InferResponse | None] = []
        self.ends = 0
        self._on_response = on_response

    def send(self, response: InferResponse | None, final: bool) -> None:
        self.responses.append(response)
        self.ends += final
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
        owner, frontend = socket.socketpair()
        self.memory = LinkMemory(1)
        exited = ProcessExitedError("the process has exited")
        self.process = serve_process(
            owner,
            lambda: self.process.close(),  # noqa: PLW0108 - it is made here
            self.engine,  # type: ignore[arg-type]
            self.memory,
            Tracer(),
            {},
            exited,
            lambda _: None,
        )
        self.session = self.process.session
        self.kinds: list[int] = []  # of the frames that the owner has got
        self.opened: dict[int, OpenRequest] = {}  # those of `sink`, by their numbers on the link
        on_frame = self.process.on_frame

        def keep_kind(kind: int, payload: Payload) -> None:
            self.kinds.append(kind)
            on_frame(kind, payload)

        self.owner = self.process.link
        self.owner._on_frame = keep_kind
        self.ended: list[bool] = []
        self.remote = RemoteEngine(frontend, lambda: self.ended.append(True))
        self.link = self.remote.coordinator.link
        answer_while_blocked(self.link, self.owner)

    @property
    def held(self) -> HeldCounts:
        """What the frontend's side holds."""
        return held_by(self.remote.requests)

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
        self.process.close()
        self.link.close()
