"""Processes of the server that are stopped or hung, and the counters of those that were killed."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from server.processes.pair import SILENT, Engine, Sink, request
from support.waiting import until_async

from naiad.core.errors import NaiadError
from naiad.frontends.metrics.families import Family, MetricType, Sample
from naiad.frontends.tracing.tracer import Tracer
from naiad.guests.memory.link_memory import LinkMemory
from naiad.server.processes import pool as pools
from naiad.server.processes.link import Link
from naiad.server.processes.messages import VersionRoute
from naiad.server.processes.pool import ProcessPool
from naiad.server.processes.remote_engine import RemoteEngine
from naiad.server.processes.replicas import ReplicaProcesses
from naiad.server.processes.spawned import SpawnedProcess, SpawnedProcesses


class FakeProcesses(SpawnedProcesses):
    """Processes that only sleep. This process has their ends of the links, each with a real engine's facade."""

    def __init__(self) -> None:
        super().__init__()
        self.engine = Engine()
        self.processes: list[subprocess.Popen[bytes]] = []
        self.sockets: list[socket.socket] = []
        self.links: list[Link] = []
        self.engines: list[RemoteEngine] = []
        self.configured: list[tuple[Any, ...]] = []
        self.pings = 0

    def take(self) -> SpawnedProcess:
        own, other = socket.socketpair()
        process = subprocess.Popen(["sleep", "600"])
        self.processes.append(process)
        self.sockets.append(other)
        return SpawnedProcess(process, own)

    def connect(self, number: int, error: NaiadError | None = None) -> RemoteEngine:
        """Have a process take part from now on, or fail with *error*."""
        engine = RemoteEngine(self.sockets[number], lambda: None)

        def listen(_: object) -> None:
            if error is not None:
                raise error

        def ping() -> None:
            self.pings += 1

        engine.services |= {"listen": listen, "ping": ping, "configure": lambda *given: self.configured.append(given)}
        self.engines.append(engine)
        self.links.append(engine.coordinator.link)
        return engine

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait(30)
        for each in self.sockets:
            each.close()


@pytest.fixture
def fakes() -> Iterator[FakeProcesses]:
    made = FakeProcesses()
    yield made
    made.end()


def run(fakes: FakeProcesses, count: int, test: Callable[[ProcessPool], Awaitable[None]]) -> None:
    async def with_pool() -> None:
        replicas = ReplicaProcesses(count + 1)
        services: Any = SimpleNamespace(on_worker_exit=lambda _: None)
        replicas.services = services
        engine: Any = fakes.engine
        pool = ProcessPool(engine, LinkMemory(count), Tracer(), count, "configuration", fakes, replicas)
        try:
            await asyncio.wait_for(test(pool), 20)
        finally:
            for each in fakes.processes:
                each.kill()
            await pool.stop(0)
            replicas.close()
            for engine in fakes.engines:
                for peer in engine.peers.values():
                    peer.close()

    asyncio.run(with_pool())


async def started(pool: ProcessPool, fakes: FakeProcesses) -> list[RemoteEngine]:
    starting = asyncio.ensure_future(pool.start("ports"))
    await until_async(lambda: fakes.processes and len(fakes.processes) == len(pool.pids))
    doors = [fakes.connect(number) for number in range(len(fakes.processes))]
    await starting
    return doors


def unread(end: socket.socket) -> int:
    """How many bytes have arrived at an end of a link."""
    end.setblocking(False)
    size = 0
    with contextlib.suppress(BlockingIOError):
        while data := end.recv(1 << 20):
            size += len(data)
    return size


def value(pool: ProcessPool, name: str, process: str) -> float:
    (family,) = [each for each in pool.families([], 7) if each.name == name]
    return next(each.value for each in family.samples if each.labels == {"process": process})


