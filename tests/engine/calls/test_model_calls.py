"""Calls of models among many open ones: what each costs, and that cycles are found among any number of them."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import SimpleNamespace

import pytest
from engine.submitting import WeakRequest
from fakes.clock import Clock, turns

from naiad.core.errors import NaiadError, NotReadyError
from naiad.engine.calls.model_calls import ModelCalls
from naiad.engine.open_request import OpenRequest
from naiad.guests.calls import ModelCall
from naiad.protocol.inference import InferRequest, InferResponse

MANY = 200


class Guest:
    """Stands in for `Worker`: keeps the numbers of its calls that were rejected."""

    gpus = None

    def __init__(self, model: str) -> None:
        self.spec = SimpleNamespace(name=f"{model}_0", load=SimpleNamespace(model_name=model))
        self.batches = {1: None}
        self.rejected: list[int] = []

    def send_result(self, number: int, response: InferResponse | None, final: bool) -> None:
        if response is not None and response.error is not None:
            assert "the call can never be answered" in response.error.message
            self.rejected.append(number)

    def propagated(self) -> Mapping[str, str]:
        return {}


class Model:
    """Stands in for `ModelVersion`: all requests wait for its guests.

    Attributes:
        guests: Its guests.
        looks: How often it was asked what a request waits for.
    """

    config = SimpleNamespace(decoupled=False)
    device = 0
    reason = ""

    def __init__(self, *guests: Guest) -> None:
        self.guests = list(guests)
        self.looks = 0
        self._waiting: set[OpenRequest] = set()

    def accept(self, opened: OpenRequest) -> None:
        assert opened.needs_idle
        opened.holder = self  # type: ignore[assignment] # as far as calls need it
        self._waiting.add(opened)

    def is_waiting(self, opened: OpenRequest) -> bool:
        return opened in self._waiting

    def waits_of(self, opened: OpenRequest) -> Sequence[Collection[Guest]]:
        self.looks += 1
        return [self.guests] if opened in self._waiting else ()

    def reject_waiting(self, opened: OpenRequest, error: NaiadError) -> None:
        self._waiting.remove(opened)
        opened.fail(error)


class Calls:
    """`ModelCalls` of the models *called*, by their names."""

    def __init__(self, **called: Model) -> None:
        self.open = ModelCalls(SimpleNamespace(find=lambda name, _: called[name]))  # type: ignore[arg-type]

    def make(self, caller: Guest, model: str, numbers: Sequence[int] = (1,), *, is_decoupled: bool = False) -> None:
        for number in numbers:
            request = InferRequest(model, -1, ())
            made = ModelCall(number, request, is_decoupled=is_decoupled, is_blocking=False, is_awaited=True)
            self.open.on_call(caller, made)  # type: ignore[arg-type]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock().install(monkeypatch)


@pytest.fixture
def no_collection() -> Iterator[None]:
    """What only a collection would free is not freed."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collection")
def test_nothing_is_left_of_a_call_that_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tensors are in memory of the calling guest."""
    caller, model = Guest("caller"), Model()
    monkeypatch.setattr(model, "accept", _refuse)
    monkeypatch.setattr(caller, "send_result", lambda *_: None)
    request = WeakRequest("m", -1, ())
    gone = weakref.ref(request)
    call = ModelCall(1, request, is_decoupled=False, is_blocking=False, is_awaited=True)
    Calls(m=model).open.on_call(caller, call)  # type: ignore[arg-type]
    del request, call
    assert gone() is None


def _refuse(_: OpenRequest) -> None:
    raise NotReadyError("its queue is full")


@pytest.mark.parametrize("is_decoupled", [False, True])
def test_a_call_of_a_model_that_waits_for_nothing_is_looked_at_once(is_decoupled: bool) -> None:
    caller, model = Guest("caller"), Model(Guest("called"))
    Calls(m=model).make(caller, "m", range(MANY), is_decoupled=is_decoupled)
    assert model.looks == MANY


def test_a_step_of_an_ensemble_that_waits_for_a_model_that_waits_for_nothing_is_looked_at_alone() -> None:
    model, other = Model(Guest("called")), Guest("step")
    calls = Calls(m=model)
    calls.make(Guest("caller"), "m", range(MANY))
    looks = model.looks
    calls.open.on_ensemble_step_waiting(lambda: [[other]])  # type: ignore[list-item]
    assert model.looks == looks


@pytest.fixture
def run_coroutine(clock):
    return clock.run


async def test_many_calls_of_a_model_that_calls_share_their_searches(clock: Clock) -> None:
    middle = Guest("middle")
    model, last = Model(middle), Model(Guest("last"))
    calls = Calls(middle=model, last=last)
    calls.make(middle, "last")
    calls.make(Guest("caller"), "middle", range(MANY))
    searches = last.looks
    calls.make(Guest("other"), "middle", range(MANY))
    await turns()
    assert last.looks == searches
    clock.advance(1)
    await turns()
    assert last.looks == searches + 1


async def test_a_cycle_is_found_among_many_calls(clock: Clock) -> None:
    caller, called = Guest("caller"), Guest("called")
    calls = Calls(called=Model(called), caller=Model(caller))
    calls.make(caller, "called", range(MANY))
    clock.advance(0.001)
    calls.make(called, "caller")
    assert called.rejected == []
    clock.advance(1)
    await turns()
    assert called.rejected == [1]
    assert caller.rejected == []


async def test_a_cycle_through_a_step_of_an_ensemble_is_found_among_many_calls(clock: Clock) -> None:
    caller = Guest("caller")
    ensemble = Model(Guest("called"))
    calls = Calls(ensemble=ensemble)
    calls.make(caller, "ensemble", range(MANY))
    ensemble.guests[:] = [caller]
    calls.open.on_ensemble_step_waiting(lambda: [[caller]])  # type: ignore[list-item]
    clock.advance(1)
    await turns()
    assert sorted(caller.rejected) == list(range(MANY))


async def test_many_calls_that_become_deadlocked_at_once_are_rejected_in_few_searches(clock: Clock) -> None:
    caller = Guest("caller")
    model = Model(caller, Guest("other"))
    calls = Calls(caller=model)
    calls.make(caller, "caller", range(MANY))
    model.guests.pop()
    looks = model.looks
    calls.open.on_call_waiting()
    clock.advance(1)
    await turns()
    assert sorted(caller.rejected) == list(range(MANY))
    assert model.looks - looks < 3 * MANY
