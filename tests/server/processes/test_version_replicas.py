"""A version's replicas: what each process is told, also if it exits meanwhile."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from fakes.guests import launch_spec
from support.waiting import until_async

from naiad.core.errors import ModelError
from naiad.engine.lifecycle.restart import RestartPolicy
from naiad.engine.serving.replicas import ReplicaCounts, ReplicaOrder, ReplicaReport
from naiad.engine.statistics.counters import Statistics
from naiad.guests.launch import LaunchSpec
from naiad.protocol.metadata import InstanceStatus
from naiad.server.processes import replicas as replicas_module
from naiad.server.processes.load_table import LoadTable
from naiad.server.processes.replicas import VersionReplicas, _ProcessEndedError

LOAD = 9
ORDER = ReplicaOrder(LOAD, 1, "", b"before", (), RestartPolicy(), ())


def report(successes: int = 0, *names: str) -> ReplicaReport:
    counted = Statistics()
    for _ in range(successes):
        counted.on_success(1, 0, 0, 0, 0, 0)
    statuses = [
        InstanceStatus(
            model="m",
            namespace="",
            version="1",
            name=name,
            pid=5,
            state="ready",
            restarts={},
            input_byte_size=0,
            borrowed_outputs=0,
        )
        for name in names
    ]
    return ReplicaReport(ReplicaCounts(counted), statuses, is_asked=False, typical=0)


class Processes:
    """The processes of a server, which do what they are told at once.

    Attributes:
        told: Number, order and, of a start, the names of the instances.
        answers: What an order to a process is answered with in place of the usual, once; an error is raised.
        held: Orders that are carried out once they are taken out of this.
    """

    def __init__(self) -> None:
        self.table = LoadTable.create(4)
        self.told: list[tuple[Any, ...]] = []
        self.answers: dict[tuple[int, str], Any] = {}
        self.held: set[tuple[int, str]] = set()
        self.services: Any = SimpleNamespace()

    async def order(self, number: int, method: str, *arguments: Any) -> Any:
        specs = arguments[0].specs if method == "start" else ()
        self.told.append((number, method, *(spec.name for spec in specs)))
        await until_async(lambda: (number, method) not in self.held)
        answer = self.answers.pop((number, method), report())
        if isinstance(answer, Exception):
            raise answer
        return answer

    def forget(self, number: int, row: int) -> None:
        self.told.append((0, "forget"))

    def take(self) -> list[tuple[Any, ...]]:
        told, self.told = self.told, []
        return sorted(told, key=str)


def specs(*names: str) -> list[LaunchSpec]:
    return [launch_spec(name) for name in names]


async def started(processes: Processes) -> VersionReplicas:
    replicas = VersionReplicas(processes, ORDER, "m", {1: specs("m_1"), 2: specs("m_2")})  # type: ignore[arg-type]
    await replicas.start()
    processes.take()
    return replicas


def run(test: Callable[[Processes, VersionReplicas], Awaitable[None]]) -> None:
    async def with_replicas() -> None:
        processes = Processes()
        try:
            await asyncio.wait_for(test(processes, await started(processes)), 30)
        finally:
            processes.table.close()

    asyncio.run(with_replicas())


def test_the_next_process_starts_the_replica_of_one_that_has_exited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas_module, "_FIRST_PAUSE", 0.0)

    async def test(processes: Processes, replicas: VersionReplicas) -> None:
        replicas.on_process_end(1)
        assert [status.state for status in replicas.statuses()] == ["restarting"]
        assert not replicas.are_all_serving()
        processes.answers[1, "start"] = ModelError("no luck at first")
        replicas.on_process(1)
        await until_async(lambda: len(replicas.statuses()) == 0)
        assert processes.take() == [(1, "start", "m_1")] * 2

    run(test)


def test_a_process_that_exits_again_is_followed_by_one_more() -> None:
    async def test(processes: Processes, replicas: VersionReplicas) -> None:
        replicas.on_process_end(2)
        processes.answers[2, "start"] = _ProcessEndedError("it has exited")
        replicas.on_process(2)
        await until_async(lambda: processes.told and replicas._replicas[2].starting is None)
        assert processes.take() == [(2, "start", "m_2")]
        replicas.on_process(2)
        await until_async(replicas.are_all_serving)
        assert processes.take() == [(2, "start", "m_2")]

    run(test)


def test_processes_are_asked_in_turn_for_an_idle_instance() -> None:
    async def test(processes: Processes, replicas: VersionReplicas) -> None:
        assert replicas.process_to_ask() is None
        tables = [LoadTable(os.dup(processes.table.descriptor), 4, number) for number in (1, 2, 3)]
        replicas.note_instances(5)
        for number in (1, 3):
            tables[number - 1].note_instances(replicas.row, 2)
        assert [replicas.process_to_ask() for _ in range(3)] == [1, 3, 1]
        tables[2].note_instances(replicas.row, 0)
        assert [replicas.process_to_ask() for _ in range(2)] == [1, 1]
        for table in tables:
            table.close()

    run(test)


def successes(replicas: VersionReplicas) -> int:
    total = Statistics().with_counts_of(each.statistics for each in replicas.counts())
    return total.value("m", "1", 0, (), 0).success.count


def test_what_a_replica_has_counted_stays_when_its_process_exits() -> None:
    async def test(processes: Processes, replicas: VersionReplicas) -> None:
        replicas.on_report(1, report(5, "m_1"))
        replicas.on_report(2, report(7, "m_2"))
        replicas.on_process_end(2)
        assert successes(replicas) == 12
        replicas.on_process(2)
        await until_async(lambda: (2, "start", "m_2") in processes.told)
        replicas.on_report(2, report(1, "m_2"))
        assert successes(replicas) == 13
        replicas.on_process_end(2)
        assert successes(replicas) == 13
        (status,) = (each for each in replicas.statuses() if each.name == "m_2")
        assert status.restarts == {"process exit": 2}

    run(test)


def test_an_unload_ends_a_replica_that_is_being_started_again() -> None:
    async def test(processes: Processes, replicas: VersionReplicas) -> None:
        replicas.on_process_end(1)
        processes.held.add((1, "start"))
        replicas.on_process(1)
        await until_async(lambda: processes.told)
        processes.take()
        await replicas.stop(5)
        assert processes.take() == [(0, "forget"), (1, "stop"), (2, "stop")]
        await until_async(lambda: replicas._replicas[1].starting is None)
        replicas.on_process(1)
        await asyncio.sleep(0)
        assert processes.take() == []

    run(test)