def test_a_process_that_answers_nothing_is_killed_and_another_one_started(
    fakes: FakeProcesses, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pools, "HANG_SECONDS", 0.3)

    async def test(pool: ProcessPool) -> None:
        await started(pool, fakes)
        hung, alive = fakes.processes
        fakes.links[0].close = lambda: None  # type: ignore[method-assign]
        asyncio.get_running_loop().remove_reader(fakes.sockets[0])  # as a process that is stopped
        await until_async(lambda: hung.poll() is not None or not psutil.pid_exists(hung.pid))
        fakes.sockets[0].shutdown(socket.SHUT_RDWR)  # the kernel's part of its end
        await until_async(lambda: len(fakes.processes) == 3)
        assert alive.poll() is None
        assert f"process 1 of the server (pid {hung.pid}) has not responded for 0.3 s and is killed" in caplog.text
        assert pool.restart_count == 1

    run(fakes, 2, test)


def test_a_process_that_answers_is_not_killed(fakes: FakeProcesses, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "HANG_SECONDS", 0.06)
    monkeypatch.setattr(pools, "_PINGS", 60)  # one a millisecond; each of them would have to be late

    async def test(pool: ProcessPool) -> None:
        await started(pool, fakes)
        await until_async(lambda: fakes.pings > 100)
        assert fakes.processes[0].poll() is None

    run(fakes, 1, test)


def test_a_process_is_killed_once_so_many_pings_in_a_row_were_late(fakes: FakeProcesses) -> None:
    async def test(pool: ProcessPool) -> None:
        pool.connect()
        (running,) = pool._running.values()
        pool._watch()
        assert running.ping is None, "it does not serve yet"
        running.ready.set_result(None)
        kills: list[bool] = []
        running.kill = lambda: kills.append(True)  # type: ignore[method-assign]
        trims: list[bool] = []
        running.peer.requests.trim = lambda: trims.append(True) is None  # type: ignore[method-assign]
        for _ in range(2):
            for _ in range(pools._PINGS):
                pool._watch()
            assert running.silent == pools._PINGS - 1
            late = running.ping
            assert late is not None
            late.set_result(None)
        for _ in range(pools._PINGS):
            pool._watch()
        assert kills == []
        pool._watch()
        assert kills == [True]
        assert len(trims) == 3 * pools._PINGS + 1
        running.exited = asyncio.get_running_loop().create_future()
        pool._watch()
        assert kills == [True], "its end is waited for"
        running.exited = None

    run(fakes, 1, test)


def test_a_process_that_does_not_read_delays_a_change_for_a_limited_time(
    fakes: FakeProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "_SENT_LIMIT_SECONDS", 0.05)

    async def test(pool: ProcessPool) -> None:
        starting = asyncio.ensure_future(pool.start("ports"))
        await until_async(lambda: fakes.sockets)
        pool.broadcast("region", bytes(8 << 20))
        await pool.wait_sent()
        assert 0 < unread(fakes.sockets[0]) < 8 << 20
        starting.cancel()

    run(fakes, 1, test)


def test_a_change_is_complete_once_all_processes_have_read_nearly_all_of_it(
    fakes: FakeProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "_SENT_LIMIT_SECONDS", 1000)

    async def test(pool: ProcessPool) -> None:
        await started(pool, fakes)
        pool._running[2].peer.calls.notify("region", bytes(8 << 20))
        await pool.wait_sent()
        link = pool._running[2].peer.link
        assert (link.has_backlog, link._soon) == (False, [])

    run(fakes, 2, test)


