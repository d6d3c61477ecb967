"""Guests' processes and fork servers without either: how they are started, what they say, and each way they end."""

from __future__ import annotations

import asyncio
import errno
import io
import logging
import os
import socket
import stat
import subprocess
import sys
from array import array
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import psutil
import pytest
from fakes.guests import launch_spec
from naiad_stub import wire
from naiad_stub.messages import (
    TO_FORK_SERVER,
    Fork,
    Forked,
    ForkFailed,
    ForkServerFailed,
    ForkServerReady,
    Readiness,
    Reap,
    Reaped,
    pack,
    unpack,
)
from support.waiting import until_async

from naiad.config.model.parameters import MemoryLimit
from naiad.config.server.guest_user import GuestUser
from naiad.core.errors import GuestExitedError, NaiadError, NotReadyError
from naiad.guests import access, completion, forkserver, guest, launch, prewarm, readiness, sweeper
from naiad.guests.forkserver import CannotForkError, ForkServer
from naiad.guests.guest import GuestProcess
from naiad.guests.launch import GuestSockets, LaunchedGuest
from naiad.guests.memory.instance import InstanceMemory
from naiad.guests.prewarm import ForkServerPool
from naiad.guests.process import ProgressMonitor, describe_exit
from naiad.guests.readiness import ReadinessProbe

PID = 4242


class Sweeper:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, ...]] = []

    def new_id(self) -> str:
        return "mark-000001.000000"

    def watch(self, *named: str) -> None:
        self.calls.append(("watch", *named))

    def on_exit(self, *named: str) -> None:
        self.calls.append(("exit", *named))


@pytest.fixture
def swept(monkeypatch) -> Sweeper:
    made = Sweeper()
    for module in (forkserver, launch):
        monkeypatch.setattr(module, "sweeper", made)
    return made


@pytest.fixture
def killed(monkeypatch) -> list[int]:
    """The groups that were killed: none is."""
    found: list[int] = []
    for module in (forkserver, launch):
        monkeypatch.setattr(module, "kill_group", found.append)
    return found


@pytest.fixture
def memory():
    made = InstanceMemory("test", capacity=1 << 20)
    yield made
    made.close()


def run(test: Coroutine[Any, Any, object]) -> None:
    asyncio.run(asyncio.wait_for(test, 60))


@pytest.fixture
def run_coroutine():
    return run


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


# -- fork servers -----------------------------------------------------------------------------------------------------


class Stub:
    """A fork server, played by the test."""

    def __init__(self, descriptors: tuple[int, ...]) -> None:
        self.pid = PID
        self.socket = socket.socket(fileno=os.dup(descriptors[0]))
        (out, self.lines), (err, self.errors) = os.pipe(), os.pipe()
        self.stdout, self.stderr = os.fdopen(out, "rb", 0), os.fdopen(err, "rb", 0)
        self.status = 0
        self.outlives_wait = False
        self.waits: list[float | None] = []
        self.kills = 0

    def wait(self, timeout: float | None = None) -> int:
        self.waits.append(timeout)
        if self.outlives_wait:
            self.outlives_wait = False
            raise subprocess.TimeoutExpired("stub", timeout or 0)
        return self.status

    def kill(self) -> None:
        self.kills += 1

    def say(self, *said: Any) -> None:
        for each in said:
            self.socket.send(each if isinstance(each, bytes) else pack(each))

    def heard(self) -> tuple[Any, int]:
        """The next message, and how many descriptors came with it."""
        data, passed, *_ = self.socket.recvmsg(1 << 16, socket.CMSG_SPACE(400), socket.MSG_DONTWAIT)
        numbers = array("i", b"".join(each for *_, each in passed))
        for number in numbers:
            os.close(number)
        return unpack(TO_FORK_SERVER, wire.FRAME.unpack_from(data)[1], data[wire.FRAME.size :]), len(numbers)

    def end(self) -> None:
        self.socket.close()
        for each in (self.lines, self.errors):
            if each >= 0:
                os.close(each)
        self.lines = self.errors = -1


@pytest.fixture
def stubs(monkeypatch, swept, killed):
    """The fork servers that were started, with their arguments."""

    def exited(_: int) -> int:
        # A pidfd of a process that has exited can be read, as the end of a pipe can.
        ours, theirs = os.pipe()
        os.close(theirs)
        return ours

    monkeypatch.setattr(os, "pidfd_open", exited)
    made: ClassVar[list[Any]] = []

    def start(spec: Any, arguments: Any, descriptors: tuple[int, ...], guest_id: str) -> Stub:
        if not spec.python.name:
            raise GuestExitedError("no interpreter")
        assert arguments["--fork-server"] == descriptors[0]
        stub = Stub(descriptors)
        stub.modules, stub.guest_id = arguments["--modules"], guest_id
        made.append(stub)
        return stub

    monkeypatch.setattr(forkserver, "start_stub", start)
    monkeypatch.setattr(psutil, "Process", lambda pid: SimpleNamespace(ppid=lambda: PID if pid > 100 else 1))
    yield made
    for each in made:
        each.end()


