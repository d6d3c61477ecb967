"""Guests without a process, for tests of the engine: a test reads what they were sent, and answers for them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from google.protobuf import text_format
from naiad_stub.load_spec import LoadSpec, ModelCode, NativeCode, PythonCode

from naiad.config.model import model_config_pb2 as pb
from naiad.config.model.model_config import ModelConfig, freeze
from naiad.core.errors import GuestExitedError, NaiadError
from naiad.guests.exchange import ExecutingBatch, GuestResponse
from naiad.guests.launch import LaunchSpec
from naiad.protocol.datatypes import Datatype
from naiad.protocol.inference import InferRequest, InferResponse, InputTensor, OutputTensor

PLAIN = """
name: "m" backend: "python"
input { name: "IN" data_type: TYPE_FP32 dims: 2 }
output { name: "OUT" data_type: TYPE_FP32 dims: 2 }
"""
BATCHED = PLAIN + " max_batch_size: 4 "


def config(text: str = PLAIN, more: str = "") -> ModelConfig:
    """A model's configuration from the text of `config.pbtxt`."""
    return freeze(text_format.Parse(text + more, pb.ModelConfig()))


def request(data: bytes = bytes(8), **more: Any) -> InferRequest:
    """A request for a model of `PLAIN`."""
    return InferRequest("m", -1, [InputTensor("IN", Datatype.FP32, (2,), data)], **more)


def output(data: bytes = bytes(8)) -> list[OutputTensor]:
    """The outputs of a model of `PLAIN`."""
    return [OutputTensor("OUT", Datatype.FP32, (2,), data)]


def launch_spec(name: str = "m_0_0", code: ModelCode | None = None, **more: Any) -> LaunchSpec:
    """How the guest of an instance would be started."""
    nowhere = Path("nowhere")
    load = LoadSpec(
        code or PythonCode("model.py", "utils"),
        model_name="m",
        model_version=1,
        model_dir="m",
        version_dir="m/1",
        model_config="{}",
        instance_name=name,
        instance_kind="CPU",
        inputs=["IN"],
        outputs=["OUT"],
    )
    return LaunchSpec(name=name, python=nowhere, stub=nowhere, library=nowhere, environ={}, load=load, **more)


def native_code(*lanes: str) -> NativeCode:
    """A backend in C whose process has *lanes*."""
    return NativeCode(
        file="libtriton_b.so",
        backend="b",
        backend_config="{}",
        environ={},
        log_levels=0,
        auto_completes=False,
        may_set_config=False,
        lanes=lanes,
    )


class Answers:
    """A sink that keeps what it gets.

    Attributes:
        responses: All responses, with whether each was the last.
        problem: Raised by the next `send`, once.
    """

    def __init__(self) -> None:
        self.responses: list[tuple[InferResponse | None, bool]] = []
        self.problem: Exception | None = None

    def send(self, response: InferResponse | None, final: bool) -> None:
        problem, self.problem = self.problem, None
        if problem is not None:
            raise problem
        self.responses.append((response, final))

    @property
    def is_ended(self) -> bool:
        return bool(self.responses) and self.responses[-1][1]

    @property
    def error(self) -> NaiadError | None:
        """The error of the last response."""
        response = self.responses[-1][0]
        return None if response is None else response.error