def test_requests_of_processes_that_were_killed_stay_counted(fakes: FakeProcesses) -> None:
    name = "naiad_process_requests_total"

    async def ask(facade: RemoteEngine, count: int) -> None:
        facade.ask = lambda *_: VersionRoute(1, False, None, {})  # type: ignore[method-assign,arg-type]
        sink = Sink()
        for _ in range(count):
            facade.submit(request("m"), sink)
        await until_async(lambda: len(sink.responses) == count)

    async def test(pool: ProcessPool) -> None:
        doors = await started(pool, fakes)
        await ask(doors[0], 3)
        await ask(doors[1], 2)
        assert [value(pool, name, str(n)) for n in (1, 2)] == [3, 2]
        fakes.processes[0].kill()
        fakes.links[0].close()
        await until_async(lambda: 1 not in pool.pids)
        assert value(pool, name, "1") == 3
        await until_async(lambda: len(fakes.processes) == 3)
        assert [value(pool, name, str(n)) for n in (1, 2)] == [3, 2]  # no scrape had asked the process
        await ask(fakes.connect(2), 5)
        assert [value(pool, name, str(n)) for n in (1, 2)] == [8, 2]
        figures: Any = await pool.figures()
        assert figures[fakes.processes[2].pid] == {"connections": 0, "requests": 5}
        doors[1].submit(request(SILENT), Sink())
        await until_async(lambda: pool.request_count)
        assert pool.request_count == 1

    run(fakes, 2, test)


def test_what_is_announced_is_waited_for_until_every_process_that_serves_has_taken_it_in(fakes: FakeProcesses) -> None:
    async def test(pool: ProcessPool) -> None:
        await pool.announce("tracing", True)  # without a process
        taken: list[Any] = []
        for engine in await started(pool, fakes):
            engine.services["tracing"] = taken.append
        await pool.announce("tracing", True)
        assert taken == [True, True]
        assert sorted(fakes.configured) == [(1, "configuration"), (2, "configuration")]
        engines = fakes.engines
        await until_async(lambda: [list(each.peers) for each in engines] == [[2], [1]])
        assert await engines[0].peers[2].calls.call("forget_layouts") is None
        fakes.engine.on_change()
        await until_async(lambda: [each.requests.route_changes for each in fakes.engines] == [1, 1])

    run(fakes, 2, test)


def test_regions_are_used_if_one_process_uses_them_or_does_not_answer(
    fakes: FakeProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "_CONFIRM_SECONDS", 0.2)

    async def test(pool: ProcessPool) -> None:
        assert await pool.take_regions(["a"]) == [], "there are no processes"
        engines = await started(pool, fakes)
        monkeypatch.setattr(pools, "_CONFIRM_SECONDS", 120)
        engines[0].services["take_regions"] = lambda _: []
        engines[1].services["take_regions"] = lambda _: ["b"]
        assert await pool.take_regions(["a", "b"]) == ["b"]
        del engines[0].services["take_regions"]  # which fails there
        assert await pool.take_regions(["a", "b"]) == ["b"]
        engines[0].services["take_regions"] = lambda _: []
        monkeypatch.setattr(pools, "_CONFIRM_SECONDS", 0.1)
        engines[1].services["take_regions"] = lambda _: asyncio.sleep(120)
        assert await pool.take_regions(["a", "b"]) == ["a", "b"]

    run(fakes, 2, test)


def test_what_processes_measure_is_added_up_and_kept_of_one_that_has_exited(fakes: FakeProcesses) -> None:
    def family(count: int) -> Family:
        return Family("naiad_process_connections", "", MetricType.COUNTER, [Sample({"process": "1"}, count)])

    async def test(pool: ProcessPool) -> None:
        await pool.collect()  # without a process
        (engine,) = await started(pool, fakes)
        engine.services["metrics"] = lambda: [family(3)]
        figures = await pool.figures()
        assert figures[fakes.processes[0].pid]["connections"] == 3
        engine.services["metrics"] = lambda: [family(4)]
        await pool.collect()
        assert value(pool, "naiad_process_connections", "1") == 4
        assert value(pool, "naiad_process_requests_total", "0") == 7
        fakes.processes[0].kill()
        fakes.links[0].close()
        await until_async(lambda: len(fakes.processes) == 2)
        assert value(pool, "naiad_process_connections", "1") == 4
        (restarts,) = [each for each in pool.families([], 0) if each.name == "naiad_process_restarts_total"]
        assert [each.value for each in restarts.samples] == [1]

    run(fakes, 1, test)