def test_a_guest_is_forked_once_the_modules_are_imported(stubs, swept, memory, caplog):
    async def fork():
        server = ForkServer(launch_spec(), ["numpy", "torch"])
        [stub] = stubs
        assert (stub.modules, server.pid, "IMPORTING" in repr(server)) == ("numpy,torch", PID, True)
        assert swept.calls == [("watch", "mark-000001.000000", "prewarming numpy, torch")]
        forking = asyncio.ensure_future(server.fork(memory, SimpleNamespace(capacity=77, descriptor=1)))
        await turns()
        with pytest.raises(BlockingIOError):
            stub.heard()
        assert not server.is_ready
        stub.say(ForkServerReady())
        await until_async(lambda: server.is_ready, "READY")
        await turns()
        asked, descriptors = stub.heard()
        assert (asked, descriptors) == (Fork(1, memory.inputs.capacity, memory.output_capacity, 77), 8)
        stub.say(Forked(1, 500))
        made = await forking
        assert (made.pid, made.guest_id) == (500, "mark-000001.000001")
        assert [name for name, _ in made.output] == ["stdout", "stderr"]
        ended: list[tuple[int, str]] = []
        for message, status in ((Reaped(500, 7, 0), 7), (Reaped(500, 0, 11), -11)):
            made.reap(lambda *how: ended.append(how))
            assert stub.heard()[0] == Reap(500)
            stub.say(message)
            await until_async(lambda: ended, "its end")
            assert ended.pop() == (status, "")
        assert "READY" in repr(server)
        forking = asyncio.ensure_future(server.fork(memory))
        await turns()
        assert stub.heard() == (Fork(2, memory.inputs.capacity, memory.output_capacity, 0), 7)
        stub.say(ForkFailed(2, "no memory"))
        with pytest.raises(CannotForkError, match="fork: no memory"):
            await forking
        made.reap(lambda *how: ended.append(how))
        server.close()
        assert ended == [(-9, "the process it was forked from is gone: it was not needed any more")]
        close(made)

    with caplog.at_level(logging.INFO):
        run(fork())
    assert "prewarmed numpy, torch in 0." in caplog.text


def close(made: LaunchedGuest) -> None:
    for each in (made.sockets.channel, made.sockets.side, made.sockets.bridges, *(pipe for _, pipe in made.output)):
        each.close()


@pytest.mark.parametrize(
    ("said", "ready", "status", "end", "replaceable", "kills"),
    [
        ([ForkServerFailed("no module")], False, 1, "no module", False, 1),
        ([], False, 3, "the fork server ended: pid 4242 exited with status 3", False, 0),
        ([], False, -9, "the fork server ended: pid 4242 was killed by SIGKILL (out of memory?)", True, 0),
        ([], True, 3, "the fork server ended: pid 4242 exited with status 3", True, 0),
        ([ForkServerReady()], True, 0, "it broke the protocol: it was ready before", True, 1),
        ([b"\0" * 8], False, 0, "it broke the protocol: ", False, 1),
        ([b"x"], False, 0, "it broke the protocol: ", False, 1),
        ([Forked(9, 50)], False, 0, "it broke the protocol: process 50 is not its child", False, 1),
    ],
)  # fmt: skip
async def test_a_fork_server_ends_with_a_reason_and_so_do_waiting_forks(
    stubs, swept, killed, memory, said, ready, status, end, replaceable, kills
):
    server = ForkServer(launch_spec(), ["numpy"])
    [stub] = stubs
    stub.status = status
    if ready:
        stub.say(ForkServerReady())
        await until_async(lambda: server.is_ready, "READY")
    forking = asyncio.ensure_future(server.fork(memory))
    await turns()
    os.write(stub.errors, b"one\ntwo\n")
    stub.say(*said)
    if not said:
        stub.end()
    with pytest.raises(CannotForkError) as caught:
        await forking
    lines = ". Its last lines on stderr:\none\ntwo" if not said and not ready else ""
    assert caught.value.message.startswith(end)
    assert caught.value.message.endswith(lines or server.end)
    assert (server.is_replaceable, server.is_ready, killed) == (replaceable, ready, [PID] * kills)
    assert swept.calls[1:] == [("exit", "mark-000001.000000")]
    with pytest.raises(CannotForkError):
        await server.fork(memory)
    server.close()
    assert (stub.waits, repr(server)) == ([1], f"<ForkServer numpy {server.end} pid=4242>")


async def test_a_fork_server_that_outlives_its_end_is_killed(stubs):
    server = ForkServer(launch_spec(), ["numpy"])
    [stub] = stubs
    stub.outlives_wait = True
    server.close()
    assert (stub.kills, stub.waits) == (1, [1, None])


