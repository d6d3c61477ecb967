"""Requests to a version with replicas: where each goes, and what becomes of those that wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from fakes.clock import Clock
from fakes.guests import Answers

from naiad.core.errors import InvalidRequestError, NotReadyError
from naiad.engine.open_request import OpenRequest
from naiad.engine.serving.replicas import Spreading
from naiad.protocol.inference import InferRequest


class Admission:
    """Keeps what was submitted or started here; a request with the id "wrong" is refused."""

    def __init__(self, in_flight: Tracker) -> None:
        self.reason = ""
        self.here: list[tuple[str, bool]] = []
        self._in_flight = in_flight

    def require_valid(self, request: InferRequest) -> None:
        if request.request_id == "wrong":
            raise InvalidRequestError("it is wrong")

    def admit(self, opened: OpenRequest) -> None:
        self.here.append((opened.request.request_id, opened.needs_idle))
        self._in_flight.wait(opened)

    def start(self, opened: OpenRequest) -> None:
        if self.reason:
            raise NotReadyError(self.reason)
        self.admit(opened)


class Tracker:
    """Has requests that wait for an instance, which is idle or not."""

    def __init__(self) -> None:
        self.waiting: list[OpenRequest] = []
        self.is_idle = False

    def __len__(self) -> int:
        return len(self.waiting)

    def wait(self, opened: OpenRequest) -> None:
        if not self.is_idle:
            self.waiting.append(opened)

    def has_idle(self) -> bool:
        return self.is_idle

    def takes_at_once(self, _: int) -> bool:
        return self.is_idle

    def is_waiting(self, opened: OpenRequest) -> bool:
        return opened in self.waiting

    def give_away(self, opened: OpenRequest) -> None:
        self.waiting.remove(opened)


class Replicas:
    """Keeps what was sent to a replica; *idle* and *better* are the processes with an idle instance, or less to do."""

    typical = 0

    def __init__(self) -> None:
        self.idle: int | None = None
        self.better: int | None = None
        self.serving: list[int] = []
        self.sent: list[tuple[int, OpenRequest]] = []
        self.compared: list[tuple[int, int]] = []
        self.loads: list[int] = []
        self.take_back: Callable[[OpenRequest], None] = lambda _: None

    def idle_process(self) -> int | None:
        return self.idle

    def process_to_ask(self) -> int | None:
        return self.serving.pop(0) if self.serving else None

    def least_loaded(self, in_flight: int, instances: int) -> int | None:
        self.compared.append((in_flight, instances))
        return self.better

    def send(self, process: int, opened: OpenRequest) -> None:
        self.sent.append((process, opened))

    def note_load(self, in_flight: int) -> None:
        self.loads.append(in_flight)


class Spread:
    def __init__(self) -> None:
        self.in_flight = Tracker()
        self.admission = Admission(self.in_flight)
        self.replicas = Replicas()
        self.answers = Answers()

    async def run(self, test: Coroutine[Any, Any, None]) -> None:
        self.spreading = Spreading(self.admission, self.in_flight, self.replicas, lambda: 1)  # type: ignore[arg-type]
        try:
            await test
        finally:
            self.spreading.close()

    def opened(self, name: str, **fields: Any) -> OpenRequest:
        needs_idle = fields.pop("needs_idle", False)
        return OpenRequest(InferRequest("m", -1, (), name, **fields), self.answers, needs_idle)

    def submit(self, name: str, **fields: Any) -> OpenRequest:
        opened = self.opened(name, **fields)
        self.spreading.spread(opened)
        return opened


@pytest.fixture
def spread() -> Spread:
    return Spread()


@pytest.fixture
def run_coroutine(spread: Spread) -> Callable[[Coroutine[Any, Any, None]], object]:
    return lambda test: Clock().run(spread.run(test))


async def test_a_request_stays_while_an_instance_is_idle(spread: Spread) -> None:
    spread.in_flight.is_idle, spread.replicas.better, spread.replicas.idle = True, 1, 1
    spread.submit("a")
    spread.submit("b", needs_idle=True)
    assert (spread.admission.here, spread.replicas.sent) == ([("a", False), ("b", True)], [])


async def test_a_request_goes_where_there_is_less_to_do_and_a_call_to_an_idle_instance(spread: Spread) -> None:
    spread.replicas.better, spread.replicas.idle = 1, 2
    first, call = spread.submit("a"), spread.submit("b", needs_idle=True)
    assert spread.replicas.sent == [(1, first), (2, call)]


@pytest.mark.parametrize(("reason", "instances"), [("", 1), ("its guests restart", 0)])
async def test_a_request_is_compared_with_what_instances_here_have_to_do(
    spread: Spread, reason: str, instances: int
) -> None:
    spread.admission.reason = reason
    for number in range(2):
        spread.submit("a")
        assert spread.replicas.compared[number] == (number, instances)
        assert spread.replicas.loads[number] == number + 1, "other processes are told"
    spread.in_flight.is_idle, spread.replicas.better = True, 1
    spread.submit("b")
    assert len(spread.replicas.sent) == bool(reason), "an idle instance that cannot serve is none"


async def test_a_request_with_tensors_in_gpu_memory_stays(spread: Spread) -> None:
    spread.replicas.better = spread.replicas.idle = 1
    spread.submit("a", device=object())
    spread.submit("b", needs_idle=True, device=object())
    spread.spreading._waiting.look()
    assert spread.replicas.sent == []


async def test_a_request_that_does_not_fit_the_model_is_sent_nowhere(spread: Spread) -> None:
    spread.replicas.better = 1
    with pytest.raises(InvalidRequestError, match="it is wrong"):
        spread.submit("wrong")
    assert spread.replicas.sent == []


async def test_calls_that_wait_move_in_order_when_an_instance_elsewhere_is_idle_and_requests_stay(
    spread: Spread,
) -> None:
    spread.submit("client's")
    calls = [spread.submit(name, needs_idle=True) for name in "ab"]
    assert spread.replicas.sent == []
    await asyncio.sleep(0.041)  # 20 looks
    spread.replicas.idle = 2
    await asyncio.sleep(0.002)
    assert spread.replicas.sent == [(2, call) for call in calls]
    assert [each.request.request_id for each in spread.in_flight.waiting] == ["client's"]
    # The looks for the next one are counted anew.
    spread.replicas.idle, spread.replicas.serving = None, [1]
    spread.submit("c", needs_idle=True)
    await asyncio.sleep(0.049)
    assert len(spread.replicas.sent) == 2
    await asyncio.sleep(0.002)
    assert len(spread.replicas.sent) == 3


async def test_a_call_that_waits_long_goes_to_processes_that_seem_to_be_busy_one_after_another(spread: Spread) -> None:
    first, second = (spread.submit(name, needs_idle=True) for name in "ab")
    spread.replicas.serving = [1, 2]
    await asyncio.sleep(0.049)
    assert spread.replicas.sent == []
    await asyncio.sleep(0.002)  # the 25th look
    assert spread.replicas.sent == [(1, first)], "one alone"
    spread.replicas.take_back(first)
    await asyncio.sleep(0.048)
    assert len(spread.replicas.sent) == 1
    await asyncio.sleep(0.002)
    assert spread.replicas.sent[1] == (2, first)
    assert spread.in_flight.waiting == [second]
    assert list(spread.spreading._waiting._calls) == [first, second], "at its place"
    await asyncio.sleep(0.1)
    assert len(spread.replicas.sent) == 2, "no process serves"


async def test_a_request_that_a_replica_does_not_take_waits_here(spread: Spread) -> None:
    spread.replicas.idle = 1
    opened = spread.submit("a", needs_idle=True)
    spread.replicas.idle = None
    opened.needs_idle = False  # as a client's request
    spread.replicas.take_back(opened)
    assert spread.in_flight.waiting == [opened]
    assert spread.admission.here[-1] == ("a", True), "it would be missing where deadlocks are looked for"
    spread.replicas.idle = 3
    await asyncio.sleep(0.002)
    assert spread.replicas.sent[1] == (3, opened)


async def test_a_request_that_comes_back_and_cannot_be_started_is_answered_with_the_reason(spread: Spread) -> None:
    spread.admission.reason = "it is being unloaded"
    spread.replicas.take_back(spread.opened("a"))
    spread.admission.start = lambda _: 1 // 0  # type: ignore[assignment,return-value]
    spread.replicas.take_back(spread.opened("b"))
    first, second = spread.answers.responses
    assert (first[0].error.message, first[1]) == ("it is being unloaded", True)
    assert ("ZeroDivisionError" in second[0].error.message, second[1]) == (True, True)


async def test_nothing_moves_once_the_version_ends(spread: Spread) -> None:
    moved, _ = spread.submit("m", needs_idle=True), spread.submit("a", needs_idle=True)
    spread.in_flight.give_away(moved)
    spread.spreading.close()
    spread.replicas.idle = spread.replicas.better = 1
    spread.submit("b")
    for opened in (moved, spread.opened("c")):
        spread.replicas.take_back(opened)
    await asyncio.sleep(0.1)
    assert spread.replicas.sent == []
    assert [each.request.request_id for each in spread.in_flight.waiting] == ["a", "b", "m", "c"]
