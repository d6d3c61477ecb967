"""A version's branches while its instances change: what each process is told, also if it exits meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from fakes.guests import launch_spec
from support.waiting import until_async

from naiad.core.errors import ModelError, NotReadyError
from naiad.engine.lifecycle.restart import RestartPolicy
from naiad.engine.serving.branches import BranchCounts, BranchOrder, BranchReport
from naiad.engine.statistics.counters import Statistics
from naiad.guests.launch import LaunchSpec
from naiad.protocol.metadata import InstanceStatus
from naiad.server.processes.branches import VersionBranches, _ProcessEndedError
from naiad.server.processes.load_board import LoadBoard

LOAD = 9
ORDER = BranchOrder(LOAD, 1, "", b"before", (), RestartPolicy(), ())


def report(successes: int = 0, *names: str) -> BranchReport:
    counted = Statistics()
    for _ in range(successes):
        counted.on_success(1, 0, 0, 0, 0, 0)
    statuses = [InstanceStatus("m", "", "1", name, 5, "ready", {}, 0, 0) for name in names]
    return BranchReport(BranchCounts(counted), statuses, is_asked=False, typical=0)


class Processes:
    """The processes of a server, which do what they are told at once.

    Attributes:
        told: Number, order and the rest that matters: names of instances, or number of a change.
        answers: What an order to a process is answered with in place of the usual, once; an error is raised.
        held: Orders that are carried out once they are taken out of this.
    """

    def __init__(self) -> None:
        self.board = LoadBoard.create(4)
        self.told: list[tuple[Any, ...]] = []
        self.answers: dict[tuple[int, str], Any] = {}
        self.held: set[tuple[int, str]] = set()
        self.started: dict[int, tuple[str, ...]] = {}
        self.services: Any = SimpleNamespace()

    async def order(self, number: int, method: str, *arguments: Any) -> Any:
        if method in {"change", "start"}:
            (order,) = arguments
            names = tuple(spec.name for spec in order.specs)
            self.told.append((number, method, order.config, *names))
            self.started[number] = names
        else:
            self.told.append((number, method))
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


async def started(processes: Processes) -> VersionBranches:
    branches = VersionBranches(processes, ORDER, "m", {1: specs("m_1"), 2: specs("m_2")})  # type: ignore[arg-type]
    await branches.start()
    processes.take()
    return branches


def run(test: Callable[[Processes, VersionBranches], Awaitable[None]]) -> None:
    async def with_branches() -> None:
        processes = Processes()
        try:
            await asyncio.wait_for(test(processes, await started(processes)), 30)
        finally:
            processes.board.close()

    asyncio.run(with_branches())


def test_all_processes_start_new_instances_before_any_switches() -> None:
    async def test(processes: Processes, branches: VersionBranches) -> None:
        await branches.add_instances(b"after", {1: specs("m_1", "m_4"), 3: specs("m_3")})
        assert processes.take() == [(1, "change", b"after", "m_1", "m_4"), (3, "change", b"after", "m_3")]
        assert branches.places == {"m_1": 1, "m_2": 2}
        assert branches.is_changing
        await branches.switch()
        assert processes.take() == [(1, "switch"), (2, "close"), (3, "switch")]
        assert branches.places == {"m_1": 1, "m_4": 1, "m_3": 3}
        assert branches.is_finishing_removed
        await branches.end_removed(5)
        assert processes.take() == [(1, "end"), (1, "finish"), (2, "end"), (2, "finish")]
        assert not branches.is_changing

    run(test)


def test_a_failure_is_raised_when_all_have_answered_and_undone_everywhere() -> None:
    async def test(processes: Processes, branches: VersionBranches) -> None:
        processes.answers[1, "change"] = ModelError("no more")
        with pytest.raises(ModelError, match="no more"):
            await branches.add_instances(b"after", {1: specs("m_1", "m_4"), 2: specs("m_2")})
        assert len(processes.take()) == 2
        await branches.undo()
        assert processes.take() == [(1, "undo"), (2, "undo")]
        assert branches.places == {"m_1": 1, "m_2": 2}
        assert not branches.is_changing

    run(test)


def test_a_process_that_does_not_run_gets_the_new_instances_when_the_next_one_does() -> None:
    async def test(processes: Processes, branches: VersionBranches) -> None:
        processes.answers[1, "change"] = processes.answers[1, "switch"] = _ProcessEndedError("exited")
        branches.on_process_end(1)
        await branches.add_instances(b"after", {1: specs("m_1", "m_4"), 2: specs("m_2")})
        await branches.switch()
        processes.take()
        branches.on_process(1)
        await until_async(lambda: (1, "end") in processes.told)
        assert processes.told[:2] == [(1, "change", b"after", "m_1", "m_4"), (1, "switch")]

    run(test)


def test_a_process_that_has_started_with_the_instances_as_they_were_changes_later() -> None:
    async def test(processes: Processes, branches: VersionBranches) -> None:
        branches.on_process_end(1)
        processes.held.add((1, "change"))
        branches.on_process(1)
        await until_async(lambda: processes.told)
        assert processes.take() == [(1, "change", b"before", "m_1")]
        await branches.add_instances(b"after", {1: specs("m_1", "m_4"), 2: specs("m_2")})
        assert processes.take() == [(2, "change", b"after", "m_2")], "the other one has no time for it now"
        processes.answers[1, "switch"] = None
        await branches.switch()
        assert processes.take() == [(1, "switch"), (2, "switch")]
        await branches.end_removed(5)
        processes.take()
        processes.held.clear()
        await until_async(lambda: processes.told.count((1, "end")) == 2)
        told = [each for each in processes.told if each[1] != "finish"]
        assert [each for each in told if each != (1, "end")] == [
            (1, "switch"),
            (1, "change", b"after", "m_1", "m_4"),
            (1, "switch"),
        ]
        assert told[-1] == (1, "end"), "it has started what was removed meanwhile"

    run(test)


def test_a_process_gets_no_new_branch_before_the_one_that_it_ends_has_ended() -> None:
    async def test(processes: Processes, branches: VersionBranches) -> None:
        await branches.add_instances(b"after", {1: specs("m_1")})
        await branches.switch()
        processes.held.add((2, "finish"))
        ending = asyncio.ensure_future(branches.end_removed(5))
        adding = asyncio.ensure_future(branches.add_instances(b"again", {1: specs("m_1"), 2: specs("m_2")}))
        await until_async(lambda: (2, "finish") in processes.told)
        assert [told for told in processes.take() if told[:2] == (2, "change")] == []
        assert branches.is_finishing_removed
        processes.held.clear()
        await asyncio.gather(ending, adding)
        await branches.switch()
        assert branches.places == {"m_1": 1, "m_2": 2}

    run(test)


def successes(branches: VersionBranches) -> int:
    total = Statistics().with_counts_of(each.statistics for each in branches.counts())
    return total.value("m", "1", 0, (), 0).success.count


@pytest.mark.parametrize("exits", [False, True])
def test_what_a_branch_that_ends_has_counted_stays(exits: bool) -> None:
    async def test(processes: Processes, branches: VersionBranches) -> None:
        branches.on_report(1, report(5))
        branches.on_report(2, report(7))
        await branches.add_instances(b"after", {1: specs("m_1")})
        processes.answers[1, "switch"] = report(5)
        await branches.switch()
        assert successes(branches) == 12
        branches.on_report(2, report(8))
        if exits:
            branches.on_process_end(2)
        assert successes(branches) == 13
        await branches.end_removed(5)
        assert successes(branches) == 13
        assert branches.are_all_serving()

    run(test)


def test_an_unload_ends_the_branches_that_a_change_has_begun() -> None:
    async def test(processes: Processes, branches: VersionBranches) -> None:
        processes.held.add((3, "change"))
        adding = asyncio.ensure_future(branches.add_instances(b"after", {1: specs("m_1"), 3: specs("m_3")}))
        await until_async(lambda: len(processes.told) == 2)
        processes.take()
        await branches.stop(5)
        assert processes.take() == [(0, "forget"), (1, "stop"), (2, "stop"), (3, "stop")]
        processes.held.clear()
        with pytest.raises(NotReadyError, match="model 'm' is being unloaded"):
            await adding

    run(test)


def test_a_home_that_is_lost_again_and_again_cannot_serve_until_it_runs() -> None:
    async def test(processes: Processes, _: VersionBranches) -> None:
        home = VersionBranches(processes, ORDER._replace(is_home=True), "m", {1: specs("m_1")})  # type: ignore[arg-type]
        await home.start()
        for _number in range(2):
            home.on_process_end(1)
            assert (home.reason, home.is_running) == ("", False), "its requests wait"
        home.on_failed_start(1)
        assert home.reason == (
            "process 1 of the server, which has its instance, has exited or could not start it 3 times in a row; it is "
            "started again, try again later"
        )
        home.on_process(1)
        await until_async(lambda: home.is_running)
        assert home.reason == ""
        home.on_process_end(1)
        assert home.reason == ""

    run(test)