async def test_a_guest_whose_start_was_given_up_is_killed_when_it_is_forked(stubs, killed, memory):
    server = ForkServer(launch_spec(), ["numpy"])
    [stub] = stubs
    stub.say(ForkServerReady())
    forking = [asyncio.ensure_future(server.fork(memory)) for _ in range(2)]
    await until_async(lambda: len(server._forks) == 2, "both requests")
    for each in forking:
        each.cancel()
    await asyncio.gather(*forking, return_exceptions=True)
    stub.say(Forked(1, 500), ForkFailed(2, "no"))
    await until_async(lambda: killed, "the end")
    assert killed == [500]
    await until_async(lambda: not server._forks, "the other")
    assert [stub.heard()[0] for _ in range(3)][2] == Reap(500)
    server.close()


async def test_a_fork_server_that_takes_no_requests_is_an_error_of_each(stubs, memory):
    server = ForkServer(launch_spec(), ["numpy"])
    [stub] = stubs
    stub.say(ForkServerReady())
    await until_async(lambda: server.is_ready, "READY")
    server._loop.remove_reader(server._socket.fileno())
    stub.socket.close()
    with pytest.raises(CannotForkError, match="asking for a guest: "):
        await server.fork(memory)
    assert server._forks == {}
    ended: list[tuple[int, str]] = []
    server._loop.add_reader(server._socket.fileno(), server._readable)
    server._reap(500, lambda *how: ended.append(how))
    await until_async(lambda: ended, "the end of the guest")
    [(status, reason)] = ended
    assert (status, reason.startswith("the process it was forked from is gone: the fork server ended")) == (
        -9,
        True,
    )


async def test_an_import_without_progress_is_given_up(stubs, memory, monkeypatch):
    monkeypatch.setattr(forkserver, "PROGRESS_CHECK_SECONDS", 0.001)
    monkeypatch.setattr(forkserver, "ProgressMonitor", lambda timeout: ProgressMonitor(timeout, lambda _: 0.0))
    server = ForkServer(launch_spec(start_timeout=0.01), ["numpy"])
    with pytest.raises(CannotForkError) as caught:
        await server.fork(memory)
    assert caught.value.message == "importing numpy made no progress for 0.01 s (stub-timeout-seconds)"


def test_what_a_fork_server_prints_is_logged_with_its_modules(stubs, caplog):
    async def say():
        server = ForkServer(launch_spec(), ["numpy"])
        os.write(stubs[0].errors, b"careful\n")
        await until_async(lambda: "careful" in caplog.text, "the line")
        server._on_lines_dropped(3, 9)
        server.close()

    with caplog.at_level(logging.INFO):
        run(say())
    assert "[prewarming numpy, pid 4242 stderr] careful" in caplog.text
    assert "prewarming numpy, pid 4242: 3 lines (9 bytes) of its output were dropped" in caplog.text


class Server:
    """Stands in for a fork server in a pool."""

    made: ClassVar[list[Any]] = []
    problem: Exception | None = None

    def __init__(self, spec: Any, modules: Any) -> None:
        if self.problem is not None:
            raise self.problem
        self.is_replaceable = self.is_ready = self.is_closed = False
        self.end, self.forks = "", 0
        self.made.append(self)

    async def fork(self, memory: Any, shared: Any) -> Any:
        self.forks += 1
        return shared

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def servers(monkeypatch) -> list[Any]:
    monkeypatch.setattr(prewarm, "ForkServer", Server)
    monkeypatch.setattr(Server, "made", [])
    monkeypatch.setattr(Server, "problem", None)
    return Server.made


async def test_models_share_a_fork_server_if_nothing_differs_that_imports_may_see(servers):
    pool = ForkServerPool()
    first, second = pool.guests_with(["numpy"]), pool.guests_with(["numpy"])
    spec = launch_spec()
    shared = replace(spec, inputs=object(), name="other")
    assert await first.fork(shared, None) is shared.inputs
    for changed in (
        {"python": Path("p")}, {"stub": Path("p")}, {"library": Path("p")}, {"environ": {"A": "1"}}, {"user": GuestUser(5, 5)}
    ):  # fmt: skip
        await second.fork(replace(spec, **changed), None)
    await pool.guests_with(["torch"]).fork(spec, None)
    assert len(servers) == 7
    await second.fork(spec, None)
    assert (len(servers), servers[0].forks) == (7, 2)
    first.release()
    assert not servers[0].is_closed
    second.release()
    second.release()
    assert [server.is_closed for server in servers] == [True] * 6 + [False]
    pool.lingers = True
    last = pool.guests_with(["numpy"])
    last.start_early(spec)
    last.release()
    assert (len(servers), servers[-1].is_closed) == (8, False), "models on demand may come back"
    pool.close_unused()
    assert servers[-1].is_closed
    assert repr(ForkServerPool()) == "<ForkServerPool []>"


