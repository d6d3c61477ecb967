"""A worker whose guest the test plays: the other ends of its sockets, and a process that ends when the test says so."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar

import pytest
from fakes.guests import launch_spec
from naiad_stub import layout, messages, wire
from naiad_stub.layout import Place
from naiad_stub.messages import Hello, Ready, pack, unpack
from support.waiting import until_async

from naiad.core.errors import GuestExitedError
from naiad.guests import worker as worker_module
from naiad.guests.exchange import ModelInterface
from naiad.guests.launch import GuestSockets
from naiad.guests.output import GuestLog
from naiad.guests.worker import Worker
from naiad.protocol.datatypes import Datatype
from naiad.protocol.inference import InferRequest, InputTensor
from naiad.protocol.request_plan import RequestPlan

PLAN = RequestPlan(model_name="m", model_version=1, input_names=("IN",), output_names=("OUT",))
_TO_GUEST = {**messages.TO_MAIN_THREAD, **messages.TO_ANY_THREAD}


class PlayedProcess:
    """Stands in for `GuestProcess`.

    Attributes:
        signals: The signals that it was sent.
        kills: How often it was killed.
        ignores_kill: Whether it outlives that.
        is_closed: Whether the rest of its output was read.
    """

    def __init__(self, spec: Any, loop: asyncio.AbstractEventLoop) -> None:
        self.pid = 0
        self.exited: asyncio.Future[int] = loop.create_future()
        self.kill_reason = ""
        self.log = GuestLog(spec.log_rate, lambda *_: None, loop)
        self.signals: list[int] = []
        self.kills = 0
        self.ignores_kill = self.is_closed = False
        self.problem: BaseException | None = None
        self.ends: list[socket.socket] = []
        self._loop = loop
        self._has_ended = False

    async def spawn(self, memory: Any, on_line: Callable[..., None], on_exit: Callable[[int], None]) -> GuestSockets:
        if self.problem is not None:
            raise self.problem
        sockets = GuestSockets()
        with sockets as ends:
            self.ends = [socket.socket(fileno=os.dup(end)) for end in ends]
        self.pid, self.on_line, self._on_exit = 4242, on_line, on_exit
        return sockets

    def kill(self) -> None:
        self.kills += 1
        if not self.ignores_kill:
            self._loop.call_soon(self.end, -signal.SIGKILL)

    def end(self, status: int) -> None:
        """Exit: the kernel closes its sockets, and the host notices."""
        if not self._has_ended:
            self._has_ended = True
            for each in self.ends:
                each.close()
            self._on_exit(status)

    def send_signal(self, number: int) -> None:
        self.signals.append(number)

    def close(self) -> None:
        self.is_closed = True

    def exit_report(self, when: str = "") -> GuestExitedError:
        return self.failure(f"{self.kill_reason or 'it exited'}{when}", self.exited.result())

    def failure(self, problem: str, status: int | None = None) -> GuestExitedError:
        return GuestExitedError(problem, exit_status=status)


class Recorder:
    """A delegate, and services, that write down every call.

    Attributes:
        calls: Name and arguments of each call, without the worker.
        replies: What a call returns instead of None, by name.
        on: Called with the arguments of a call, by name.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.replies: dict[str, Any] = {
            **dict.fromkeys(("is_refill_urgent", "is_held_back", "is_calling"), False),
            "request_of": None,
        }
        self.on: dict[str, Callable[..., Any]] = {}
        self.requests = self.log = self

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def record(*arguments: Any) -> Any:
            if name in self.on:
                self.on[name](*arguments)
            if name in self.replies:
                reply = self.replies[name]
                return reply(*arguments) if callable(reply) else reply
            self.calls.append((name, *(each for each in arguments if not isinstance(each, Worker))))
            return None

        return record

    def names(self) -> list[str]:
        """The names of the calls."""
        return [name for name, *_ in self.calls]

    def of(self, name: str) -> list[tuple[Any, ...]]:
        """The arguments of the calls of that name."""
        return [tuple(arguments) for called, *arguments in self.calls if called == name]


