"""Loads in a server of several processes: what each of them is told to run, and what becomes of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

import pytest
from engine.loading.host import UNNAMED, Host, instances, parameter

from naiad.config.model.model_config import freeze
from naiad.core.errors import ModelError
from naiad.engine.lifecycle.process_placement import LoadFacts, place_instances
from naiad.engine.loading import loader
from naiad.engine.loading.loader import shares_of
from naiad.engine.serving.replicas import ReplicaOrder
from naiad.guests.launch import LaunchSpec
from naiad.guests.memory.link_memory import LinkMemory


class Replicas:
    """The instances of a version in other processes, which do what they are told.

    Attributes:
        told: What they were told.
    """

    in_flight, typical, row = 0, 0, 3

    def __init__(self, maker: Processes, order: ReplicaOrder, shares: Mapping[int, Sequence[LaunchSpec]]) -> None:
        self.order, self.shares, self._maker = order, shares, maker
        self.told: list[Any] = []
        maker.made.append(self)

    @property
    def places(self) -> dict[str, int]:
        return {spec.name: process for process, share in self.shares.items() for spec in share}

    @property
    def processes(self) -> list[int]:
        return list(self.shares)

    async def start(self) -> None:
        self.told.append("start")
        await asyncio.sleep(0)
        if self._maker.failures:
            raise self._maker.failures.pop(0)

    async def stop(self, timeout: float) -> None:
        self.told.append(("stop", timeout))

    def is_serving(self) -> bool:
        return True

    def are_all_serving(self) -> bool:
        return True

    def statuses(self) -> list[Any]:
        return []

    def idle_process(self) -> int | None:
        return None

    def least_loaded(self, in_flight: int, count: int) -> int | None:
        return None

    def note_load(self, in_flight: int) -> None:
        pass

    def note_instances(self, count: int) -> None:
        pass


class Processes:
    """Three processes, the coordinator included.

    Attributes:
        made: The replicas of all versions.
        failures: Why the next ones cannot start.
    """

    processes = 3

    def __init__(self) -> None:
        self.made: list[Replicas] = []
        self.failures: list[Exception] = []

    def make(self, order: ReplicaOrder, model: str, specs: Mapping[int, Sequence[LaunchSpec]]) -> Replicas:
        assert model in {"m", "n", "e"}
        return Replicas(self, order, specs)

    def places(self) -> list[dict[str, int]]:
        return [each.places for each in self.made]


@pytest.fixture
def processes() -> Processes:
    return Processes()


@pytest.fixture
def run_coroutine(host: Host, processes: Processes) -> Callable[[Coroutine[Any, Any, None]], None]:
    return lambda test: host.run(lambda: test, replicas=processes)


async def test_the_instances_of_a_model_are_spread_over_the_processes(host, processes, caplog):
    host.add("m", more=instances(4))
    with caplog.at_level(logging.INFO):
        await host.load()
    (replicas,) = processes.made
    assert replicas.places == {"m_0_1": 1, "m_0_2": 2}
    assert [guest.spec.name for guest in host.guests] == ["m_0_0", "m_0_3"]
    served = host.version()
    order = replicas.order
    assert (order.number, order.version, order.namespace) == (served.number, 1, "")
    assert (order.specs, order.steps, order.config) == ((), (), served.config.message.SerializeToString())
    assert [each.getMessage() for each in caplog.records][1].endswith("because its instances share nothing")
    assert len(host.leases) == 1
    assert served.replicas is replicas
    assert served.log.advise("ModuleNotFoundError: No module named 'nosuch'")
    host.add("m", more=instances(3))
    await host.load()
    await asyncio.sleep(1)
    assert host.version() is not served, "it is loaded again"
    assert replicas.told == ["start", ("stop", 30)]
    again = processes.made[1]
    assert again.places == {"m_0_1": 1, "m_0_2": 2}
    await host.engine.unload("m")
    await asyncio.sleep(1)
    assert again.told == ["start", ("stop", 30)]


async def test_nothing_is_left_in_any_process_if_one_cannot_start(host, processes):
    host.add("m", more=instances(3))
    processes.failures = [ModelError("no luck")]
    assert "no luck" in (await host.fail()).message
    assert [each.told for each in processes.made] == [["start", ("stop", 0)]]
    processes.made.clear()
    host.assert_nothing_is_left()


STEP = 'step { model_name: "m" model_version: -1 input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "OUT" } }'
ENSEMBLE = UNNAMED.replace('backend: "python"', 'platform: "ensemble"') + f"ensemble_scheduling {{ {STEP} }}"


@pytest.mark.parametrize(("count", "elsewhere"), [(3, [1, 2]), (1, [])])
async def test_an_ensemble_runs_where_all_its_models_are(host, processes, count, elsewhere, caplog):
    host.add("e", ENSEMBLE)
    host.add("m", more=instances(count))
    with caplog.at_level(logging.INFO):
        await host.load("e")
    made = [each for each in processes.made if each.order.steps]
    assert [each.processes for each in made] == ([elsewhere] if elsewhere else [])
    assert any(each.getMessage().startswith("'e': its requests are executed in") for each in caplog.records)
    for each in made:
        order, served = each.order, host.version("e")
        assert (order.number, order.version, order.namespace, order.specs) == (served.number, 1, "", ())
        assert order.config == served.config.message.SerializeToString()
        assert each.told == ["start"]
    if made:
        processes.failures = [ModelError("no luck")]
        assert "no luck" in (await host.fail("e")).message
        assert processes.made[-1].told == ["start", ("stop", 0)]
    if count == 1:
        assert host.guests[0].spec.name == "m_0_0"


@pytest.mark.parametrize(
    ("more", "settings", "expected"),
    [
        ("", {}, {}),
        (parameter("PREWARM", "json"), {}, {"is_forked": True}),
        ("", {"debugged": ("m", "pdb")}, {"is_debugged": True}),
        ("", {"debugged": ("n", "pdb")}, {}),
        ("", {"is_caching": True}, {"is_cached": True}),
        (parameter("demand", "true"), {}, {"is_on_demand": True}),
    ],
)
def test_what_a_load_knows_of_a_model_decides_where_its_instances_are(
    host: Host, processes: Processes, monkeypatch: pytest.MonkeyPatch, more: str, settings: Any, expected: Any
):
    seen: list[tuple[LoadFacts, int]] = []

    def place(config: Any, facts: LoadFacts, processes: int) -> Any:
        seen.append((facts, processes))
        return place_instances(config, facts, processes)

    monkeypatch.setattr(loader, "place_instances", place)
    host.add("m", more=more)

    async def check() -> None:
        await host.load()
        if "is_on_demand" in expected:
            host.ask()
            await asyncio.sleep(1)
        assert seen == [(LoadFacts(**expected), 3)]

    host.run(check, replicas=processes, **settings)


def test_the_inputs_of_own_instances_are_shared_with_the_other_processes(host, processes):
    memory = LinkMemory(3)
    host.add("m", more=instances(3))

    async def check() -> None:
        await host.load()
        (guest,) = host.guests
        assert guest.spec.link_memory is memory
        assert host.version().shared_inputs is guest.spec.inputs is not None
        shares = processes.made[0].shares
        assert all(spec.link_memory is None for share in shares.values() for spec in share)
        await host.engine.unload("m")
        await asyncio.sleep(6)
        assert guest.spec.inputs.is_closed

    host.run(check, replicas=processes, link_memory=memory)


def test_instances_that_share_a_guest_are_in_the_process_of_the_first(host):
    placement = place_instances(freeze(loader.pb.ModelConfig(name="m")), LoadFacts(), 1)
    assert shares_of([], placement) == {0: []}
    spec: Any = object()
    assert shares_of([spec], placement._replace(processes=(0, 0))) == {0: [spec]}
    assert shares_of([spec, spec], placement._replace(processes=(2, 0))) == {2: [spec], 0: [spec]}