def test_commands_reach_all_processes(fakes: FakeProcesses) -> None:
    async def test(pool: ProcessPool) -> None:
        engines = await started(pool, fakes)
        commands: list[list[str]] = [[], []]
        for names, engine in zip(commands, engines, strict=True):
            for name in ("drain", "reopen_log"):
                engine.services[name] = partial(names.append, name)
        pool.reopen_logs()
        pool.drain()
        await until_async(lambda: all(len(names) == 2 for names in commands))
        assert commands == [["reopen_log", "drain"]] * 2
        running = pool._running[1]
        fakes.processes[0].kill()
        fakes.links[0].close()
        await until_async(lambda: running.exited is not None and running.exited.done())
        await asyncio.sleep(0)
        assert not pool._restarts, "the server will exit"

    run(fakes, 2, test)


def test_processes_that_are_told_to_stop_have_time_to_exit_and_are_not_started_again(
    fakes: FakeProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[float, ...]] = []
    limits: list[float | None] = []
    wait = asyncio.wait

    async def limited(exits: Any, *, timeout: float | None = None) -> Any:
        limits.append(timeout)
        return await wait(exits, timeout=timeout)

    async def test(pool: ProcessPool) -> None:
        for number, engine in enumerate(await started(pool, fakes)):

            def stop(*times: float, number: int = number) -> None:
                told.append(times)
                fakes.processes[number].terminate()
                fakes.links[number].close()

            engine.services["stop"] = stop
        peers = [each.peer for each in pool._running.values()]
        monkeypatch.setattr(asyncio, "wait", limited)
        await pool.stop(2.0, 30.0)
        monkeypatch.undo()
        assert told == [(2.0, 30.0)] * 2
        assert limits == [32.0 + pools._EXIT_SECONDS, None]
        assert [each.wait(30) for each in fakes.processes] == [-15, -15], "they were not killed"
        assert not pool._restarts
        assert not pool._replicas.running
        assert not any(peer.link.is_open for peer in peers)
        assert pool._watching is not None
        assert pool._watching.cancelled()

    run(fakes, 2, test)


def test_a_process_that_does_not_exit_in_time_is_killed_and_one_that_waits_for_its_start_stays_away(
    fakes: FakeProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "_EXIT_SECONDS", 0.001)
    monkeypatch.setattr(pools, "_FIRST_DELAY", 60.0)

    async def test(pool: ProcessPool) -> None:
        await started(pool, fakes)
        fakes.processes[0].kill()
        fakes.links[0].close()
        await until_async(lambda: pool._restarts)
        peer = pool._running[2].peer
        await pool.stop(0)
        assert fakes.processes[1].wait(30) == -9
        assert not peer.link.is_open
        assert not pool._replicas.running
        assert pool._restarts[1].cancelled()

    run(fakes, 2, test)


def test_a_pool_stops_before_it_has_started(fakes: FakeProcesses) -> None:
    async def test(pool: ProcessPool) -> None:
        assert pool.pids == {}

    run(fakes, 2, test)


class Connections:
    """Stands in for `ConnectionDealer`; keeps what it is told."""

    def __init__(self) -> None:
        self.acts: list[tuple[Any, ...]] = []
        self.ends: list[socket.socket] = []

    def join(self, number: int) -> socket.socket:
        self.acts.append(("join", number))
        own, other = socket.socketpair()
        self.ends.append(own)
        return other

    def begin(self, number: int) -> None:
        self.acts.append(("begin", number))

    def leave(self, number: int) -> None:
        self.acts.append(("leave", number))

    def on_ended(self, number: int, address: str) -> None:
        self.acts.append(("ended", number, address))