async def test_a_fork_server_that_was_killed_is_replaced_but_not_again_and_again_while_it_imports(servers, caplog):
    pool = ForkServerPool()
    guests, spec = pool.guests_with(["numpy"]), launch_spec()
    await guests.fork(spec, None)
    await guests.fork(spec, None)
    assert len(servers) == 1
    for ready, count in [(False, 2), (False, 3), (True, 4), (False, 5), (False, 6), (False, 6), (False, 6)]:
        servers[-1].is_replaceable, servers[-1].is_ready, servers[-1].end = True, ready, "it was killed"
        await guests.fork(spec, None)
        assert len(servers) == count
    assert "it was killed; another one is started" in caplog.text


def test_prewarming_never_fails_a_start(servers, caplog, monkeypatch):
    async def fail():
        pool = ForkServerPool()
        guests, spec = pool.guests_with(["numpy", "torch"]), launch_spec()
        monkeypatch.setattr(Server, "problem", GuestExitedError("no interpreter"))
        assert await guests.fork(spec, None) is None
        guests.start_early(spec)
        with monkeypatch.context() as patch:
            patch.delattr(os, "pidfd_open")
            assert await guests.fork(spec, None) is None
            guests.start_early(spec)
        assert servers == []

    run(fail())
    start = "'m_0_0' is started without the prewarmed numpy, torch: "
    assert caplog.messages == [
        f"{start}no interpreter",
        "cannot start the prewarming process of 'm_0_0' early: no interpreter",
        f"{start}it needs pidfds, which Linux has since version 5.3",
    ]


# -- starts -----------------------------------------------------------------------------------------------------------


class Started:
    """Stands in for `subprocess.Popen`."""

    made: ClassVar[list[Any]] = []
    problem: OSError | None = None

    def __init__(self, argv: list[str], **options: Any) -> None:
        if self.problem is not None:
            raise self.problem
        self.argv, self.options, self.pid = argv, options, PID
        self.stdout, self.stderr = (
            io.BytesIO() if options[name] is not None else None for name in ("stdout", "stderr")
        )
        self.made.append(self)

    def wait(self) -> int:
        return 3


@pytest.fixture
def started(monkeypatch, swept) -> list[Any]:
    monkeypatch.setattr(launch.subprocess, "Popen", Started)
    monkeypatch.setattr(Started, "made", [])
    monkeypatch.setattr(Started, "problem", None)
    return Started.made


@pytest.mark.parametrize("more", [{}, {"user": GuestUser(7, 8)}, {"at_terminal": True}, {"server_id": "theirs"}])
def test_an_interpreter_is_started_with_its_model_its_sockets_and_its_own_variables(started, memory, more):
    shared = SimpleNamespace(descriptor=0, capacity=77, number=1)
    for inputs in (None, shared):
        spec = replace(launch_spec(), environ={"A": "1"}, inputs=inputs, **more)
        made = asyncio.run(launch.SYSTEM.launch(spec, memory))
        process = started.pop()
        options = dict(zip(process.argv[2::2], process.argv[3::2], strict=True))
        assert process.argv[:2] == ["nowhere", "nowhere"]
        assert list(options)[:2] == ["--instance", "--model"], "where lists of processes show them"
        assert (options["--instance"], options["--model"]) == ("m_0_0", "model.py")
        assert (options["--inputs-size"], options["--outputs-size"]) == (
            str(memory.inputs.capacity),
            str(memory.output_capacity),
        )
        assert (options["--host"], options["--unprivileged"]) == (str(os.getpid()), str(int("user" in more)))
        assert options.get("--shared-size") == (None if inputs is None else "77")
        passed = process.options["pass_fds"]
        assert len(passed) == 5 + (inputs is not None)
        assert {options[name] for name in ("--inputs", "--outputs")} <= {str(number) for number in passed}
        user = more.get("user")
        assert (process.options["user"], process.options["group"], process.options["extra_groups"]) == (
            (None, None, None) if user is None else (7, 8, ())
        )
        terminal = "at_terminal" in more
        assert process.options["stdin"] == (None if terminal else subprocess.DEVNULL)
        assert process.options["start_new_session"]
        assert [name for name, _ in made.output] == ([] if terminal else ["stdout", "stderr"])
        environ = process.options["env"]
        assert environ.pop("NAIAD_SERVER_ID") == more.get("server_id", launch.server_id())
        assert environ == {"A": "1", "NAIAD_STUB_LIBRARY": "nowhere", "NAIAD_GUEST_ID": "mark-000001.000000"}
        assert (made.pid, made.guest_id) == (PID, "mark-000001.000000")
        ended: list[int] = []
        made.reap(lambda status, _, ended=ended: ended.append(status))
        assert ended == [3]
        close(made)
    fork_server = launch.start_stub(spec, {"--fork-server": 5}, (5,), "id")
    assert fork_server.argv[2:4] == ["--fork-server", "5"]


