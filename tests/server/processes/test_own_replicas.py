"""The replicas of a process: which requests stay, what other processes can see of them, and the coordinator's orders."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from server.processes.pair import request
from support.waiting import until_async

from naiad.core.errors import NotReadyError
from naiad.engine.open_request import OpenRequest
from naiad.engine.serving.replicas import ReplicaCounts
from naiad.engine.statistics.counters import Statistics
from naiad.server.processes import own_replicas
from naiad.server.processes.load_table import LoadTable
from naiad.server.processes.messages import FrameKind, RemoteCall, error_of, unpack
from naiad.server.processes.own_ensembles import OwnEnsemble
from naiad.server.processes.own_replicas import OwnReplica, OwnReplicas
from naiad.server.processes.replica_models import ReplicaModels
from naiad.server.processes.request_session import GoneError

LOAD = 7


class Version:
    """What a replica needs of a loaded version; a test says what it can take."""

    def __init__(self) -> None:
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

    def observe_load(self, note: Callable[[int], None]) -> None:
        self.note = note

    def takes_at_once(self) -> bool:
        return self.takes

    def has_idle(self) -> bool:
        return self.idle

    def submit(self, opened: OpenRequest) -> None:
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
    return OwnReplica(version, tables.row, tables.of[1]), version


def test_other_processes_see_a_replica_while_it_takes_requests(tables: Tables) -> None:
    replica, version = replica_of(tables)
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


def test_requests_and_calls_are_submitted_and_noted(tables: Tables) -> None:
    replica, version = replica_of(tables)
    replica.open()
    replica.submit(OpenRequest(request("m"), None))
    assert tables.of[0].requests_elsewhere(tables.row) == 1
    names: list[str] = []
    call = OpenRequest(request("m"), None)
    call.worker = SimpleNamespace(spec=SimpleNamespace(name="m_0_1"))  # type: ignore[assignment]
    replica.submit_call(call, names.append)
    replica.submit_call(OpenRequest(request("m"), None), names.append)
    assert names == ["m_0_1", ""]
    assert tables.of[0].requests_elsewhere(tables.row) == 3
    version.idle = False
    with pytest.raises(GoneError, match="no instance of model 'm' is idle any more; send the call again"):
        replica.submit_call(OpenRequest(request("m"), None), names.append)
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
        SimpleNamespace(worker=SimpleNamespace(readiness="asked")),
    ]
    assert replica.report().is_asked


class Replicas:
    """The replicas of process 1, with what they send to the coordinator."""

    def __init__(self, tables: Tables) -> None:
        self.sent: list[tuple[int, Any]] = []
        self.opened: list[int] = []
        routes: Any = None
        self.own = OwnReplicas(self._send, self.opened.append, routes)
        self.own._table = tables.of[1]
        self.replica, self.version = replica_of(tables)

    def _send(self, data: bytes) -> None:
        self.sent.append((data[4], unpack(data[8:])))

    def add(self) -> None:
        self.own._replicas[LOAD] = self.replica
        self.replica.open()

    async def order(self, method: str, *arguments: Any) -> Any:
        before = len(self.sent)
        self.own.on_order(RemoteCall(before + 1, method, arguments, {}))
        await until_async(lambda: any(kind == FrameKind.ORDERED for kind, _ in self.sent[before:]))
        (result,) = [message for kind, message in self.sent[before:] if kind == FrameKind.ORDERED]
        assert result.number == before + 1
        return result

    def notices(self, name: str) -> list[Any]:
        found = [message for kind, message in self.sent if kind == FrameKind.NOTIFY_COORDINATOR]
        return [arguments for noticed, arguments in found if noticed == name]


def run(tables: Tables, test: Callable[[Replicas], Awaitable[None]]) -> None:
    async def with_replicas() -> None:
        replicas = Replicas(tables)
        try:
            await asyncio.wait_for(test(replicas), 30)
        finally:
            await replicas.own.stop(0)

    asyncio.run(with_replicas())


def test_what_an_order_does_is_reported_with_its_error(tables: Tables, caplog: pytest.LogCaptureFixture) -> None:
    async def test(replicas: Replicas) -> None:
        assert (await replicas.order("check", LOAD)).value is True, "it has ended"
        assert (await replicas.order("stop", LOAD, 1.0)).error is None

        async def fail(error: BaseException) -> None:
            raise error

        replicas.own._orders = {"fail": fail}
        refused = await replicas.order("fail", NotReadyError("not now"))
        assert error_of(refused.error).message == "not now"
        cancelled = await replicas.order("fail", asyncio.CancelledError())
        assert error_of(cancelled.error).message == "the model is being unloaded"
        unexpected = await replicas.order("fail", ZeroDivisionError("oh"))
        assert error_of(unexpected.error).message.startswith("cannot carry out 'fail': unexpected ZeroDivisionError")
        assert "cannot carry out 'fail'" in caplog.text

    run(tables, test)


def test_a_replica_ends_once_and_the_coordinator_gets_its_last_counts(tables: Tables) -> None:
    async def test(replicas: Replicas) -> None:
        closed: list[bool] = []
        replicas.own.on_closed = lambda: closed.append(replicas.replica.is_open)
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
        starting = replicas.own._starts[LOAD] = asyncio.get_running_loop().create_task(asyncio.sleep(1000))
        await replicas.own._stop(LOAD, 0)
        assert starting.cancelled()
        del replicas.own._starts[LOAD]

    run(tables, test)


def test_an_ensemble_ends_with_its_last_counts(tables: Tables) -> None:
    async def test(replicas: Replicas) -> None:
        execution: Any = Version()
        ensemble = replicas.own._ensembles[LOAD] = OwnEnsemble(execution, tables.row, tables.of[1])
        assert ensemble.better_process() is None
        assert ensemble.reserve_input(4, 0) is None
        ensemble.submit(OpenRequest(request("m"), None))
        assert tables.of[0].requests_elsewhere(tables.row) == 1
        assert replicas.own.request_count == 1
        assert replicas.own.find_ensemble(LOAD) is ensemble
        execution.in_flight = 0
        execution.on_end()
        assert tables.of[0].requests_elsewhere(tables.row) == 0
        assert ensemble.report().counts.statistics is execution.totals
        await replicas.own._stop(LOAD, 3.0)
        assert execution.stopped == [3.0]
        assert ensemble.better_process() == 0
        assert replicas.own.find_ensemble(LOAD) is None
        assert replicas.opened == [LOAD]
        assert len(replicas.notices("reports")) == 1

    run(tables, test)


def test_counts_are_reported_every_now_and_then_if_they_have_changed(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_replicas, "_REPORT_SECONDS", 0.001)

    async def test(replicas: Replicas) -> None:
        await until_async(lambda: replicas.notices("reports"))
        replicas.add()
        await until_async(lambda: len(replicas.notices("reports")) == 2)
        (counts,) = replicas.notices("reports")[1]
        assert list(counts.replicas) == [LOAD]
        await asyncio.sleep(0.02)
        assert len(replicas.notices("reports")) == 2
        replicas.version.in_flight += 1
        await until_async(lambda: len(replicas.notices("reports")) == 3)
        replicas.own.received = 9
        assert (await replicas.order("report")).value.received == 9

    run(tables, test)


def test_a_server_that_exits_has_its_replicas_take_no_requests(tables: Tables) -> None:
    async def test(replicas: Replicas) -> None:
        replicas.add()
        execution: Any = Version()
        ensemble = replicas.own._ensembles[8] = OwnEnsemble(execution, tables.row, tables.of[1])
        models = ReplicaModels(replicas.own)
        assert models.route("m", -1, LOAD) is replicas.version
        replicas.own.on_notice("exiting", ())
        assert replicas.own.is_exiting
        assert not replicas.replica.is_open
        assert not ensemble.is_open
        with pytest.raises(GoneError, match="model 'm' was unloaded while the request was received; send it again"):
            models.find_target("m", -1, LOAD)
        await replicas.own.finish_requests(4.0)
        assert replicas.version.stopped == [-4.0]

    run(tables, test)


def test_requests_are_submitted_to_the_load_that_was_meant(tables: Tables) -> None:
    async def test(replicas: Replicas) -> None:
        replicas.add()
        models = ReplicaModels(replicas.own)
        names: list[str] = []
        first: Any = models.submit(request("m"), None, LOAD)  # type: ignore[arg-type]
        call: Any = models.submit(request("m"), None, LOAD, names.append)  # type: ignore[arg-type]
        assert replicas.version.submitted == [first, call]
        assert (first.needs_idle, call.needs_idle) == (False, True)
        assert names == [""]
        with pytest.raises(GoneError):
            models.submit(request("m"), None, LOAD + 1)  # type: ignore[arg-type]

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
        replicas.version.in_flight = 4
        own.maintain()
        assert replicas.version.maintained == 1
        assert tables.of[2].requests_elsewhere(tables.row) == 4
        own.notify_lines(["a line"])  # type: ignore[list-item]
        assert replicas.notices("lines") == [(["a line"],)]

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