def test_a_process_that_waits_for_models_gets_regions_and_then_connections(
    fakes: FakeProcesses, caplog: pytest.LogCaptureFixture
) -> None:
    connections = Connections()
    regions: list[tuple[Any, ...]] = []

    async def test(pool: ProcessPool) -> None:
        pool.connections = connections  # type: ignore[assignment]
        pool.first_calls = lambda: [("region", ("a", 1))]
        pool.connect()
        engine = fakes.connect(0)
        engine.services["region"] = lambda *given: regions.append((*given, list(connections.acts)))
        await pool.start("ports")
        assert len(fakes.processes) == 1
        assert regions == [("a", 1, [("join", 1)])]
        assert engine.connections is not None
        engine.notify("connection_ended", "::1")
        await until_async(lambda: len(connections.acts) == 3)
        assert not [each for each in caplog.records if each.levelname == "ERROR"]
        engine.connections.close()
        fakes.processes[0].kill()
        fakes.links[0].close()
        await until_async(lambda: len(connections.acts) >= 4)
        assert connections.acts[:4] == [("join", 1), ("begin", 1), ("ended", 1, "::1"), ("leave", 1)]
        for end in connections.ends:
            end.close()

    run(fakes, 1, test)


def test_a_process_that_cannot_serve_says_why(fakes: FakeProcesses) -> None:
    async def test(pool: ProcessPool) -> None:
        starting = asyncio.ensure_future(pool.start("ports"))
        await until_async(lambda: fakes.sockets)
        facade = fakes.connect(0, error=NaiadError("cannot open port 80"))
        with pytest.raises(NaiadError, match="cannot open port 80"):
            await asyncio.wait_for(starting, 30)
        del facade

    run(fakes, 1, test)


def test_a_process_that_exits_while_it_starts_fails_the_start_and_is_followed_by_another_one_later(
    fakes: FakeProcesses, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(pool: ProcessPool) -> None:
        pool.connect()
        assert pool.pids == {1: fakes.processes[0].pid}
        fakes.processes[0].kill()
        fakes.sockets[0].close()
        await until_async(lambda: pool._restarts)
        assert pool.pids == {}
        with pytest.raises(NaiadError, match="cannot start process 1 of the server: it exited while the models"):
            await pool.start("ports")
        assert "cannot start process 1 of the server: it exited while it started" in caplog.text
        assert "exited (signal 9); another one starts in 0.1 s" in caplog.text
        await until_async(lambda: len(fakes.processes) == 2)
        assert pool.restart_count == 1
        assert not pool._restarts
        pool._restart_later(pool._running[1], 0)
        assert "exited (exit code 0); another one starts in 0.2 s" in caplog.text

    run(fakes, 1, test)


def test_a_process_that_cannot_be_started_again_is_tried_later(
    fakes: FakeProcesses, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pools, "_FIRST_DELAY", 0.001)
    monkeypatch.setattr(pools, "_LONGEST_DELAY", 0.002)

    def fail() -> SpawnedProcess:
        raise BlockingIOError(11, "too many processes")

    async def test(pool: ProcessPool) -> None:
        pool.connect()
        with monkeypatch.context() as patched:
            patched.setattr(fakes, "take", fail)
            fakes.processes[0].kill()
            fakes.sockets[0].close()
            await until_async(lambda: "cannot start process 1 of the server: [Errno 11] too many" in caplog.text)
        await until_async(lambda: len(fakes.processes) == 2)

    run(fakes, 1, test)


def test_a_process_is_started_later_and_later_and_soon_again_after_a_long_service(
    fakes: FakeProcesses, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pools, "_FIRST_DELAY", 0.01)
    monkeypatch.setattr(pools, "_LONGEST_DELAY", 0.03)

    async def test(pool: ProcessPool) -> None:
        pool.connect()
        for number, delay in enumerate((0.02, 0.03, 0.03)):
            fakes.processes[number].kill()
            fakes.sockets[number].close()
            await until_async(lambda number=number: len(fakes.processes) == number + 2)
            assert pool._delays == {1: delay}
        assert caplog.text.count("cannot start process 1 of the server: it exited while it started") == 3
        monkeypatch.setattr(pools, "_STABLE_SECONDS", 0.0)
        fakes.processes[3].kill()
        fakes.sockets[3].close()
        await until_async(lambda: len(fakes.processes) == 5)
        assert pool._delays == {1: 0.02}

    run(fakes, 1, test)
