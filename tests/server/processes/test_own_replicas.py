"""The replicas of a process: which requests stay, what other processes can see of them, and the coordinator's orders."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from fakes.clock import Clock, turns
from server.processes.pair import request
from support.waiting import until_async

from naiad.config.model import model_config_pb2 as pb
from naiad.core.errors import NotReadyError
from naiad.engine.lifecycle.restart import RestartPolicy
from naiad.engine.open_request import OpenRequest
from naiad.engine.serving.replicas import ReplicaCounts, ReplicaOrder, ReplicaReport
from naiad.engine.statistics.counters import Statistics
from naiad.guests.memory.link_memory import LinkMemory
from naiad.server.processes import own_replicas
from naiad.server.processes.load_table import LoadTable
from naiad.server.processes.own_replicas import OwnReplica, OwnReplicas
from naiad.server.processes.request_session import GoneError

LOAD = 7
ENSEMBLE = 8


class Version:
    """What a replica needs of a loaded version, which was made of *given*; a test says what it can take."""

    on_change: Callable[[], None]

    def __init__(self, given: tuple[Any, ...] = ()) -> None:
        self.given = given
        self.log = Log()
        self.number = LOAD
        self.serving_count = 2
        self.reason = ""
        self.in_flight = 0
        self.takes = self.idle = True
        self.submitted: list[OpenRequest] = []
        self.config = SimpleNamespace(name="m", decoupled=False)
        self.totals = Statistics()
        self.instances: list[Any] = []
        self.typical = 5
        self.stopped: list[float] = []
        self.maintained = 0

    async def start(self) -> None:
        pass

    def observe_load(self, note: Callable[[int], None]) -> None:
        self.note = note

    def takes_at_once(self) -> bool:
        return self.takes

    def has_idle(self) -> bool:
        return self.idle

    def accept(self, opened: OpenRequest) -> None:
        self.submitted.append(opened)
        self.in_flight += 1

    def reserve_input(self, size: int, ahead: int) -> memoryview:
        return memoryview(bytes(size + ahead))

    def counts(self) -> ReplicaCounts:
        return ReplicaCounts(self.totals)

    def statuses(self) -> list[Any]:
        return ["status"]

    def maintain(self) -> None:
        self.maintained += 1

    async def finish_requests(self, timeout: float) -> None:
        self.stopped.append(-timeout)

    async def stop(self, timeout: float) -> None:
        self.stopped.append(timeout)


class Log:
    """Stands in for `VersionLog`: keeps what logs in its place."""

    def pass_on(self, *passed_on: Callable[..., None]) -> None:
        self.passed_on = passed_on


class Tables:
    """The table as three processes see it; the replica is in process 1."""

    def __init__(self) -> None:
        first = LoadTable.create(3)
        self.of = [first, *(LoadTable(first.descriptor, 3, number) for number in (1, 2))]
        self.row = first.take_row()

    def close(self) -> None:
        self.of[0].close()


@pytest.fixture
def tables() -> Any:
    made = Tables()
    yield made
    made.close()


def replica_of(tables: Tables) -> tuple[OwnReplica, Any]:
    version: Any = Version()
    return OwnReplica(version, version, tables.row, tables.of[1]), version


def test_other_processes_see_a_replica_while_it_takes_requests(tables: Tables) -> None:
    replica, version = replica_of(tables)
    assert replica.better_process() == 0, "it is not open"
    assert tables.of[0].serving_processes(tables.row) == []
    replica.open()
    assert replica.is_open
    assert tables.of[0].serving_processes(tables.row) == [1]
    version.note(3)
    assert tables.of[2].requests_elsewhere(tables.row) == 3
    version.serving_count = 0
    replica.on_change()
    assert tables.of[0].serving_processes(tables.row) == []
    version.serving_count = 1
    replica.close()
    assert not replica.is_open
    assert tables.of[0].serving_processes(tables.row) == []


def test_a_request_stays_if_it_is_taken_at_once_or_nobody_has_less_to_do(tables: Tables) -> None:
    replica, version = replica_of(tables)
    replica.open()
    tables.of[2].note_instances(tables.row, 2)
    assert replica.better_process() is None
    version.takes, version.in_flight = False, 20
    assert replica.better_process() == 2
    tables.of[2].note_requests(tables.row, 20)
    assert replica.better_process() is None
    version.reason = "its guests restart"
    assert replica.better_process() == 2
    tables.of[2].note_instances(tables.row, 0)
    assert replica.better_process() == 0, "the coordinator knows why"
    version.reason = ""
    replica.close()
    assert replica.better_process() == 0


def test_requests_and_calls_are_accepted_and_noted(tables: Tables) -> None:
    replica, version = replica_of(tables)
    replica.open()
    replica.accept(OpenRequest(request("m"), None))
    assert tables.of[0].requests_elsewhere(tables.row) == 1
    for _ in range(2):
        replica.accept(OpenRequest(request("m"), None, True))
    assert tables.of[0].requests_elsewhere(tables.row) == 3
    version.idle = False
    with pytest.raises(GoneError, match="no instance of model 'm' is idle any more; send the call again"):
        replica.accept(OpenRequest(request("m"), None, True))
    assert len(version.submitted) == 3
    assert replica.reserve_input(4, 2) == bytes(6)


def test_calls_of_guests_here_are_taken_by_an_idle_instance_of_a_replica_that_serves(tables: Tables) -> None:
    replica, version = replica_of(tables)
    assert not replica.takes_call(is_decoupled=False), "it is not open"
    replica.open()
    assert replica.takes_call(is_decoupled=False)
    version.config.decoupled = True
    assert not replica.takes_call(is_decoupled=False), "the coordinator has the error"
    assert replica.takes_call(is_decoupled=True)
    version.idle = False
    assert not replica.takes_call(is_decoupled=True)
    version.idle, version.reason = True, "its guests restart"
    assert not replica.takes_call(is_decoupled=True)


def test_a_replica_reports_its_counts_and_whether_its_model_says_when_it_is_ready(tables: Tables) -> None:
    replica, version = replica_of(tables)
    found = replica.report()
    assert (found.counts.statistics, found.statuses) == (version.totals, ["status"])
    assert (found.is_asked, found.typical) == (False, 5)
    version.instances = [
        SimpleNamespace(worker=None),
        SimpleNamespace(worker=SimpleNamespace(readiness=None)),
    ]
    assert not replica.report().is_asked
    version.instances.append(SimpleNamespace(worker=SimpleNamespace(readiness="asked")))
    assert replica.report().is_asked


class Replicas:
    """The replicas of process 1, with what they send to the coordinator."""

    def __init__(self, tables: Tables) -> None:
        self.sent: list[tuple[Any, ...]] = []
        self.opened: list[int] = []
        self.on_replica_opened = self.opened.append
        self.on_replica_closed: Callable[[], None] = lambda: None
        self.memory = LinkMemory()
        self.own = OwnReplicas(self)  # type: ignore[arg-type]
        self.own.use_table(os.dup(tables.of[0].descriptor), 3, 1)
        self.replica, self.version = replica_of(tables)
        self._tables = tables

    def notify(self, *sent: Any) -> None:
        self.sent.append(sent)

    def add(self) -> None:
        self.own._replicas[LOAD] = self.replica
        self.replica.open()

    def add_ensemble(self) -> Any:
        """Have it execute an ensemble; what stands in for that."""
        execution: Any = Version()
        ensemble = self.own._replicas[ENSEMBLE] = OwnReplica(execution, None, self._tables.row, self._tables.of[1])
        ensemble.open()
        return execution

    async def order(self, method: str, *arguments: Any) -> Any:
        return await self.own.services[method](*arguments)

    def notices(self, name: str) -> list[Any]:
        return [arguments for noticed, *arguments in self.sent if noticed == name]


def run(tables: Tables, test: Callable[[Replicas], Awaitable[None]]) -> None:
    async def with_replicas() -> None:
        replicas = Replicas(tables)
        try:
            await asyncio.wait_for(test(replicas), 30)
        finally:
            await replicas.own.stop(0)

    asyncio.run(with_replicas())


def test_orders_about_replicas_that_have_ended_change_nothing(tables: Tables) -> None:
    async def test(replicas: Replicas) -> None:
        assert await replicas.order("check", LOAD) is True
        assert await replicas.order("stop_replica", LOAD, 1.0) is None

    run(tables, test)


@pytest.mark.parametrize("is_ready", [False, True])
def test_a_model_is_asked_whether_it_is_ready(tables: Tables, monkeypatch: pytest.MonkeyPatch, is_ready: bool) -> None:
    asked: list[Any] = []

    async def are_ready(versions: list[Any]) -> bool:
        asked.extend(versions)
        return is_ready

    monkeypatch.setattr(own_replicas, "are_ready", are_ready)

    async def test(replicas: Replicas) -> None:
        replicas.add()
        replicas.add_ensemble()
        assert await replicas.order("check", LOAD) is is_ready
        assert await replicas.order("check", ENSEMBLE) is True
        assert asked == [replicas.version]

    run(tables, test)


def test_a_replica_that_starts_logs_where_the_coordinator_does_and_is_reported_when_it_changes(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []
    monkeypatch.setattr(own_replicas, "ModelVersion", lambda *given, **_: made.append(Version(given)) or made[-1])
    config = pb.ModelConfig(name="m").SerializeToString()
    order = ReplicaOrder(LOAD, 1, "", config, (), RestartPolicy(), (), tables.row)

    async def test(replicas: Replicas) -> None:
        measured: list[Any] = []
        replicas.own._measure = lambda *given: measured.append(given)  # type: ignore[method-assign]
        report = await replicas.order("start", order)
        (version,) = made
        assert version.given[0].name == "m"
        assert version.given[4] is replicas.own._relay
        assert measured == [(version.totals, order, version.given[0])]
        assert report.statuses == ["status"]
        assert replicas.opened == [LOAD]
        assert not replicas.own._starts
        assert tables.of[0].serving_processes(tables.row) == [1]
        record, write_line = version.log.passed_on
        record("a record")
        write_line("a line")
        assert replicas.sent == [("log_record", LOAD, "a record"), ("log_output", "a line")]
        version.serving_count = 0
        version.on_change()
        assert tables.of[0].serving_processes(tables.row) == []
        assert len(replicas.notices("reports")) == 1
        for shared in list(replicas.memory.inputs.values()):
            shared.close()

    run(tables, test)


def test_a_process_ends_its_ensembles_and_then_in_the_time_that_is_left_its_models(tables: Tables) -> None:
    clock = Clock()

    async def check(*, taken: float, left: float) -> None:
        replicas = Replicas(tables)
        options: Any = None
        replicas.own.begin(options)
        replicas.add()
        execution = replicas.add_ensemble()

        async def stop(timeout: float) -> None:
            execution.stopped.append(timeout)
            clock.advance(taken)

        replicas.own._replicas[ENSEMBLE].stop = stop
        await replicas.own.stop(0.5)
        assert (execution.stopped, replicas.version.stopped) == ([0.5], [left])
        await turns()
        assert not replicas.own._stops
        sent = len(replicas.sent)
        await asyncio.sleep(5 * own_replicas._REPORT_SECONDS)
        assert len(replicas.sent) == sent, "nothing is reported any more"

    clock.run(check(taken=0.125, left=0.375))
    clock.run(check(taken=2.0, left=0.0))


def test_a_process_reports_what_its_guests_wait_for_once_what_was_sent_before_has_arrived(tables: Tables) -> None:
    async def check() -> None:
        reported: list[bool] = []
        replicas = Replicas(tables)
        replicas.own._relay.report_waits = lambda: reported.append(True)  # type: ignore[method-assign]
        reporting = asyncio.ensure_future(replicas.order("report_waits"))
        await turns()
        assert reported == []
        await reporting
        assert reported == [True]

    Clock().run(check())


def test_a_replica_ends_once_and_the_coordinator_gets_its_last_counts(tables: Tables) -> None:
    async def test(replicas: Replicas) -> None:
        closed: list[bool] = []
        replicas.on_replica_closed = lambda: closed.append(replicas.replica.is_open)
        replicas.add()
        replicas.version.in_flight = 3
        assert replicas.own.request_count == 3
        assert replicas.own.find(LOAD) is replicas.replica
        await asyncio.gather(replicas.own._stop(LOAD, 2.0), replicas.own._stop(LOAD, 2.0))
        assert replicas.version.stopped == [2.0]
        assert closed == [False], "nothing is sent here any more"
        assert len(replicas.notices("reports")) == 1
        assert replicas.opened == [LOAD]
        assert replicas.own.find(LOAD) is None

    run(tables, test)


def test_an_unload_ends_a_start(tables: Tables) -> None:
    async def test(replicas: Replicas) -> None:
        async def start(_: object) -> None:
            await asyncio.sleep(1000)

        replicas.own._start_version = start  # type: ignore[method-assign,assignment]
        order: Any = SimpleNamespace(number=LOAD, steps=())
        starting = asyncio.ensure_future(replicas.order("start", order))
        await until_async(lambda: replicas.own._starts)
        await replicas.own._stop(LOAD, 0)
        with pytest.raises(NotReadyError, match="the model is being unloaded"):
            await starting

    run(tables, test)


def test_an_ensemble_ends_with_its_last_counts(tables: Tables) -> None:
    async def test(replicas: Replicas) -> None:
        execution: Any = Version()
        ensemble = replicas.own._replicas[LOAD] = OwnReplica(execution, None, tables.row, tables.of[1])
        assert ensemble.better_process() == 0
        ensemble.open()
        assert ensemble.better_process() is None
        assert ensemble.reserve_input(4, 0) is None
        ensemble.accept(OpenRequest(request("m"), None))
        assert tables.of[0].requests_elsewhere(tables.row) == 1
        assert replicas.own.request_count == 1
        assert replicas.own.find(LOAD) is ensemble
        execution.in_flight = 0
        execution.note(0)
        assert tables.of[0].requests_elsewhere(tables.row) == 0
        assert ensemble.report() == ReplicaReport(ReplicaCounts(execution.totals), (), is_asked=False, typical=0)
        await replicas.own._stop(LOAD, 3.0)
        assert execution.stopped == [3.0]
        assert ensemble.better_process() == 0
        assert replicas.own.find(LOAD) is None
        assert replicas.opened == [LOAD]
        assert len(replicas.notices("reports")) == 1

    run(tables, test)


def test_counts_are_reported_every_now_and_then_if_they_have_changed(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_replicas, "_REPORT_SECONDS", 0.001)

    async def test(replicas: Replicas) -> None:
        options: Any = None
        replicas.own.begin(options)
        await until_async(lambda: replicas.notices("reports"))
        replicas.add()
        await until_async(lambda: len(replicas.notices("reports")) == 2)
        ((counts,),) = [replicas.notices("reports")[1]]
        assert (list(counts.replicas), counts.received) == ([LOAD], 0)
        await asyncio.sleep(0.02)
        assert len(replicas.notices("reports")) == 2
        replicas.version.in_flight += 1
        await until_async(lambda: len(replicas.notices("reports")) == 3)
        replicas.own.received = 9
        assert replicas.own.services["report"]().received == 9

    run(tables, test)


def test_a_server_that_exits_has_its_replicas_take_no_requests(tables: Tables) -> None:
    async def test(replicas: Replicas) -> None:
        replicas.add()
        replicas.add_ensemble()
        ensemble = replicas.own._replicas[ENSEMBLE]
        assert replicas.own.find_target("m", -1, LOAD) is replicas.version
        assert not replicas.own.is_exiting
        replicas.own.services["exiting"]()
        assert replicas.own.is_exiting
        assert not replicas.replica.is_open
        assert not ensemble.is_open
        with pytest.raises(GoneError, match="model 'm' was unloaded while the request was received; send it again"):
            replicas.own.find_target("m", -1, LOAD)
        await replicas.own.finish_requests(4.0)
        assert replicas.version.stopped == [-4.0]

    run(tables, test)


def test_requests_of_other_processes_go_to_the_load_that_was_meant(tables: Tables) -> None:
    async def test(replicas: Replicas) -> None:
        replicas.add()
        assert replicas.own.admitted_target(request("m"), LOAD) is replicas.replica
        with pytest.raises(GoneError):
            replicas.own.admitted_target(request("m"), LOAD + 1)

    run(tables, test)


def test_a_version_elsewhere_gets_requests_where_it_has_least_to_do(tables: Tables) -> None:
    async def test(replicas: Replicas) -> None:
        own = replicas.own
        assert own.process_of(None) == own.process_of(tables.row) == 0
        tables.of[2].note_instances(tables.row, 1)
        assert own.process_of(tables.row) == 2
        own.note_sent(tables.row, 2)
        assert tables.of[0].requests_elsewhere(tables.row) == 1
        own._table = None
        own.note_sent(tables.row, 2)
        assert own.process_of(tables.row) == 0
        replicas.add()
        assert tables.of[0].serving_processes(tables.row) == [1, 2]
        replicas.version.in_flight, replicas.version.serving_count = 4, 0
        own.maintain()
        assert replicas.version.maintained == 1
        assert tables.of[2].requests_elsewhere(tables.row) == 4
        assert tables.of[0].serving_processes(tables.row) == [2]

    run(tables, test)


def test_a_version_measures_what_the_options_ask_for(tables: Tables) -> None:
    async def test(replicas: Replicas) -> None:
        measured: list[Any] = []
        totals: Any = SimpleNamespace(
            measure=lambda *given: measured.append(given), count_latencies=lambda *given: measured.append(given)
        )
        order: Any = SimpleNamespace(namespace="a repository")
        config: Any = "config"
        for has_page, expected in ((False, [("metrics", "config")]), (True, [("metrics", "config"), ("config",)])):
            measured.clear()
            http = SimpleNamespace(ui=has_page)
            replicas.own.options = SimpleNamespace(metrics=SimpleNamespace(config="metrics"), http=http)  # type: ignore[assignment]
            replicas.own._measure(totals, order, config)
            assert measured == expected
            assert totals.namespace == "a repository"

    run(tables, test)
