"""Models that come and go with demand: the loads, the clock and the memory are the test's."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from engine.submitting import submit
from fakes.clock import Clock, turns
from fakes.guests import PLAIN, Answers, config, request

from naiad.core import blocking
from naiad.core.errors import ModelError, NotReadyError
from naiad.engine.loading import demand
from naiad.engine.loading.demand import DemandLoads
from naiad.engine.open_request import OpenRequest
from naiad.engine.registry import Registry, VersionRecord
from naiad.engine.serving.dormant import DormantVersion
from naiad.engine.serving.version import ModelVersion
from naiad.protocol.inference import InferResponse
from naiad.protocol.metadata import ModelState

MB = 10**6


class Loaded(ModelVersion):
    """A loaded version whose guest has the process id *pid*; it answers all requests."""

    reason = ""
    is_idle = True
    totals: Any = None

    def __init__(self, clock: Clock, pid: int, idle_seconds: float | None = None) -> None:
        self.config = SimpleNamespace(decoupled=False, settings=SimpleNamespace(idle_seconds=idle_seconds))
        self.totals = SimpleNamespace(last=clock.monotonic_ns())
        self.instances = [SimpleNamespace(worker=SimpleNamespace(pid=pid)), SimpleNamespace(worker=None)]

    def accept(self, opened: OpenRequest) -> None:
        opened.sink.send(InferResponse("m", 1), True)
        opened.release()


class World:
    """Models on demand.

    Attributes:
        sizes: Bytes of each model's guest.
        woken: The models that were loaded, in order.
        slept: The models that became dormant.
        failures: Why the next loads of a model fail.
        gates: Loads of these models wait.
        changing: Models of which a change is in progress.
    """

    def __init__(self, clock: Clock, *, memory: int = 0, idle: float = 0.0, threads: int = 4) -> None:
        self.clock = clock
        self.registry = Registry()
        self.sizes: dict[str, int] = {}
        self.woken: list[str] = []
        self.slept: list[str] = []
        self.failures: dict[str, list[Exception]] = {}
        self.gates: dict[str, asyncio.Event] = {}
        self.changing: set[str] = set()
        self.released = 0
        self.ending = 0  # models whose guests have not ended yet
        self.overlaps: list[str] = []  # models that were loaded meanwhile
        self.measured: list[list[int]] = []
        self.on_wake: Callable[..., None] = lambda *_, **__: None
        settings = SimpleNamespace(models_memory=memory, demand_idle_seconds=idle, load_threads=threads)
        self.demand = DemandLoads(settings, self, self, self.registry)

    def add(self, *keys: str, size: int = 0) -> None:
        """Dormant models, whose guests will need *size* bytes."""
        for key in keys:
            record = self.registry.record(key)
            record.is_on_demand = True
            self.sizes[key] = size
            record.versions[1] = VersionRecord(ModelState.READY, loaded=self._dormant(key))

    def _dormant(self, key: str) -> DormantVersion:
        return DormantVersion(
            config(PLAIN), 1, lambda *, is_urgent: self.on_wake(key, is_urgent=is_urgent), timeout=1000.0, is_known=True
        )

    def load(self, *keys: str, idle_seconds: float | None = None) -> None:
        """The models are loaded, whoever has done it."""
        for key in keys:
            record = self.registry.record(key).versions.setdefault(1, VersionRecord(ModelState.READY))
            before, record.loaded = record.loaded, Loaded(self.clock, self._pid(key), idle_seconds)
            if isinstance(before, DormantVersion):
                before.submit_waiting(record.loaded)

    def pin(self, key: str, size: int) -> None:
        """A model that is loaded and stays."""
        self.sizes[key] = size
        self.load(key)

    def ask(self, key: str, *, is_urgent: bool = False) -> Answers:
        """A request for a model."""
        answers = Answers()
        submit(self.version(key), request(), answers, needs_idle=is_urgent)
        return answers

    def version(self, key: str) -> Any:
        return self.registry.record(key).versions[1].loaded

    def _pid(self, key: str) -> int:
        return 100 + list(self.sizes).index(key)

    def memory_of(self, pids: Iterable[int]) -> dict[int, int]:
        wanted = list(pids)
        self.measured.append(wanted)
        return {pid: list(self.sizes.values())[pid - 100] for pid in wanted}

    # -- `ModelLoads` and `LoadOrder`

    async def wake(self, key: str) -> None:
        if key in self.gates:
            await self.gates[key].wait()
        self.woken.append(key)
        if self.ending:
            self.overlaps.append(key)
        failures = self.failures.get(key)
        if failures:
            raise failures.pop(0)
        self.load(key)

    def put_to_sleep(self, key: str) -> Sequence[asyncio.Task[None]]:
        self.slept.append(key)
        self.ending += 1
        self.registry.record(key).versions[1].loaded = self._dormant(key)
        return [asyncio.ensure_future(self._end())]

    async def _end(self) -> None:
        await asyncio.sleep(0.01)
        self.ending -= 1

    def is_changing(self, key: str) -> bool:
        return key in self.changing

    def release_prewarmed(self) -> None:
        self.released += 1


@pytest.fixture
def clock(monkeypatch):
    made = Clock().install(monkeypatch)

    async def at_once(function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)

    monkeypatch.setattr(blocking, "run", at_once)
    return made


@pytest.fixture
def world(clock: Clock, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> World:
    made = World(clock, **settings)
    monkeypatch.setattr(demand, "memory_of", made.memory_of)
    return made


@pytest.fixture
def run_coroutine(clock: Clock, world: World) -> Callable[[Coroutine[Any, Any, None]], object]:
    async def run_and_stop(test: Coroutine[Any, Any, None]) -> None:
        try:
            await test
        finally:
            await world.demand.stop()
        assert world.released == 1

    return lambda test: clock.run(run_and_stop(test))


# -- loading


async def test_a_request_loads_its_model_and_is_answered_by_it(world, caplog):
    caplog.set_level(logging.INFO)
    world.add("m", size=5)
    assert world.demand.states() == {"m": "dormant"}
    answers = world.ask("m")
    others = world.ask("m")
    assert world.demand.states() == {"m": "loading"}
    await turns(10)
    assert answers.is_ended
    assert others.is_ended
    await turns(10)
    assert world.demand.states() == {"m": "loaded"}
    status = world.demand.status()
    assert (status.states, status.sizes, status.limit) == ({"m": "loaded"}, {"m": 5}, 0)
    assert (status.loads, status.failures, status.evictions) == ({"m": 1}, {}, {})
    assert world.woken == ["m"]
    assert [each.getMessage() for each in caplog.records] == ["'m' was loaded on demand in 0.00 s"]


async def test_there_is_no_status_without_models_on_demand(world):
    world.pin("m", 7)
    assert world.demand.status() is None
    world.add("other")
    assert world.demand.status().sizes == {"m": 0}


async def test_a_load_that_fails_answers_its_requests_and_is_tried_again_later_each_time(world, clock, caplog):
    world.add("m")
    world.failures["m"] = [ModelError("no luck"), ModelError("no luck"), ValueError("odd")]
    for seconds in (1, 2):
        answers = world.ask("m")
        await turns(10)
        assert isinstance(answers.error, NotReadyError)
        assert answers.error.message == "no luck"
        assert world.demand.states() == {"m": "failed"}
        clock.advance(seconds - 0.001)
        with pytest.raises(NotReadyError, match="no luck"):
            world.ask("m")
        clock.advance(0.001)
    answers = world.ask("m")
    await turns(10)
    assert answers.error.message == "cannot load 'm': odd"
    clock.advance(4)
    assert world.demand.states() == {"m": "dormant"}
    world.ask("m")
    await turns(10)
    # It counts anew after a load that succeeded.
    world.put_to_sleep("m")
    world.failures["m"] = [ModelError("no luck")]
    world.ask("m")
    await turns(10)
    clock.advance(1)
    world.ask("m")
    await turns(10)
    assert (world.demand.loads["m"], world.demand.failures["m"]) == (2, 4)
    assert [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING] == [
        "'m' could not be loaded on demand; requests try again after 1 s",
        "'m' could not be loaded on demand; requests try again after 2 s",
        "cannot load 'm'",
        "'m' could not be loaded on demand; requests try again after 4 s",
        "'m' could not be loaded on demand; requests try again after 1 s",
    ]


async def test_a_model_of_which_one_version_failed_counts_as_failed(world):
    world.add("m")
    versions = world.registry.record("m").versions
    versions[2] = VersionRecord(ModelState.READY, loaded=world._dormant("m"))
    assert world.demand.states() == {"m": "dormant"}
    versions[2].loaded.fail_waiting(NotReadyError("no"), 1.0)
    assert world.demand.states() == {"m": "failed"}


@pytest.mark.settings(threads=1)
async def test_only_so_many_models_load_at_once_except_those_that_a_model_waits_for(world):
    world.add("a", "b", "c", "d")
    world.gates = {"a": asyncio.Event()}
    world.ask("a")
    world.ask("b")
    await turns(10)
    assert world.woken == []
    urgent = world.ask("c", is_urgent=True)
    await turns(10)
    assert world.woken == ["c"]
    assert urgent.is_ended
    assert world.ask("b", is_urgent=True)
    await turns(10)
    assert world.woken == ["c", "b"]
    await asyncio.gather(*world.put_to_sleep("c"))
    for key in "dc":  # no model waits for it this time
        world.ask(key)
    await turns(10)
    assert world.woken == ["c", "b"]
    world.gates["a"].set()
    await turns(30)
    assert world.woken == ["c", "b", "a", "d", "c"]


@pytest.mark.settings(threads=1)
async def test_a_slot_is_free_again_after_each_load(world):
    world.add("a", "b", "c")
    world.failures["a"] = [ModelError("no")]
    for key in "abc":
        world.ask(key)
    await turns(30)
    assert sorted(world.woken) == ["a", "b", "c"]


async def test_nothing_is_loaded_after_the_stop_and_loads_in_progress_are_cancelled(world):
    world.add("a", "b")
    world.gates = {"a": asyncio.Event()}
    world.ask("a")
    await turns(10)
    await world.demand.stop()
    assert len(asyncio.all_tasks()) == 1
    world.released = 0
    world.gates["a"].set()
    world.ask("b")
    await turns(10)
    assert world.woken == []
    assert len(asyncio.all_tasks()) == 1


# -- idle models


@pytest.mark.settings(idle=10.0)
async def test_models_become_dormant_after_their_idle_time(world, caplog):
    caplog.set_level(logging.INFO)
    world.add("m", "busy", "changing", "short")
    world.pin("pinned", 1)
    for key in ("m", "busy", "changing", "short"):
        world.ask(key)
    await turns(10)
    world.load("short", idle_seconds=3.0)
    world.version("busy").is_idle = False
    world.changing.add("changing")
    await asyncio.sleep(4.5)
    assert world.slept == ["short"]
    await asyncio.sleep(5)
    assert world.slept == ["short"]
    await asyncio.sleep(1.6)
    assert world.slept == ["short", "m"]
    assert world.demand.evictions == {("short", "idle"): 1, ("m", "idle"): 1}
    # Both others count as in use until now.
    world.version("busy").is_idle = True
    world.changing.clear()
    await asyncio.sleep(9)
    assert world.slept == ["short", "m"]
    await asyncio.sleep(2)
    assert sorted(world.slept[2:]) == ["busy", "changing"]
    assert "'short' is unloaded, since it was idle; its next request loads it again" in [
        each.getMessage() for each in caplog.records
    ]


@pytest.mark.settings(idle=10.0)
async def test_a_model_whose_first_request_has_not_ended_counts_as_used_when_it_was_loaded(world):
    world.add("m")
    world.ask("m")
    await turns(10)
    world.version("m").totals.last = 0
    await asyncio.sleep(9.5)
    assert world.slept == []
    await asyncio.sleep(2)
    assert world.slept == ["m"]


@pytest.mark.settings(idle=5.0)
async def test_a_model_whose_sequences_are_handed_over_is_in_use(world):
    world.add("m")
    world.ask("m")
    await turns(10)
    world.registry.record("m").versions[1].handover = object()
    world.registry.record("m").versions[2] = VersionRecord(ModelState.UNAVAILABLE)
    await asyncio.sleep(20)
    assert world.slept == []


@pytest.mark.settings(idle=5.0)
async def test_a_model_of_which_one_version_is_in_use_stays(world, clock):
    world.add("m")
    world.ask("m")
    await turns(10)
    second = Loaded(clock, 101)
    world.registry.record("m").versions[2] = VersionRecord(ModelState.READY, loaded=second)
    world.sizes["second"] = 0
    second.is_idle = False
    await asyncio.sleep(20)
    assert world.slept == []
    second.is_idle = True
    await asyncio.sleep(8)
    assert world.slept[:1] == ["m"]


@pytest.mark.settings(idle=5.0)
async def test_a_look_at_idle_models_that_fails_is_not_the_last_one(world, monkeypatch, caplog):
    world.add("m")
    world.ask("m")
    await turns(10)
    with monkeypatch.context() as patched:
        patched.setattr(demand, "memory_of", lambda _: 1 / 0)
        await asyncio.sleep(1.5)
    await asyncio.sleep(20)
    assert world.slept == ["m"]
    assert "cannot look for idle models" in [each.getMessage() for each in caplog.records]


# -- memory


@pytest.mark.settings(memory=100 * MB)
async def test_the_model_that_was_used_last_stays_if_another_one_needs_memory(world, clock, caplog):
    caplog.set_level(logging.INFO)
    world.add("a", "b", "c", size=40 * MB)
    for key in ("a", "b"):
        world.ask(key)
        await asyncio.sleep(0.1)
    world.version("a").totals.last = clock.monotonic_ns()
    clock.advance(0.1)
    answers = world.ask("c")
    await asyncio.sleep(0.1)
    assert world.slept == ["b"]
    assert answers.is_ended
    assert world.demand.evictions == {("b", "memory"): 1}
    assert world.overlaps == []  # memory is free only when the guests have ended
    assert "'b' is unloaded, since another model needs its memory; its next request loads it again" in [
        each.getMessage() for each in caplog.records
    ]


@pytest.mark.settings(memory=100 * MB)
async def test_a_guest_that_cannot_be_stopped_does_not_keep_others_from_its_place(world, monkeypatch):
    async def fail() -> None:
        raise OSError("no such process")

    world.add("a", "b", size=60 * MB)
    world.ask("a")
    await asyncio.sleep(0.1)
    asleep = world.put_to_sleep
    monkeypatch.setattr(world, "put_to_sleep", lambda key: [*asleep(key), asyncio.ensure_future(fail())])
    answers = world.ask("b")
    await asyncio.sleep(0.1)
    assert (world.slept, world.woken) == (["a"], ["a", "b"])
    assert answers.is_ended


@pytest.mark.parametrize("grows", [False, True])
@pytest.mark.settings(memory=1000 * MB)
async def test_room_for_the_next_loads_is_kept_where_models_are_small(world, grows):
    world.add("a", "b", size=10 * MB)
    for key in "ab":  # so that their sizes are known
        world.ask(key)
        await asyncio.sleep(0.1)
        world.put_to_sleep(key)
    world.slept.clear()
    world.pin("pinned", (800 if grows else 900) * MB)
    for key in "ab":
        assert world.slept == []
        world.ask(key)
        await asyncio.sleep(0.1)
    if grows:
        assert world.slept == []
        world.sizes["pinned"] = 900 * MB
        await asyncio.sleep(1)
    assert world.slept == ["a"]


@pytest.mark.parametrize("is_urgent", [False, True])
@pytest.mark.settings(memory=100 * MB)
async def test_a_load_within_the_limit_is_none_beyond_it(world, caplog, is_urgent):
    world.add("a", "b", size=40 * MB)
    world.ask("a")
    await asyncio.sleep(0.1)
    world.version("a").is_idle = False
    assert world.ask("b", is_urgent=is_urgent).is_ended is False
    await asyncio.sleep(0.1)
    assert world.woken == ["a", "b"]
    assert [each for each in caplog.records if "beyond" in each.getMessage()] == []


@pytest.mark.settings(memory=100 * MB)
async def test_a_load_waits_until_a_model_in_use_is_idle(world, caplog):
    world.add("a", "b", size=60 * MB)
    world.ask("a")
    await asyncio.sleep(0.1)
    world.version("a").is_idle = False
    answers = world.ask("b")
    await asyncio.sleep(0.5)
    assert world.woken == ["a"]
    assert not answers.is_ended
    hindrance = world.version("b").hindrance
    assert hindrance == ("the models in use need the 100 MB of --models-memory, and none of them became idle")
    world.version("a").is_idle = True
    await asyncio.sleep(0.5)
    assert world.slept == ["a"]
    assert answers.is_ended
    assert [each for each in caplog.records if "beyond" in each.getMessage()] == []


@pytest.mark.settings(memory=100 * MB)
async def test_a_load_that_no_request_waits_for_any_more_is_given_up(world):
    world.add("a", "b", size=60 * MB)
    world.ask("a")
    await asyncio.sleep(0.1)
    world.version("a").is_idle = False
    opened = submit(world.version("b"), request(), Answers())
    await asyncio.sleep(0.2)
    opened.cancel()
    await asyncio.sleep(0.2)
    assert world.demand.states() == {"a": "loaded", "b": "dormant"}
    assert (world.woken, world.demand.loads) == (["a"], {"a": 1})


@pytest.mark.settings(memory=100 * MB)
async def test_a_model_that_another_one_waits_for_is_loaded_beyond_the_limit(world, caplog):
    world.add("a", "b", size=60 * MB)
    world.ask("a")
    await asyncio.sleep(0.1)
    world.version("a").is_idle = False
    answers = world.ask("b", is_urgent=True)
    await asyncio.sleep(0.1)
    assert answers.is_ended
    assert world.slept == ["b"]  # the limit holds again as soon as it can
    assert "'b' is loaded beyond --models-memory: a model in use waits for it, and no other model is idle" in [
        each.getMessage() for each in caplog.records
    ]


@pytest.mark.settings(memory=100 * MB)
async def test_a_model_that_can_never_fit_is_refused(world):
    world.pin("pinned", 60 * MB)
    world.add("m", size=50 * MB)
    world.ask("m")
    await asyncio.sleep(0.5)
    assert world.slept == ["m"]  # its size was not known
    answers = world.ask("m")
    await asyncio.sleep(0.5)
    assert answers.error.message == (
        "cannot load 'm': it used 50 MB when it was loaded last, and --models-memory=100 MB leaves 35 MB beside "
        "models that stay; raise the limit, or pin fewer models"
    )


@pytest.mark.settings(memory=100 * MB)
async def test_a_model_of_unknown_size_is_tried_beside_large_ones_that_stay(world):
    """It may be small: the sizes of others are a guess alone."""
    world.pin("pinned", 60 * MB)
    world.add("m", size=5 * MB)
    answers = world.ask("m")
    await asyncio.sleep(0.5)
    assert answers.is_ended
    assert world.demand.states() == {"m": "loaded"}
    assert world.slept == []


@pytest.mark.settings(memory=100 * MB)
async def test_two_loads_do_not_take_the_same_room(world):
    world.add("a", "b", size=60 * MB)
    for key in "ab":  # so that their sizes are known
        world.ask(key)
        await asyncio.sleep(0.1)
        world.put_to_sleep(key)
    world.woken.clear()
    world.gates = {"a": asyncio.Event()}
    world.ask("a")
    world.ask("b")
    await asyncio.sleep(0.2)
    assert world.woken == []
    world.gates["a"].set()
    await asyncio.sleep(0.2)
    assert world.woken == ["a", "b"]


@pytest.mark.settings(memory=100 * MB)
async def test_models_beyond_the_limit_are_reported_once_until_it_holds_again(world, caplog):
    world.add("m", size=10 * MB)
    world.pin("pinned", 50 * MB)
    world.ask("m")
    await asyncio.sleep(0.1)
    for size in (200, 50, 200):
        world.sizes["pinned"] = size * MB
        await asyncio.sleep(3)
    assert world.slept == ["m"]
    text = "models in use or pinned need more than --models-memory=100 MB"
    assert [each.getMessage() for each in caplog.records].count(text) == 2


async def test_a_size_that_cannot_be_measured_any_more_is_that_of_the_last_time(world):
    world.add("m", size=5)
    world.ask("m")
    await turns(10)
    world.sizes["m"] = 0
    await asyncio.sleep(3)
    assert world.demand.status().sizes == {"m": 5}


@pytest.mark.settings(memory=100 * MB)
async def test_models_that_were_loaded_otherwise_are_measured_before_room_is_made(world):
    world.pin("pinned", 90 * MB)
    world.add("a", "b", size=20 * MB)
    world.load("a")
    world.ask("b")
    await asyncio.sleep(0.2)
    assert world.slept[0] == "a"