class FakeGuest:
    """Stands in for `Worker`.

    Attributes:
        executed: The keys of each batch.
        requests: The requests that it was sent, by key.
        cancelled: The keys of requests whose cancellation it was told.
        credits: Key and number of each message of credit.
        problem: Raised by the next `start`, once.
        calls: Other calls of its methods.
    """

    def __init__(
        self, spec: Any = None, owner: Any = None, interface: Any = None, services: Any = None, pid: int = 7
    ) -> None:
        self.spec = spec or SimpleNamespace(name="m_0_0")
        self.owner = owner
        self._account = getattr(owner, "requests", owner)  # a version's, or requests in flight that stand alone
        self.pid = pid
        self.python = "3.11"
        self.is_hung = False
        self.stalled_seconds = 0.0
        self.has_released = False  # whether a client has read a response since the last look
        self.free_since = 0
        self.readiness = None
        self.memory = SimpleNamespace(input_byte_size=4096, borrowed_count=2)
        self.memory_usage: tuple[Any, ...] = ()
        self.batches: dict[int, ExecutingBatch] = {}
        self.open: set[int] = set()
        self.executed: list[list[int]] = []
        self.requests: dict[int, InferRequest] = {}
        self.cancelled: list[int] = []
        self.credits: list[tuple[int, int]] = []
        self.problem: BaseException | None = None
        self.calls: list[tuple[Any, ...]] = []
        self._number = 0

    # -- what the engine calls

    async def start(self) -> str:
        await asyncio.sleep(0)
        problem, self.problem = self.problem, None
        if problem is not None:
            raise problem
        return ""

    def watch(self) -> None:
        self.calls.append(("watch",))

    async def stop(self, timeout: float) -> None:
        self.calls.append(("stop", timeout))

    async def kill(self) -> None:
        self.calls.append(("kill",))

    def execute(self, batch: Sequence[tuple[int, InferRequest, Any]], size: int) -> int:
        self._number += 1
        keys = [key for key, _, _ in batch]
        self.executed.append(keys)
        self.requests.update((key, each) for key, each, _ in batch)
        self.open.update(keys)
        self.batches[self._number] = ExecutingBatch(keys, -1, 1, size)
        return self._number

    def check_sendable(self, keyed: object) -> None:
        pass

    def cancel(self, keys: Sequence[int]) -> None:
        self.cancelled += keys

    def credit(self, key: int, count: int) -> None:
        self.credits.append((key, count))

    def release_idle_memory(self, *, idle: bool) -> bool:
        self.calls.append(("release_idle_memory", idle))
        has_released, self.has_released = self.has_released, False
        return has_released

    def look_at_progress(self) -> None:
        """Nothing: a test sets how long it has stalled."""

    def follow_log_level(self) -> None:
        self.calls.append(("follow_log_level",))

    def reserve_input(self, size: int, ahead: int) -> memoryview:
        self.calls.append(("reserve_input", size, ahead))
        return memoryview(bytearray(size))

    # -- what a test does in its place

    def respond(
        self,
        key: int,
        response: InferResponse | None = None,
        *,
        final: bool = True,
        reschedule: bool = False,
        started: int = 0,
        ended: int = 0,
    ) -> None:
        """Answer a request; by default it ends without a response."""
        if final or reschedule:
            self.open.discard(key)
        self._account.on_response(self, GuestResponse(key, response, final, reschedule), started, ended)

    def finish(self, number: int | None = None, started: int = 0, ended: int = 0) -> None:
        """`execute` of a batch, of the oldest by default, has returned."""
        number = min(self.batches) if number is None else number
        self._account.on_batch_done(self, self.batches.pop(number), started, ended)

    def answer(self, response: InferResponse | None = None, started: int = 0, ended: int = 0) -> None:
        """Answer all requests of the oldest batch, and finish it."""
        number = min(self.batches)
        for key in self.batches[number].keys:
            self.respond(key, response or InferResponse("m", 1, outputs=output()), started=started, ended=ended)
        self.finish(number, started, ended)


class FakeServices:
    """What guests may ask of the server: nothing.

    Attributes:
        calling: The guests that wait for a call.
    """

    def __init__(self) -> None:
        self.calling: list[object] = []

    def is_calling(self, worker: object) -> bool:
        return worker in self.calling


def exited(message: str = "'m_0_0' exited with code 1", **more: Any) -> GuestExitedError:
    """The error of a guest that has exited."""
    return GuestExitedError(message, exit_status=1, **more)