def test_sockets_are_the_hosts_after_a_start_and_closed_after_a_failure():
    sockets = GuestSockets()
    with sockets as ends:
        assert len({*ends}) == 3
    own = (sockets.channel, sockets.side, sockets.bridges)
    assert [each.getblocking() for each in own] == [False] * 3
    assert sockets.bridges.recv(1) == b"", "what the guest sends there has no reader"
    for end in ends:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(end)
    for each in own:
        each.close()
    sockets = GuestSockets()
    with pytest.raises(KeyError), sockets:
        raise KeyError
    assert [each.fileno() for each in (sockets.channel, sockets.side, sockets.bridges)] == [-1] * 3


def test_an_interpreter_that_cannot_be_executed_is_explained(started, memory, monkeypatch):
    monkeypatch.setattr(launch, "explain_not_executable", lambda path: f"no {path}")
    monkeypatch.setattr(launch, "describe_denied_access", lambda user, paths: f"may not {len(paths)}")
    user = GuestUser(7, 8)
    denied = f". The guest runs as {user} (--guest-user), and may not 5"
    for code, spec, text in [
        (errno.EACCES, launch_spec(), "no nowhere"),
        (errno.EACCES, launch_spec(user=user), "no nowhere"),
        (errno.ENOENT, launch_spec(), "gone"),
        (errno.ENOENT, launch_spec(user=user), f"gone{denied}"),
    ]:
        monkeypatch.setattr(Started, "problem", OSError(code, "gone"))
        with pytest.raises(GuestExitedError) as caught:
            asyncio.run(launch.SYSTEM.launch(spec, memory))
        assert caught.value.message == f"cannot start 'm_0_0': nowhere: {text}"
    monkeypatch.setattr(launch, "describe_denied_access", lambda *_: "")
    assert launch.explain_denied_access(launch_spec(user=user)) == ""


def test_an_environment_that_was_removed_is_prepared_again_before_a_guest_is_forked_or_started(
    started, swept, memory, tmp_path, caplog
):
    python = tmp_path / "python"
    forked: list[Any] = [None]

    class Forker:
        async def fork(self, spec: Any, memory: Any) -> Any:
            return forked[0]

    def restore() -> None:
        python.write_text("")

    def fail() -> None:
        raise NaiadError("no archive")

    for restored, text in [(lambda: None, "has another content now; load the"), (fail, "'m_0_0': no archive")]:
        with pytest.raises(GuestExitedError, match=text):
            asyncio.run(launch.SYSTEM.launch(replace(launch_spec(restore=restored), python=python), memory))
    spec = replace(launch_spec(restore=restore, prewarm=Forker()), python=python)
    close(asyncio.run(launch.SYSTEM.launch(spec, memory)))
    assert (len(started), caplog.text.count("is gone from the store of environments")) == (1, 3)
    forked[0] = SimpleNamespace(guest_id="forked")
    assert asyncio.run(launch.SYSTEM.launch(spec, memory)) is forked[0]
    assert swept.calls[-1] == ("watch", "forked", "m_0_0")
    assert (len(started), caplog.text.count("is gone from the store of environments")) == (1, 3)


# -- the process of a guest -------------------------------------------------------------------------------------------