class Played:
    """A worker, and the guest's side of it; `play` ends them.

    Attributes:
        made: All of the test.
        worker: The worker.
        host: What the worker reports to.
        process: Its process.
    """

    made: ClassVar[list[Played]] = []

    def __init__(self, **spec: Any) -> None:
        self.made.append(self)
        self.host = Recorder()
        self.worker = Worker(launch_spec(**spec), self.host, ModelInterface(PLAN), self.host)
        self.process: PlayedProcess = self.worker._process  # type: ignore[assignment]
        self._reader = wire.FrameReader()
        self._sent: list[Any] = []

    async def start(self, *, has_is_ready: bool = False) -> Played:
        """Start it with a model that is ready at once."""
        starting = asyncio.ensure_future(self.worker.start())
        await until_async(lambda: self.process.ends, "its sockets")
        self.say(Hello(wire.PROTOCOL_VERSION, 1, "3.8.18", "1.24.4"), Ready(True, has_is_ready))
        assert await starting == ""
        assert [type(each).__name__ for each in self.sent()] == ["Load"]
        return self

    def say(self, *said: messages.Message | bytes) -> None:
        """Send messages to the host, together."""
        self.process.ends[0].sendall(b"".join(each if isinstance(each, bytes) else pack(each) for each in said))

    def sent(self) -> list[Any]:
        """What the host has sent since the last call: messages, and the numbers of batches."""
        try:
            data = self.process.ends[0].recv(1 << 24, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return []
        return [
            wire.EXECUTE_HEAD.unpack_from(payload)[0]
            if kind == wire.Kind.EXECUTE
            else wire.RESULT_HEAD.unpack_from(payload)[:2]
            if kind == wire.Kind.RESULT
            else unpack(_TO_GUEST, kind, payload)
            for kind, payload in self._reader.feed(data)
        ]

    async def until_sent(self, count: int) -> list[Any]:
        """The next messages of the host, so many of them."""
        found: list[Any] = []
        await until_async(lambda: found.extend(self.sent()) or len(found) >= count, f"{count} messages")
        return found

    async def until_called(self, name: str, count: int = 1) -> list[tuple[Any, ...]]:
        """The arguments of the calls of the delegate or the services of that name, once there are so many."""
        await until_async(lambda: len(self.host.of(name)) >= count, f"{count} calls of {name}")
        return self.host.of(name)


def play(test: Coroutine[Any, Any, object]) -> None:
    """Run a test on a loop, with played processes; what the loop complains about fails it."""
    problems: list[dict[str, Any]] = []

    async def watched() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
        await asyncio.wait_for(test, 60)
        for played in Played.made:
            await played.worker.kill()

    Played.made.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker_module, "GuestProcess", PlayedProcess)
        asyncio.run(watched())
    assert problems == []


def request(size: int = 8, **more: Any) -> InferRequest:
    """A request whose input has so many bytes."""
    return InferRequest("m", 1, [InputTensor("IN", Datatype.UINT8, (size,), bytes(size))], **more)


def answer(key: int, data: bytes = b"\1\2\3\4", *, flags: int = wire.FINAL, block: int = -1) -> bytes:
    """An entry of RESPONSES: one output, in the message, or in a block of the output segment."""
    if flags & wire.EMPTY:
        return wire.RESPONSE_HEAD.pack(key, flags, 0, 0, 0, 0)
    packed = layout.pack([Place(0, "", Datatype.UINT8, (len(data),), 0, len(data))])
    blocks = b"" if block < 0 else block.to_bytes(8, "little")
    head = wire.RESPONSE_HEAD.pack(key, flags, 0, len(blocks) // 8, 0, len(packed))
    return head + blocks + packed + (data if block < 0 else b"")


def responses(number: int, *entries: bytes, flags: int = wire.DONE, reports: tuple[bytes, ...] = ()) -> bytes:
    """A RESPONSES frame of a batch that ran from 10 to 20."""
    flags |= len(reports) << wire.REPORTS_SHIFT
    head = wire.RESPONSES_HEAD.pack(number, len(entries), flags, 10, 20)
    return wire.frame(wire.Kind.RESPONSES, head + b"".join((*entries, *reports)))
