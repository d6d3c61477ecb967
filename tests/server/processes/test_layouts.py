"""Layouts of responses: announced once, forgotten by both sides, and what a frontend process reads with them."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from fakes.guests import Answers
from naiad_stub import wire
from server.processes.pair import SILENT, Engine, request
from support.links import held_by

from naiad.frontends.tracing.tracer import Tracer
from naiad.guests.memory.link_memory import LinkMemory
from naiad.guests.tensors import TensorLayout
from naiad.protocol.datatypes import Datatype
from naiad.protocol.inference import InferResponse, OutputTensor
from naiad.server.processes import request_session
from naiad.server.processes.calls import ProcessExitedError
from naiad.server.processes.messages import FrameKind, unpack
from naiad.server.processes.peer import Peer
from naiad.server.processes.remote_engine import RemoteEngine
from naiad.server.processes.request_session import _MAX_LAYOUTS
from naiad.server.processes.served_process import serve_process


class Link:
    """Hands all frames to the other side at once."""

    is_open = True

    def __init__(self, on_frame: Callable[[int, bytes], None]) -> None:
        self._on_frame = on_frame
        self._reader = wire.FrameReader(1 << 30)
        self.kinds: list[Any] = []

    def send(self, data: bytes) -> None:
        *_, reserved = wire.FRAME.unpack_from(data)
        assert reserved == 0
        for kind, payload in self._reader.feed(data):
            self.kinds.append(unpack(payload).name if kind == FrameKind.CALL else kind)
            self._on_frame(kind, payload)

    def send_parts(self, parts: list[bytes]) -> None:
        self.send(b"".join(parts))

    def receive(self, timeout: float | None = 0) -> bool:
        return False

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


def connect(peer: Peer, link: Any) -> None:
    """Have a peer use *link* in place of its socket."""
    peer.link.close()
    peer.link = peer.calls._link = peer.requests._link = peer.session._link = link


class Pair:
    """The owner's side and the frontend process's side in one process."""

    def __init__(self) -> None:
        one, two = socket.socketpair()
        self.remote = RemoteEngine(one, lambda: None)
        exited = ProcessExitedError("it has exited")
        served: Any = Engine(), LinkMemory(1), Tracer(), {}, exited, lambda _: None
        self.process = serve_process(two, lambda: None, *served)
        self.link = Link(self.remote.coordinator.on_frame)
        connect(self.process, self.link)
        connect(self.remote.coordinator, Link(self.process.on_frame))
        self.session = self.process.session

    def receive(self, size: int) -> InferResponse:
        """A response whose first output has so many bytes."""
        sink = Answers()
        self.respond(self.remote.submit(replace(request(SILENT), request_id=f"id {size}"), sink).key, size)
        ((response, final),) = sink.responses
        assert response is not None
        assert final
        return response


class Forwarded(Pair):
    """Responses as a guest wrote them: the second output begins at an aligned offset."""

    def __init__(self) -> None:
        super().__init__()
        self.layouts: dict[int, TensorLayout] = {}

    def respond(self, number: int, size: int) -> None:
        outputs = bytes([7]) * size + bytes(4096 - size) + b"ab"
        entries = [("A", Datatype.UINT8, (size,), 0, size), ("B", Datatype.UINT8, (2,), 4096, 4098)]
        layout = self.layouts.setdefault(size, TensorLayout(entries, 4098))
        self.session.respond_forwarded(number, ("m", 3), layout, outputs)


class Joined(Pair):
    """Responses whose outputs are sent one after the other."""

    def respond(self, number: int, size: int) -> None:
        outputs = [
            OutputTensor("A", Datatype.UINT8, (size,), bytes([7]) * size),
            OutputTensor("B", Datatype.UINT8, (2,), b"ab"),
        ]
        self.session.sink_of(number).send(InferResponse("m", 3, "", outputs, layout=("a layout", size)), True)


def check(response: InferResponse, number: int) -> None:
    assert (response.model_name, response.model_version, response.request_id) == ("m", 3, f"id {number}")
    assert [(each.name, tuple(each.shape), bytes(each.data)) for each in response.outputs] == [
        ("A", (number,), bytes([7]) * number),
        ("B", (2,), b"ab"),
    ]


@pytest.mark.parametrize("kind", [Forwarded, Joined])
async def test_both_sides_forget_layouts_before_they_are_too_many(kind: type[Forwarded | Joined]) -> None:
    pair = kind()
    for number in range(1, _MAX_LAYOUTS + 10):
        check(pair.receive(number), number)
    assert pair.link.kinds.count("forget_layouts") == 1
    assert held_by(pair.remote.requests).layouts == 9
    check(pair.receive(_MAX_LAYOUTS + 5), _MAX_LAYOUTS + 5)
    check(pair.receive(5), 5)


@pytest.mark.parametrize("kind", [Forwarded, Joined])
async def test_layouts_are_forgotten_before_their_names_take_too_much(
    kind: type[Forwarded | Joined], monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = kind()
    held = []
    for number in range(1, 6):
        check(pair.receive(number), number)
        held.append(held_by(pair.remote.requests).layouts)
        if number == 1:
            size = pair.session._layout_bytes
            assert size == len("AB"), "the names of the outputs"
            monkeypatch.setattr(request_session, "_MAX_LAYOUT_BYTES", 2 * size)
    assert held == [1, 2, 1, 2, 1]
    check(pair.receive(1), 1)


@pytest.mark.parametrize("kind", [Forwarded, Joined])
async def test_a_layout_is_announced_once(kind: type[Forwarded | Joined]) -> None:
    pair = kind()
    for _ in range(3):
        check(pair.receive(5), 5)
    assert pair.link.kinds == [FrameKind.RESULT, "layout", *[FrameKind.RESPONSE] * 3]
