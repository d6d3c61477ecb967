"""A version's replicas: what each process is told, also if it exits meanwhile."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections import Counter
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from fakes.clock import Clock
from fakes.guests import launch_spec
from support.waiting import until_async

from naiad.core.errors import ModelError, NotReadyError
from naiad.engine.lifecycle.restart import RestartPolicy
from naiad.engine.open_request import OpenRequest
from naiad.engine.serving.replicas import ProcessCounts, ReplicaCounts, ReplicaOrder, ReplicaReport
from naiad.engine.statistics.counters import Statistics
from naiad.guests.launch import LaunchSpec
from naiad.protocol.inference import InferRequest
from naiad.protocol.metadata import InstanceStatus
from naiad.server.processes import replicas as replicas_module
from naiad.server.processes.calls import ProcessExitedError
from naiad.server.processes.load_table import LoadTable
from naiad.server.processes.remote_guests import GuestWaits
from naiad.server.processes.replicas import ReplicaProcesses, VersionReplicas

LOAD = 9
ORDER = ReplicaOrder(LOAD, 1, "", b"before", (), RestartPolicy(), ())


def report(
    successes: int = 0, *names: str, state: str = "ready", restarts: dict[str, int] | None = None
) -> ReplicaReport:
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
            state=state,
            restarts=restarts or {},
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
        self.running: dict[int, Any] = {}

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
        assert (replicas.typical, replicas.is_decoupled) == (0, False)
        replicas.on_process_end(1)
        assert replicas.statuses() == [
            InstanceStatus(
                model="m",
                namespace="",
                version="1",
                name="m_1",
                pid=0,
                state="restarting",
                restarts={},
                input_byte_size=0,
                borrowed_outputs=0,
            )
        ]
        assert not replicas.are_all_serving()
        replicas.on_process_end(3)
        replicas.on_process(3)  # which runs none of it
        processes.answers[1, "start"] = ModelError("no luck at first")
        replicas.on_process(1)
        await until_async(lambda: len(replicas.statuses()) == 0)
        assert processes.take() == [(1, "start", "m_1")] * 2

    run(test)


def test_a_replica_that_cannot_be_started_is_tried_later_and_later() -> None:
    clock = Clock()

    async def test() -> None:
        processes = Processes()
        replicas = await started(processes)
        times: list[float] = []

        async def order(*_: object) -> ReplicaReport:
            times.append(clock.monotonic())
            if len(times) < 8:
                raise ModelError("no luck")
            return report()

        processes.order = order  # type: ignore[method-assign]
        replicas.on_process_end(1)
        replicas.on_process(1)
        starting = replicas._replicas[1].starting
        assert starting is not None
        await starting
        assert [after - before for before, after in itertools.pairwise(times)] == [1, 2, 4, 8, 16, 30, 30]
        processes.table.close()

    clock.run(test())


def test_a_process_that_exits_again_is_followed_by_one_more() -> None:
    async def test(processes: Processes, replicas: VersionReplicas) -> None:
        replicas.on_process_end(2)
        processes.answers[2, "start"] = ProcessExitedError("it has exited")
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
        assert (replicas.least_loaded(0, 0), replicas.idle_process()) == (1, 1)
        for number, count in ((1, 2), (2, 0)):
            requests = SimpleNamespace(count_of=lambda load, count=count: count if load == LOAD else 99)
            processes.running[number] = SimpleNamespace(peer=SimpleNamespace(requests=requests))
        assert (replicas.least_loaded(0, 0), replicas.idle_process()) == (3, 3), "two are on their way to the first"
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
        replicas.on_report(2, report(7, "m_2", restarts={"crash": 4}))
        replicas.on_process_end(2)
        assert successes(replicas) == 12
        replicas.on_process(2)
        await until_async(lambda: (2, "start", "m_2") in processes.told)
        replicas.on_report(2, report(1, "m_2", restarts={"crash": 1}))
        assert successes(replicas) == 13
        (status,) = (each for each in replicas.statuses() if each.name == "m_2")
        assert status.restarts == {"process exit": 1, "crash": 5}
        replicas.on_process_end(2)
        assert successes(replicas) == 13
        (status,) = (each for each in replicas.statuses() if each.name == "m_2")
        assert status.restarts == {"process exit": 2, "crash": 5}

    run(test)


def test_an_unload_ends_a_replica_that_is_being_started_again() -> None:
    async def test(processes: Processes, replicas: VersionReplicas) -> None:
        replicas.on_process_end(1)
        processes.held.add((1, "start"))
        replicas.on_process(1)
        await until_async(lambda: processes.told)
        processes.take()
        await replicas.stop(5)
        assert processes.take() == [(0, "forget"), (1, "stop_replica"), (2, "stop_replica")]
        await until_async(lambda: replicas._replicas[1].starting is None)
        replicas.on_process(1)
        await asyncio.sleep(0)
        assert processes.take() == []

    run(test)


def test_models_are_asked_whether_they_are_ready_where_they_say_so_themselves() -> None:
    async def test(processes: Processes, replicas: VersionReplicas) -> None:
        replicas.on_report(1, report(0, "m_1")._replace(is_asked=True))
        replicas.on_report(2, report(0, "m_2"))
        for answer, is_not_ready in ((True, False), (False, True), (ProcessExitedError("it has exited"), False)):
            processes.answers[1, "check"] = answer
            (query,) = replicas.queries()
            assert await query is is_not_ready
        assert processes.take() == [(1, "check")] * 3
        replicas.on_process_end(2)
        (query,) = replicas.queries()
        assert await query is False

    run(test)


def test_a_version_serves_elsewhere_while_an_instance_there_is_ready() -> None:
    async def test(processes: Processes, replicas: VersionReplicas) -> None:
        assert not replicas.is_serving()
        replicas.on_report(1, report(0, "m_1")._replace(typical=7))
        replicas.on_report(2, report(0, "m_2")._replace(typical=5))
        replicas.on_report(3, report())  # of a process without instances of it
        assert replicas.is_serving()
        assert replicas.are_all_serving()
        assert replicas.typical == 7
        assert set(replicas.processes) == {1, 2}
        assert [status.name for status in replicas.statuses()] == ["m_1", "m_2"]
        replicas.on_report(2, report(0, "m_2", state="starting"))
        assert replicas.is_serving()
        assert not replicas.are_all_serving()

    run(test)


def opened(answers: list[Any], **fields: Any) -> OpenRequest:
    class Sink:
        def send(self, response: Any, final: bool) -> None:
            answers.append(response.error.message)

    return OpenRequest(InferRequest("m", -1, (), **fields), Sink())


def test_a_request_for_a_process_that_has_exited_is_told_so() -> None:
    async def test(processes: Processes, replicas: VersionReplicas) -> None:
        answers: list[str] = []
        replicas.send(1, opened(answers))
        assert answers == [
            "cannot finish the request: process 1 of the server, which had it, has exited; send it again"
        ]

    run(test)


def test_a_request_that_a_link_does_not_take_ends_with_the_reason_and_a_call_says_that_it_needs_an_idle_one() -> None:
    async def test(processes: Processes, replicas: VersionReplicas) -> None:
        answers: list[str] = []
        sent: list[Any] = []

        class Link:
            def route_to(self, load: int, *, is_decoupled: bool) -> Any:
                return load, is_decoupled

            def send_request(self, request: Any, known: Any) -> None:
                sent.append((request.needs_idle, *known))
                if len(sent) == 2:
                    raise NotReadyError("Server exiting")

        processes.running[1] = SimpleNamespace(peer=SimpleNamespace(requests=Link()))
        replicas.is_decoupled = True
        call = opened(answers)
        call.needs_idle = True
        replicas.send(1, call)
        replicas.send(1, opened(answers))
        assert answers == ["Server exiting"]
        assert sent == [(True, LOAD, True), (False, LOAD, True)]

    run(test)


def test_a_request_that_comes_back_waits_unless_it_was_cancelled() -> None:
    async def test(processes: Processes, replicas: VersionReplicas) -> None:
        answers: list[str] = []
        back: list[OpenRequest] = []
        looked: list[str] = []
        processes.services.calls = SimpleNamespace(on_call_waiting=lambda: looked.append("looked"))
        replicas.take_back = back.append
        first, cancelled = opened(answers), opened(answers)
        cancelled.is_cancelled = True
        replicas.on_refused(first)
        replicas.on_refused(cancelled)
        assert back == [first]
        assert looked == ["looked"]
        assert answers == ["Request was cancelled"]

    run(test)


def test_the_guests_of_replicas_are_known_unless_one_of_them_is_being_started() -> None:
    async def test(processes: Processes, replicas: VersionReplicas) -> None:
        for number in (1, 2):
            guests = SimpleNamespace(of=lambda load, name, number=number: (number, load, name))
            processes.running[number] = SimpleNamespace(guests=guests)
        assert replicas.workers() == [(1, LOAD, "m_1"), (2, LOAD, "m_2")]
        replicas.on_process_end(1)
        assert replicas.workers() is None
        processes.running.clear()
        assert replicas.workers() is None

    run(test)


def test_loads_are_noted_while_the_version_serves_and_its_row_is_its_own() -> None:
    async def test(processes: Processes, replicas: VersionReplicas) -> None:
        other = LoadTable(os.dup(processes.table.descriptor), 4, 1)
        late = VersionReplicas(processes, ORDER, "m", {})  # type: ignore[arg-type]
        late.note_load(9)
        assert other.requests_elsewhere(replicas.row) == 0, "it is not loaded yet"
        replicas.note_load(3)
        replicas.note_instances(2)
        assert other.requests_elsewhere(replicas.row) == 3
        assert other.serving_processes(replicas.row) == [0]
        other.note_instances(replicas.row, 2)
        replicas.on_process_end(1)
        assert processes.table.serving_processes(replicas.row) == [], "what that process had to do ends with it"
        await replicas.stop(0)
        assert other.serving_processes(replicas.row) == []
        replicas.note_load(5)
        replicas.note_instances(5)
        assert other.requests_elsewhere(replicas.row) == 3
        assert other.serving_processes(replicas.row) == []
        other.close()

    run(test)


class FakePeer:
    """A process: keeps what is called of it, and answers when a test says so."""

    def __init__(self) -> None:
        self.session = SimpleNamespace(on_call=None, received_count=0)
        self.requests: Any = SimpleNamespace(trace_of=lambda _: None, count_of=lambda load: load)
        self.calls = self
        self.services: dict[str, Callable[..., Any]] = {}
        self.sent: list[tuple[Any, ...]] = []
        self.open: list[asyncio.Future[Any]] = []

    def notify(self, *sent: Any) -> None:
        self.sent.append(sent)

    def notify_with(self, descriptor: int, *sent: Any) -> None:
        assert descriptor >= 0
        self.sent.append(sent)

    def call(self, *sent: Any) -> asyncio.Future[Any]:
        self.sent.append(sent)
        self.open.append(asyncio.get_running_loop().create_future())
        return self.open[-1]

    def answer(self, value: Any = None) -> None:
        self.open[-1].set_result(value)


def run_processes(test: Callable[[ReplicaProcesses, FakePeer], Awaitable[None]]) -> None:
    async def with_processes() -> None:
        processes = ReplicaProcesses(3)
        services: Any = SimpleNamespace(
            calls=SimpleNamespace(made=Counter(), on_waits_reported=lambda _: None), on_worker_exit=lambda _: None
        )
        processes.services = services
        peer: Any = FakePeer()
        processes.connect(2, peer)
        assert peer.sent.pop() == ("table", 3, 2)
        try:
            await asyncio.wait_for(test(processes, peer), 30)
        finally:
            processes.close()
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(processes.table.descriptor)

    asyncio.run(with_processes())


def test_an_order_ends_with_its_result_or_error_or_with_the_process() -> None:
    async def test(processes: ReplicaProcesses, peer: FakePeer) -> None:
        async def ordered() -> asyncio.Task[Any]:
            task = asyncio.ensure_future(processes.order(2, "check", 7))
            await asyncio.sleep(0)
            assert peer.sent[-1] == ("check", 7)
            return task

        first = await ordered()
        peer.answer(True)
        assert await first is True
        second = await ordered()
        peer.open[-1].set_exception(ModelError("no"))
        with pytest.raises(ModelError, match="no"):
            await second
        processes.disconnect(2)
        processes.disconnect(2)
        with pytest.raises(ProcessExitedError):
            await processes.order(2, "check", 7)

    run_processes(test)


def test_what_processes_have_counted_is_gathered_and_added_once(caplog: pytest.LogCaptureFixture) -> None:
    async def test(processes: ReplicaProcesses, peer: FakePeer) -> None:
        await processes.gather()
        assert peer.sent == [], "no version has replicas"
        version = processes.make(ORDER, "m", {2: specs("m_2")})
        for received, calls in ((4, 2), (9, 5)):
            gathering = asyncio.ensure_future(processes.gather())
            await until_async(lambda: peer.sent)
            peer.answer(ProcessCounts(received, {("a", "m"): calls}, {LOAD: report(received, "m_2"), 99: report()}))
            peer.sent.clear()
            await gathering
            assert peer.session.received_count == received
            assert processes.services.calls.made["a", "m"] == calls
            assert successes(version) == received
        peer.services["reports"](ProcessCounts(11, {}, {LOAD: report(11, "m_2")}))
        assert (peer.session.received_count, successes(version)) == (11, 11)
        assert version._counts() == {2: LOAD}
        lines: list[Any] = []
        processes.keep_lines = lines.append
        peer.services["log_lines"](["a line"])
        assert lines == [["a line"]]
        recorded: list[Any] = []
        version.log = SimpleNamespace(record=lambda *record: recorded.append(record))  # type: ignore[assignment]
        peer.services["log_record"](LOAD, "one", 2)
        peer.services["log_record"](99, "of a version that is gone")
        assert recorded == [("one", 2)]
        assert processes.has_version(LOAD)
        other = LoadTable(os.dup(processes.table.descriptor), 3, 2)
        other.note_requests(version.row, 6)
        other.close()
        assert version.in_flight == 6
        processes.forget(LOAD, version.row)
        assert not processes.has_version(LOAD)
        assert version.in_flight == 0
        rows = [processes.make(ORDER._replace(number=number), "m", {2: []}).row for number in (1, 2)]
        assert rows == [version.row, version.row + 1]
        processes.forget(LOAD, version.row)
        assert processes.make(ORDER, "m", {2: []}).row == version.row + 2, "each row is of one version"

    run_processes(test)


def test_what_a_process_reports_too_late_or_not_at_all_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas_module, "_GATHER_SECONDS", 0.001)

    async def test(processes: ReplicaProcesses, peer: FakePeer) -> None:
        processes.make(ORDER, "m", {2: specs("m_2")})
        for _ in range(2):
            await processes.gather()
        assert peer.sent == [("report",)], "it is asked once at a time"
        peer.open[-1].set_exception(ProcessExitedError("it has exited"))
        await processes.gather()
        assert len(peer.sent) == 2
        assert peer.session.received_count == 0

    run_processes(test)


def test_guests_that_wait_are_asked_again_before_something_is_a_deadlock() -> None:
    async def test(processes: ReplicaProcesses, peer: FakePeer) -> None:
        done: list[str] = []
        processes.gather_waits(lambda: done.append("nobody waits"))
        await until_async(lambda: done)
        assert peer.sent == []
        peer.services["guest"](1, "m_2", "m", 1)
        peer.services["guest_waits"]({1: GuestWaits({}, True)})
        processes.gather_waits(lambda: done.append("asked"))
        await until_async(lambda: peer.sent)
        assert peer.sent[-1] == ("report_waits",)
        assert len(done) == 1
        peer.answer()
        await until_async(lambda: len(done) == 2)
        processes.gather_waits(lambda: done.append("it has exited"))
        await until_async(lambda: len(peer.open) == 2)
        peer.open[-1].set_exception(ProcessExitedError("it has exited"))
        await until_async(lambda: len(done) == 3)
        processes.close_replicas()
        assert peer.sent[-1] == ("exiting",)

    run_processes(test)


def test_a_request_that_comes_back_to_a_version_that_is_gone_is_told_so() -> None:
    async def test(processes: ReplicaProcesses, _: FakePeer) -> None:
        answers: list[str] = []
        gone = opened(answers)
        gone.load = LOAD
        processes.take_back(gone)
        assert answers == ["model 'm' was unloaded; send the request again"]
        taken: list[Any] = []
        version = processes.make(ORDER, "m", {2: specs("m_2")})
        version.on_refused = taken.append  # type: ignore[method-assign]
        back = opened(answers)
        back.load = LOAD
        processes.take_back(back)
        assert len(taken) == 1

    run_processes(test)