class Launched:
    """A guest that was launched; the test ends it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reading, self.writing = zip(*(os.pipe() for _ in range(2)), strict=True)
        self.pidfd, self.ends = os.pipe()
        self.reaped: list[Callable[[int, str], None]] = []
        monkeypatch.setattr(launch, "_spawn", self._spawn)
        monkeypatch.setattr(os, "pidfd_open", lambda pid: self.pidfd)

    def _spawn(self, spec: Any, memory: Any) -> LaunchedGuest:
        output = tuple(
            (name, os.fdopen(end, "rb", 0)) for name, end in zip(("stdout", "stderr"), self.reading, strict=True)
        )
        return LaunchedGuest(pid=PID, output=output, sockets="sockets", guest_id="id", reap=self.reaped.append)

    def close(self) -> None:
        for each in (*self.writing, self.ends):
            os.close(each)


async def test_a_guest_that_exits_is_killed_with_its_group_before_its_number_is_free(
    monkeypatch, swept, killed, caplog
):
    made = Launched(monkeypatch)
    process = GuestProcess(launch_spec(), asyncio.get_running_loop())
    process.kill()
    signals: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda *sent: signals.append(sent))
    process.send_signal(1)
    assert (process.is_running, killed, signals) == (False, [], [])
    lines, exits = [], []
    assert await process.spawn(None, lambda *line: lines.append(line), exits.append) == "sockets"
    assert (process.is_running, process.pid, swept.calls) == (True, PID, [("watch", "id", "m_0_0")])
    process.send_signal(1)
    process.kill()
    assert (signals, killed) == ([(PID, 1)], [PID])
    os.write(made.writing[0], b"out\n")
    os.write(made.writing[1], b"err\nlast")
    os.write(made.ends, b"x")
    await until_async(lambda: made.reaped, "its exit")
    assert (killed, swept.calls[1:]) == ([PID, PID], [("exit", "id")])
    process.kill()
    process.send_signal(1)
    assert (signals, killed) == ([(PID, 1)], [PID, PID]), "the number may be another process's"
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(made.pidfd)
    made.reaped[0](3, "")
    assert exits == [3]
    process.exited.set_result(3)
    made.reaped[0](3, "")
    assert (exits, process.is_running) == ([3], False)
    error = process.exit_report("while it started")
    assert lines == [("stdout", "out"), ("stderr", "err"), ("stderr", "last")]
    assert error.message == (
        "Stub process 'm_0_0' is not healthy. Reason: pid 4242 exited with status 3 while it started. Its last "
        "lines on stderr:\nerr\nlast"
    )
    assert (error.exit_status, error.last_lines) == (3, ("err", "last"))
    assert error.problem == error.message.partition(" Its last")[0]
    process.kill_reason = "it hangs"
    assert process.exit_report().problem.endswith("Reason: pid 4242 was killed: it hangs.")
    process._on_lines_dropped(2, 9)
    made.close()
    assert "'m_0_0' (pid 4242): 2 lines (9 bytes) of its output were dropped" in caplog.text


@pytest.mark.parametrize(
    ("limit", "status", "told", "reason", "expected"),
    [
        (True, wire.MEMORY_LIMIT_STATUS, "", "", "exceeded stub-memory-limit 1 GB"),
        (True, 3, "", "", ""),
        (False, wire.MEMORY_LIMIT_STATUS, "", "", ""),
        (True, wire.MEMORY_LIMIT_STATUS, "it hangs", "", "it hangs"),
        (False, -9, "", "its fork server is gone", "its fork server is gone"),
        (False, -9, "it hangs", "its fork server is gone", "it hangs"),
    ],
)
async def test_the_reason_of_an_exit_is_the_hosts_own_or_a_limit_or_that_of_its_parent(
    monkeypatch, limit, status, told, reason, expected
):
    monkeypatch.setattr(guest, "MEMORY_LIMIT", "stub-memory-limit")
    spec = launch_spec(memory_limit=MemoryLimit(10**9, "1 GB")) if limit else launch_spec()
    process = GuestProcess(spec, asyncio.get_running_loop())
    process._on_exit, process.kill_reason = lambda _: None, told
    process._on_reaped(status, reason)
    assert process.kill_reason == expected


async def test_a_guest_is_waited_for_on_a_thread_where_there_are_no_pidfds(monkeypatch, swept, killed):
    for broken in (lambda _: (_ for _ in ()).throw(OSError("no")), None):
        made = Launched(monkeypatch)
        waited: list[tuple[int, ...]] = []
        monkeypatch.setattr(os, "waitid", lambda *how, waited=waited: waited.append(how))
        if broken is None:
            monkeypatch.delattr(os, "pidfd_open")
        else:
            monkeypatch.setattr(os, "pidfd_open", broken)
        process = GuestProcess(launch_spec(), asyncio.get_running_loop())
        await process.spawn(None, lambda *_: None, lambda _: None)
        await until_async(lambda made=made: made.reaped, "its exit")
        assert waited == [(os.P_PID, PID, os.WEXITED | os.WNOWAIT)]
        process.close()
        os.close(made.pidfd)
        made.close()


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (None, "pid 7 is gone"), (0, "pid 7 exited with status 0"), (-11, "pid 7 was killed by SIGSEGV"),
        (-9, "pid 7 was killed by SIGKILL (out of memory?)"), (-99, "pid 7 was killed by signal 99"),
    ],
)  # fmt: skip
def test_an_exit_is_described(status, text):
    assert describe_exit(7, status) == text


def test_messages_and_processor_time_are_progress():
    used = [5.0]
    monitor = ProgressMonitor(10, lambda _: used[0])
    monitor.start(7, 100)
    assert [monitor.is_stalled(now) for now in (101, 111, 111.1)] == [False, False, True]
    monitor.record(120)
    assert [monitor.is_stalled(now) for now in (130, 130.1)] == [False, True]
    used[0] = 5.1
    assert [monitor.is_stalled(now) for now in (140, 150, 150.1)] == [False, False, True]


def test_the_processor_time_of_a_process_is_all_that_it_used(monkeypatch):
    from naiad.guests.process import cpu_seconds_of

    monkeypatch.setattr(
        psutil, "Process", lambda _: SimpleNamespace(cpu_times=lambda: SimpleNamespace(user=2, system=1))
    )
    assert cpu_seconds_of(7) == 3
    monkeypatch.setattr(psutil, "Process", lambda pid: (_ for _ in ()).throw(psutil.NoSuchProcess(pid)))
    assert cpu_seconds_of(7) == 0


# -- the sweeper ------------------------------------------------------------------------------------------------------


@pytest.fixture
def sweeping(monkeypatch):
    """A sweeper and the processes that it starts, which write to pipes of the test."""
    made: ClassVar[list[Any]] = []

    class Process:
        def __init__(self, argv: list[str], **options: Any) -> None:
            reading, writing = os.pipe()
            self.argv, self.options, self.reading = argv, options, reading
            self.stdin = os.fdopen(writing, "wb", 0)
            self.stdout = io.BytesIO()  # what reads it is a thread, which may outlive the test
            self.ends: list[Any] = []
            made.append(self)

        def wait(self, timeout: float | None = None) -> int:
            self.ends.append(timeout)
            if len(self.ends) == 1 and timeout == -1:
                raise subprocess.TimeoutExpired("sweeper", 1)
            return 0

        def kill(self) -> None:
            self.ends.append("kill")

        def heard(self) -> bytes:
            os.set_blocking(self.reading, False)
            try:
                return os.read(self.reading, 999)
            except BlockingIOError:
                return b""

    monkeypatch.setattr(sweeper.subprocess, "Popen", Process)
    yield sweeper.ProcessSweeper(), made
    for each in made:
        each.stdin.close()
        os.close(each.reading)


def test_the_sweeper_is_told_of_each_exit_once_and_ends_with_the_last_guest(sweeping, monkeypatch):
    swept, made = sweeping
    monkeypatch.setenv("LD_LIBRARY_PATH", "/lib")
    ids = [swept.new_id() for _ in range(2)]
    assert [each.partition("-")[2] for each in ids] == ["000001.000000", "000002.000000"]
    assert len(swept._marker) == 16
    swept.close()
    swept.on_exit(ids[0])
    assert made == [], "no guest was started"
    for each in ids:
        swept.watch(each, "m_0_0")
    [process] = made
    assert process.argv[-2:] == [swept._marker, str(os.getpid())]
    assert process.argv[1:3] == ["-I", "-S"]
    assert (process.options["env"], process.options["start_new_session"]) == ({"LD_LIBRARY_PATH": "/lib"}, True)
    assert not os.get_blocking(process.stdin.fileno())
    swept.on_exit(ids[0])
    swept.on_exit(ids[0])
    assert process.heard() == f"{ids[0]} m_0_0\n".encode()
    swept.close()
    assert process.ends == [], "a guest runs"
    swept.on_exit(ids[1])
    process.heard()
    swept.close()
    assert (process.ends, process.stdin.closed, process.heard()) == ([5.0], True, b"")
    swept.watch(ids[0], "m_0_0")
    assert len(made) == 2
    monkeypatch.setattr(sweeper, "_END_SECONDS", -1)
    swept.on_exit(ids[0])
    swept.close()
    assert made[1].ends == [-1, "kill", None]


def test_a_sweeper_that_was_killed_is_replaced_a_limited_number_of_times(sweeping, monkeypatch):
    swept, made = sweeping
    swept.watch("a", "m")
    for number in range(1, 20):
        os.close(made[-1].reading)
        made[-1].reading = os.open(os.devnull, os.O_RDONLY)
        swept.watch(f"{number}", "m")
        swept.on_exit(f"{number}")
        assert (len(made), made[-2].ends, made[-2].stdin.closed) == (number + 1, ["kill", None], True)
        assert made[-1].heard() == f"{number} m\n".encode()
    os.close(made[-1].reading)
    made[-1].reading = os.open(os.devnull, os.O_RDONLY)
    swept.watch("last", "m")
    swept.on_exit("last")
    swept.watch("more", "m")
    assert len(made) == 20


def test_a_sweeper_that_cannot_be_started_is_tried_once(sweeping, monkeypatch, caplog):
    swept, _ = sweeping
    tries: list[int] = []

    def fail(*_args: Any, **_more: Any) -> None:
        tries.append(1)
        raise OSError(errno.ENOENT, "gone")

    monkeypatch.setattr(sweeper.subprocess, "Popen", fail)
    for each in ("a", "b"):
        swept.watch(each, "m")
        swept.on_exit(each)
    assert tries == [1]
    assert f"cannot start the process that ends what models leave behind: {sys.executable}: gone" in caplog.text


def test_a_system_without_proc_has_no_sweeper(sweeping, monkeypatch):
    swept, made = sweeping
    monkeypatch.setattr(Path, "exists", lambda _: False)
    swept.watch("a", "m")
    swept.on_exit("a")
    assert made == []


def test_what_the_sweeper_reports_is_logged_and_a_fork_of_the_host_has_none_of_it(sweeping, caplog):
    swept, _ = sweeping
    swept._report(SimpleNamespace(stdout=io.BytesIO(b"3 m_0_0\n")))
    assert caplog.messages == ["'m_0_0' left 3 processes behind, which were killed"]
    swept._names, swept._process, marker = {"a": "m"}, object(), swept._marker
    swept._forget()
    assert (swept._names, swept._process, swept._marker != marker) == ({}, None, True)


# -- access, readiness, completion ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("owner", "mode", "folder_mode", "denied"),
    [
        ((7, 0), 0o400, 0o755, ""),
        ((7, 8), 0o040, 0o755, "read"),
        ((0, 8), 0o040, 0o755, ""),
        ((0, 8), 0o404, 0o755, "read"),
        ((0, 0), 0o004, 0o755, ""),
        ((0, 0), 0o440, 0o755, "read"),
        ((0, 0), 0o004, 0o754, "enter"),
    ],
)
def test_denied_access_is_explained_by_owner_and_mode(tmp_path, monkeypatch, owner, mode, folder_mode, denied):
    folder, file = tmp_path / "folder", tmp_path / "folder" / "file"
    folder.mkdir()
    file.write_text("")
    real = Path.stat
    facts = {folder: (0, 0, stat.S_IFDIR | folder_mode), file: (*owner, stat.S_IFREG | mode)}

    def found(path: Path, **more: Any) -> Any:
        result = real(path, **more)
        uid, gid, bits = facts.get(path, (0, 0, stat.S_IFMT(result.st_mode) | 0o755))
        return SimpleNamespace(st_uid=uid, st_gid=gid, st_mode=bits)

    monkeypatch.setattr(Path, "stat", found)
    text = access.describe_denied_access(GuestUser(7, 8), [tmp_path / "none", folder, file])
    if denied:
        place = file if denied == "read" else folder
        assert text.startswith(f"may not {denied} {place} ({stat.filemode(facts[place][2])}, owner ")
        assert access.describe_denied_access(GuestUser(0, 0), [file]) == "", "root may"
    else:
        assert text == ""
    facts[folder] = (0, 0, stat.S_IFDIR | 0o751)
    assert "may not enter" in access.describe_denied_access(GuestUser(7, 8), [folder])


async def test_callers_share_one_query_of_readiness(monkeypatch):
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    probe = ReadinessProbe(ours, "m_0_0")
    assert probe.keep_if(True) is probe

    async def answered(*said: Any) -> list[Any]:
        asked = [asyncio.ensure_future(probe.ask()) for _ in range(2)]
        await turns()
        theirs.setblocking(False)
        assert wire.FRAME.unpack_from(theirs.recv(999))[0] == 8, "one query"
        with pytest.raises(BlockingIOError):
            theirs.recv(999)
        for each in said:
            theirs.send(pack(each))
        return [error and error.message for error in await asyncio.gather(*asked, return_exceptions=True)]

    not_ready = "Model 'm_0_0' is not ready (user-defined check failed)."
    assert await answered(Readiness(1, True, "")) == [None, None]
    assert await answered(Readiness(1, True, ""), Readiness(2, False, "")) == [not_ready] * 2
    assert await answered(Readiness(3, False, "warming")) == [f"{not_ready} warming"] * 2
    with monkeypatch.context() as patch:
        patch.setattr(readiness, "TIMEOUT_SECONDS", 0.001)
        for what in ("user-defined", "in-flight"):
            with pytest.raises(NotReadyError, match=f"Timed out waiting for {what} is_ready"):
                await probe.ask()
    theirs.send(pack(Readiness(4, True, "")))
    await until_async(lambda: probe._reply is None, "the late reply")
    theirs.recv(999)
    asked = asyncio.ensure_future(probe.ask())
    await turns()
    theirs.send(wire.frame(77, b""))
    with pytest.raises(NotReadyError):
        await asked
    with pytest.raises(NotReadyError):
        await probe.ask()
    assert probe._channel._socket is None
    theirs.close()
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    assert ReadinessProbe(ours, "m").keep_if(False) is None
    assert theirs.recv(1) == b""
    theirs.close()


def test_a_model_that_completes_its_configuration_has_no_server(monkeypatch, caplog):
    class Worker:
        def __init__(self, spec: Any, delegate: Any, interface: Any, services: Any) -> None:
            self.spec, self.delegate, self.services, self.pid = spec, delegate, services, PID
            self.sent: list[Any] = []
            self.send_result = self.reply = lambda *sent, **more: self.sent.append((*sent, *more.values()))

        async def start(self) -> str:
            self.services.on_call(self, SimpleNamespace(number=5, request=SimpleNamespace(model_name="other")))
            self.services.on_query(self, 6, "model.load", {})
            self.delegate.log.on_log_record(self, 1, "model.py", 7, "careful")
            self.delegate.log.on_output_line(self, "stdout", "hello")
            for each in (
                self.services.is_calling(self),
                self.delegate.requests.is_refill_urgent(1),
                self.delegate.requests.is_held_back(self),
            ):
                assert each is False
            assert self.delegate.requests.request_of(1) is None
            return "{}"

        async def kill(self) -> None:
            ended.append(self)

    ended: list[Worker] = []
    monkeypatch.setattr(completion, "Worker", Worker)
    with caplog.at_level(logging.INFO):
        assert asyncio.run(completion.complete_in_guest(launch_spec())) == "{}"
    [worker] = ended
    (number, response, final), (query, error) = worker.sent
    assert (number, response.model_name, final, query) == (5, "other", True, 6)
    assert response.error.message == error.message
    assert error.message.startswith("the server does nothing for a model that is completing its configuration")
    assert "careful" in caplog.text
    assert "hello" in caplog.text
