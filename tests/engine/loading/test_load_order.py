"""Loads and unloads in their order, without guests: `ModelLoads` and the repository are the test's."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fakes.clock import Clock, turns
from google.protobuf import text_format

from naiad.config.model import model_config_pb2 as pb
from naiad.core.errors import Code, InvalidRequestError, NaiadError, NotReadyError
from naiad.engine.loading.load_order import LoadOrder
from naiad.engine.loading.model_loads import LoadOutcome, ModelLoads
from naiad.engine.loading.model_source import ModelSource
from naiad.engine.registry import Registry, VersionRecord
from naiad.models.repository.layout import ModelFiles
from naiad.protocol.metadata import ModelState


def ensemble(*models: str) -> str:
    """The configuration of an ensemble of *models*."""
    steps = " ".join(f'step {{ model_name: "{name}" }}' for name in models)
    return f'platform: "ensemble" ensemble_scheduling {{ {steps} }}'


def after(text: str) -> str:
    """The configuration of a model that is loaded after others."""
    return f'parameters {{ key: "LOAD_AFTER" value {{ string_value: "{text}" }} }}'


class World:
    """A repository, and the loads of its models.

    Attributes:
        models: The files of all models, by key.
        done: Loads and unloads, in their order.
        nested: The models whose loads were nested.
        failures: Why a model cannot be loaded.
        unchanged: The models whose files have not changed.
        replaced: The models whose replaced instances are still ending.
        gate: If set, loads wait for it.
    """

    def __init__(self, folder: Path, *, is_namespaced: bool = False) -> None:
        self.registry = Registry(is_namespaced=is_namespaced)
        self.models: dict[str, ModelFiles] = {}
        self.done: list[str] = []
        self.nested: set[str] = set()
        self.failures: dict[str, Exception] = {}
        self.unchanged: set[str] = set()
        self.replaced: set[str] = set()
        self.scans = 0
        self.gate: asyncio.Event | None = None
        self.needs: dict[str, frozenset[str]] = {}
        self.after: dict[str, frozenset[str]] = {}
        self.ensembles: dict[str, ModelSource] = {}
        self._registry = self.registry
        self._folder = folder
        self.order = LoadOrder(self, self.registry)

    def add(self, name: str, text: str = "", namespace: str = "") -> ModelSource:
        """A model with this configuration; none if *text* is empty."""
        directory = self._folder / (namespace or "models") / name
        directory.mkdir(parents=True, exist_ok=True)
        if text:
            (directory / "config.pbtxt").write_text(text)
        files = ModelFiles(name=name, repository=directory.parent, directory=directory, namespace=namespace)
        self.models[files.key] = files
        return ModelSource(files=files)

    def serve(self, *keys: str) -> None:
        """These models serve."""
        for key in keys:
            self.registry.record(key).versions[1] = VersionRecord(ModelState.READY, loaded=Served(self, key))

    def serving(self) -> set[str]:
        return {model.key for model in self.registry if model.serving()}

    def requested(self, *keys: str) -> None:
        """A client has loaded these models."""
        self.order._requested.update(keys)

    # -- loads

    async def load(
        self,
        source: ModelSource,
        *,
        is_nested: bool,
        is_first: bool = False,
        is_compared: bool = False,
        models: Any = None,
    ) -> LoadOutcome:
        key = source.files.key
        if is_compared and key in self.unchanged and all(map(self.registry.is_serving, self.after.get(key, ()))):
            return LoadOutcome(is_loaded=False)
        if is_first and (needs := self._needs_of(source, models)):
            return needs
        self.done.append(f"+{key}")
        if is_nested:
            self.nested.add(key)
        if self.gate is not None:
            await self.gate.wait()
        if key in self.needs:
            self.ensembles[key] = source
        await asyncio.sleep(0)
        if key in self.failures:
            raise self.failures[key]
        self.serve(key)
        return LoadOutcome(is_loaded=True)

    def _needs_of(self, source: ModelSource, models: Any) -> LoadOutcome | None:
        path = source.files.directory / "config.pbtxt"
        message = text_format.Parse(path.read_text() if path.exists() else "", pb.ModelConfig())
        names_others = message.HasField("ensemble_scheduling") or bool(message.parameters)
        if names_others and models is None:
            models = self.models
            self.scans += 1
        found: Any = SimpleNamespace(source=source, message=message, models=models, needs_others=names_others)
        needs = ModelLoads._note_needs(self, found)
        return LoadOutcome(is_loaded=False, needs=needs, models=models) if needs else None

    def end_blocked_load(self, key: str) -> None:
        """No load waits for a build here."""

    def unload(self, key: str) -> Sequence[asyncio.Task[None]]:
        self.done.append(f"-{key}")
        record = self.registry.record(key).versions.get(1)
        if record is not None:
            record.loaded = None
            record.state = ModelState.UNAVAILABLE
        return [asyncio.ensure_future(self._end(key))]

    async def _end(self, key: str) -> None:
        await asyncio.sleep(0)
        self.done.append(f"{key} ended")

    async def wait_replaced(self, key: str) -> bool:
        self.done.append(f"waited for {key}")
        return key in self.replaced

    async def wake(self, key: str) -> None:
        assert self.order.is_changing(key)
        self.done.append(f"woke {key}")

    async def scale(self, key: str, version: Any, count: int) -> None:
        assert self.order.is_changing(key)
        self.done.append(f"scaled {key} to {count} with {version}")

    async def wait_unloaded(self) -> None:
        self.done.append("all unloaded")

    def changes(self) -> list[str]:
        """Loads and unloads since the last call, without the ends of unloads."""
        found, self.done = self.done, []
        return [each for each in found if each[0] in "+-"]


class Served:
    """A loaded version."""

    reason = ""

    def __init__(self, world: World, key: str) -> None:
        self.key = key
        self._world = world
        self.timeouts: list[float] = []

    async def stop(self, timeout: float) -> None:
        self.timeouts.append(timeout)
        self._world.done.append(f"stop {self.key}")
        await asyncio.sleep(2)
        self._world.done.append(f"{self.key} stopped")


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


@pytest.fixture
def run_coroutine() -> Callable[[Coroutine[Any, Any, Any]], object]:
    return asyncio.run


# -- loading


async def test_at_the_start_members_and_named_models_come_before_those_that_need_them(world):
    sources = [
        world.add("e", ensemble("a", "late")),
        world.add("late", after("x, b")),
        world.add("plain"),
    ]
    for name in ("a", "b", "x"):
        world.add(name, 'backend: "python"')
    outcomes = await world.order.load_all({each.files.key: each for each in sources}, world.models)
    assert outcomes == {"e": None, "late": None, "plain": None}
    done = world.changes()
    assert set(done) == {"+e", "+late", "+plain", "+a", "+b", "+x"}
    assert done[-1] == "+e"
    assert done.index("+late") > max(done.index("+b"), done.index("+x"))
    assert done.index("+e") > done.index("+a")
    assert world.scans == 0
    assert world.needs == {"e": frozenset({"a", "late"})}
    assert world.nested == set()


async def test_members_of_members_are_loaded_and_those_that_serve_are_not(world):
    source = world.add("outer", ensemble("inner", "there"))
    world.add("inner", ensemble("a"))
    world.add("a")
    world.add("there")
    world.serve("there")
    await world.order.load([source], is_nested=True)
    assert world.changes() == ["+a", "+inner", "+outer"]
    assert world.nested == {"a", "inner", "outer"}
    assert world.scans == 1


async def test_members_that_no_repository_has_are_left_to_the_load_of_the_ensemble(world):
    world.failures["e"] = NaiadError("contains models that are not available")
    source = world.add("e", ensemble("nowhere"))
    with pytest.raises(NaiadError, match="contains models that are not available"):
        await world.order.load([source])
    assert world.changes() == ["+e"]


async def test_models_that_name_each_other_do_not_wait_for_each_other(world):
    sources = {name: world.add(name, after(other)) for name, other in ("ab", "bc", "ca")}
    sources["d"] = world.add("d", after("a"))
    outcomes = await world.order.load_all(sources, world.models)
    assert outcomes == dict.fromkeys("abcd")
    done = world.changes()
    assert sorted(done) == ["+a", "+b", "+c", "+d"]
    assert done.index("+d") > done.index("+a")


async def test_an_unchanged_model_is_left_as_it_is(world):
    source = world.add("m")
    world.serve("m")
    world.unchanged.add("m")
    assert not await world.order.load([source])
    assert world.changes() == []


async def test_an_unchanged_model_is_loaded_if_one_that_it_needs_does_not_serve(world):
    source = world.add("m", after("a"))
    world.add("a")
    await world.order.load([source])
    assert world.changes() == ["+a", "+m"]
    world.unchanged.add("m")
    await world.order.load([source])
    assert world.changes() == []
    world.registry.record("a").versions[1].loaded = None
    await world.order.load([source])
    assert world.changes() == ["+a", "+m"]


async def test_a_load_says_whether_replaced_instances_are_still_ending(world):
    sources = [world.add("a"), world.add("b"), world.add("c")]
    world.replaced.add("b")
    world.unchanged.add("c")
    assert await world.order.load(sources)
    assert [each for each in world.done if "waited" in each] == ["waited for a", "waited for b"]
    assert not await world.order.load(sources[:1])


async def test_the_errors_of_several_models_are_joined(world):
    sources = [world.add("a"), world.add("b"), world.add("c")]
    world.failures = {"a": NaiadError("first. "), "c": NaiadError("second.")}
    with pytest.raises(InvalidRequestError) as caught:
        await world.order.load(sources)
    assert caught.value.message == "first. second."
    world.failures["a"] = ValueError("odd")
    with pytest.raises(ValueError, match="odd"):
        await world.order.load(sources)
    world.failures = {"c": NaiadError("alone", code=Code.UNAVAILABLE)}
    with pytest.raises(NaiadError) as caught:
        await world.order.load(sources)
    assert caught.value.code is Code.UNAVAILABLE


async def test_the_name_of_a_model_means_the_one_of_its_own_namespace_or_the_only_one(tmp_path):
    world = World(tmp_path, is_namespaced=True)
    source = world.add("e", ensemble("a", "b"), namespace="one")
    for name, namespace in (("a", "one"), ("a", "two"), ("b", "two")):
        world.add(name, namespace=namespace)
    await world.order.load([source])
    assert world.needs == {"one::e": frozenset({"one::a", "two::b"})}
    assert set(world.changes()) == {"+one::a", "+two::b", "+one::e"}


async def test_a_model_that_names_others_no_more_is_not_loaded_after_them(world):
    world.add("a")
    for text in (after("a"), ensemble("a"), ""):
        await world.order.load([world.add("m", text or 'backend: "python"')])
        assert (world.after.get("m"), world.needs.get("m")) == (
            frozenset("a") if text == after("a") else None,
            frozenset("a") if text == ensemble("a") else None,
        )


# -- ensembles of loaded models


async def test_ensembles_that_depend_on_a_loaded_model_are_loaded_again(world):
    sources = {
        name: world.add(name, ensemble(*members)) for name, members in {"inner": "a", "outer": ("inner",)}.items()
    }
    a = world.add("a")
    await world.order.load([sources["outer"]])
    world.changes()
    outcomes = await world.order.update({"a": a}, ())
    assert outcomes == {"a": None, "inner": None, "outer": None}
    assert world.changes() == ["+a", "+inner", "+outer"]
    # One that serves no longer, because it was unloaded, stays so.
    world.registry.record("outer").versions[1].loaded = None
    await world.order.load([a])
    assert world.changes() == ["+a", "+inner"]


async def test_an_ensemble_that_does_not_fit_its_new_member_is_suspended_until_that_changes(world):
    source, a = world.add("e", ensemble("a")), world.add("a")
    await world.order.load([source])
    world.changes()
    world.failures["e"] = NaiadError("dims differ")
    outcomes = await world.order.update({"a": a}, ())
    assert outcomes["a"] is None
    assert outcomes["e"].message == "dims differ"
    assert world.done == ["+a", "+e", "-e", "e ended"]
    assert "e" not in world.serving()
    world.changes()
    del world.failures["e"]
    await world.order.load([a], is_nested=True)
    assert world.changes() == ["+a", "+e"]
    assert world.nested == {"a", "e"}
    assert "e" in world.serving()
    # It is suspended no longer: one that does not serve is left alone now.
    world.registry.record("e").versions[1].loaded = None
    await world.order.load([a])
    assert world.changes() == ["+a"]


async def test_an_ensemble_that_could_not_be_loaded_is_tried_again_when_a_member_is_loaded(world):
    source, a = world.add("e", ensemble("a")), world.add("a")
    world.failures["e"] = NaiadError("dims differ")
    with pytest.raises(NaiadError):
        await world.order.load([source])
    world.changes()
    del world.failures["e"]
    await world.order.load([a])
    assert world.changes() == ["+a", "+e"]


async def test_a_model_that_could_not_be_loaded_does_not_have_ensembles_loaded_again(world):
    source, a = world.add("e", ensemble("a")), world.add("a")
    await world.order.load([source])
    world.changes()
    world.failures["a"] = NaiadError("no")
    with pytest.raises(NaiadError):
        await world.order.load([a])
    assert world.changes() == ["+a"]


async def test_a_model_of_a_second_namespace_has_ensembles_with_its_name_checked_again(tmp_path):
    world = World(tmp_path, is_namespaced=True)
    source = world.add("e", ensemble("a", "c"), namespace="one")
    world.add("a", namespace="two")
    world.add("c", namespace="one")
    await world.order.load([source])
    assert sorted(world.changes()) == ["+one::c", "+one::e", "+two::a"]
    outcomes = await world.order.update({"three::a": world.add("a", namespace="three")}, ())
    assert world.changes() == ["+three::a", "+one::e"]
    assert outcomes == {"three::a": None, "one::e": None}
    await world.order.load([world.add("b", namespace="three")])
    assert world.changes() == ["+three::b"]


# -- unloading


async def test_unloading_a_model_suspends_ensembles_and_loading_it_loads_them_again(world):
    source, a = world.add("e", ensemble("a")), world.add("a")
    await world.order.load([source, a])
    world.changes()
    await world.order.unload("a", with_members=False)
    assert world.done[:3] == ["-e", "e ended", "-a"]
    assert world.serving() == set()
    world.changes()
    await world.order.load([a])
    assert world.changes() == ["+a", "+e"]
    # Nothing is kept of one that is unloaded itself while it is suspended: clients choose the names.
    for name in "ae":
        await world.order.unload(name, with_members=False)
    assert world.order._suspended == set()


async def test_members_stay_unless_the_client_asks_for_them(world):
    source = world.add("e", ensemble("a"))
    world.add("a")
    await world.order.load([source])
    world.changes()
    await world.order.unload("e", with_members=False)
    assert world.changes() == ["-e"]
    assert world.serving() == {"a"}
    await world.order.load([world.add("a")])
    assert world.changes() == ["+a"]  # the ensemble was unloaded, not suspended


async def test_members_leave_with_their_ensemble_where_nothing_else_needs_them(world):
    outer = world.add("outer", ensemble("inner", "shared", "asked"))
    world.add("inner", ensemble("a"))
    other = world.add("other", ensemble("shared"))
    asked = world.add("asked")
    for name in ("a", "shared"):
        world.add(name)
    await world.order.load([outer, other, asked])
    world.changes()
    await world.order.unload("outer", with_members=True)
    assert world.done[:4] == ["-outer", "outer ended", "-inner", "inner ended"]
    assert world.changes() == ["-outer", "-inner", "-a"]
    assert world.serving() == {"other", "shared", "asked"}
    # What was unloaded counts as requested no more.
    await world.order.unload("other", with_members=True)
    assert world.changes() == ["-other", "-shared"]


async def test_a_model_that_a_client_has_unloaded_counts_as_requested_no_more(world):
    a, source = world.add("a"), world.add("e", ensemble("a"))
    await world.order.load([a])
    await world.order.unload("a", with_members=False)
    await world.order.load([source])
    assert world.serving() == {"a", "e"}
    await world.order.unload("e", with_members=True)
    assert world.serving() == set()
    assert world.ensembles == world.needs == {}


async def test_a_plain_model_has_no_members(world):
    world.serve("a", "b")
    await world.order.unload("a", with_members=True)
    assert world.changes() == ["-a"]


async def test_a_model_that_was_loaded_with_an_ensemble_and_later_by_a_client_stays(world):
    outer, a = world.add("e", ensemble("a")), world.add("a")
    await world.order.load([outer])
    world.unchanged.add("a")
    await world.order.load([a])
    await world.order.unload("e", with_members=True)
    assert world.serving() == {"a"}


async def test_models_that_were_loaded_at_the_start_or_by_polling_stay(world):
    outer, a, b = world.add("e", ensemble("a", "b")), world.add("a"), world.add("b")
    await world.order.load_all({"e": outer, "a": a}, world.models)
    await world.order.update({"b": b}, ())
    await world.order.unload("e", with_members=True)
    assert world.serving() == {"a", "b"}


async def test_removed_models_are_unloaded_after_changed_ones_are_loaded(world):
    source = world.add("e", ensemble("a"))
    world.add("a")
    await world.order.load([source])
    world.changes()
    world.registry.record("gone").reason = "invalid"
    source = world.add("e", ensemble("b"))
    world.add("b")
    await world.order.update({"e": source}, ["a", "gone"])
    # The models of an update at the start of polling are all known; this one's new member is not.
    assert world.changes() == ["+e", "-a", "-gone"]
    assert world.registry.record("gone").reason == ""
    assert world.serving() == {"e"}


# -- one at a time


async def test_changes_of_one_model_wait_for_each_other(world):
    world.gate = asyncio.Event()
    source = world.add("m")
    loading = asyncio.ensure_future(world.order.load([source]))
    while not world.done:
        await asyncio.sleep(0.001)
    assert world.order.is_changing("m")
    assert not world.order.is_changing("other")
    unloading = asyncio.ensure_future(world.order.unload("m", with_members=False))
    await asyncio.sleep(0)
    assert world.changes() == ["+m"]
    world.gate.set()
    await asyncio.gather(loading, unloading)
    assert world.changes() == ["-m"]
    assert not world.order.is_changing("m")


@pytest.mark.parametrize("with_members", [False, True])
async def test_an_unload_waits_for_loads_in_progress_of_what_it_changes_alone(world, with_members):
    world.needs["e"] = frozenset("a")
    world.serve("e")
    world.gate = asyncio.Event()
    loading = asyncio.ensure_future(world.order.load([world.add("a")]))
    while not world.done:
        await asyncio.sleep(0.001)
    unloading = asyncio.ensure_future(world.order.unload("e", with_members=with_members))
    await turns(10)
    assert world.changes() == (["+a"] if with_members else ["+a", "-e"])
    world.gate.set()
    await asyncio.gather(loading, unloading)
    assert world.changes() == (["-e"] if with_members else [])


async def test_changes_in_progress_end_with_the_server_and_no_other_begins(world, caplog):
    world.gate = asyncio.Event()
    sources = {name: world.add(name) for name in "nm"}
    loading = [asyncio.ensure_future(world.order.load([source])) for source in sources.values()]
    while len(world.done) < 2:
        await asyncio.sleep(0.001)
    with caplog.at_level(logging.INFO):
        await world.order.end_loads()
    assert [each.getMessage() for each in caplog.records] == ["Ending the loads and unloads in progress: 'm', 'n'"]
    assert not any(map(world.order.is_changing, sources))
    world.changes()
    for change in (
        *loading,
        world.order.load([sources["m"]]),
        world.order.unload("m", with_members=False),
    ):
        with pytest.raises(NotReadyError, match="Server exiting"):
            await change
    assert world.changes() == []
    caplog.clear()
    with caplog.at_level(logging.INFO):
        await world.order.end_loads()
    assert caplog.records == []


async def test_waking_and_scaling_count_as_changes(world):
    await world.order.wake("m")
    await world.order.scale("m", "version", 3)
    assert world.done == ["woke m", "scaled m to 3 with version"]
    assert not world.order.is_changing("m")


# -- what is forgotten


async def test_models_that_no_repository_has_are_forgotten_unless_they_serve(world):
    for name in ("stored", "serving", "gone"):
        world.add(name, after("x"))
        await world.order.load([ModelSource(files=world.models[name])])
    for name in ("stored", "gone"):
        await world.order.unload(name, with_members=False)
    world.order.forget_removed({"stored"})
    assert [model.key for model in world.registry] == ["stored", "serving"]
    assert set(world.after) == {"stored", "serving"}


async def test_a_model_that_is_being_loaded_is_not_forgotten(world):
    world.gate = asyncio.Event()
    world.registry.record("m").reason = "it failed before"
    loading = asyncio.ensure_future(world.order.load([world.add("m")]))
    while not world.done:
        await asyncio.sleep(0.001)
    world.order.forget_removed(())
    assert world.registry.known("m") is not None
    world.gate.set()
    await loading


def test_ensembles_are_stopped_before_their_members_within_one_time(world):
    clock = Clock()

    world.needs["e"] = frozenset({"a", "b"})
    world.serve("a", "b", "e")

    async def stop() -> list[float]:
        versions = {model.key: model.serving()[0] for model in world.registry}
        await world.order.stop(3)
        return [versions[name].timeouts[0] for name in "eab"]

    times = clock.run(stop())
    assert times[0] == 3
    assert times[1:] == [1, 1]
    assert world.done[:2] == ["stop e", "e stopped"]
    assert set(world.done[2:4]) == {"stop a", "stop b"}
    assert world.done[-1] == "all unloaded"


def test_the_time_to_stop_does_not_become_negative(world):
    clock = Clock()
    world.serve("a")
    world.needs["e"] = frozenset({"a"})
    world.serve("e")

    async def stop() -> float:
        served = world.registry.record("a").serving()[0]
        await world.order.stop(1)
        return served.timeouts[0]

    assert clock.run(stop()) == 0


async def test_unloads_of_models_that_do_not_exist_leave_nothing_behind(world):
    """Any client may send them, with any name."""

    def lock_count() -> int:
        return sum(isinstance(each, asyncio.Lock) for each in gc.get_objects())

    before = lock_count()
    for number in range(100):
        await world.order.unload(f"none-{number}", with_members=True)
    assert lock_count() <= before


async def test_an_unload_waits_for_the_one_before(world):
    world.needs["model"] = frozenset()
    first = asyncio.ensure_future(world.order.unload("model", with_members=True))
    await turns(2)
    assert world.order.is_changing("model")
    await world.order.unload("model", with_members=True)
    assert first.done()
