"""Workers against real guest processes: their start, their work, and every way in which they end."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import select
import signal
from pathlib import Path

import psutil
import pytest
from naiad.errors import GuestDiedError, ModelError, ProtocolError
from naiad_stub import wire

from .guests import IDENTITY, guest, is_running, launch_spec, request, run, until


async def started(spec):
    worker, owner = guest(spec)
    assert await worker.start() == ""
    return worker, owner


def test_guest_answers_what_it_is_sent(tmp_path):
    async def serve():
        worker, owner = await started(launch_spec(tmp_path, IDENTITY))
        for key in range(1, 6):
            worker.execute([(key, request(key, key + 0.5))])
        assert worker.python.count(".") == 2
        await until(lambda: len(owner.done) == 5, "five batches")
        assert [answer.key for answer in owner.answers] == [1, 2, 3, 4, 5]
        assert [list(output) for output in owner.outputs()] == [[k, k + 0.5] for k in range(1, 6)]
        assert (worker.batches, worker.memory.inputs.in_use) == ({}, 0)
        await worker.stop(10)
        assert owner.deaths == []
        return worker

    assert not is_running(run(serve()).pid)


def test_model_that_fails_to_initialize_says_why_with_its_traceback(tmp_path):
    async def start():
        worker, _ = guest(launch_spec(tmp_path, "def initialize(self, args):\n    self.x = lorem_ipsum\n"))
        with pytest.raises(ModelError, match="name 'lorem_ipsum' is not defined") as caught:
            await worker.start()
        assert "model.py" in caught.value.traceback_text
        assert "self.x = lorem_ipsum" in caught.value.traceback_text
        return worker.pid

    assert not is_running(run(start()))


@pytest.mark.parametrize(
    ("methods", "end"),
    [
        ("def initialize(self, args):\n    print('so long', file=sys.stderr); os._exit(3)", "exited with status 3"),
        ("def initialize(self, args):\n    print('so long', file=sys.stderr); os.abort()", "was killed by SIGABRT"),
    ],
)
def test_guest_that_dies_while_it_starts_is_reported_with_its_last_lines(tmp_path, methods, end):
    async def start():
        worker, owner = guest(launch_spec(tmp_path, methods))
        with pytest.raises(GuestDiedError, match=rf"Stub process 'm_0_0' is not healthy: pid \d+ {end}") as caught:
            await worker.start()
        assert caught.value.message.endswith("while it started. Its last lines on stderr:\nso long")
        assert caught.value.last_lines == ("so long",)
        assert owner.deaths == []

    run(start())


def test_guest_that_is_ready_and_gone_at_once_does_not_count_as_started(tmp_path):
    """Its word and its end may reach the loop in one turn; then nobody would hear of the end."""

    async def start():
        loop = asyncio.get_running_loop()
        worker, owner = guest(launch_spec(tmp_path, IDENTITY))
        take = worker._take

        def take_and_see_the_end(kind, payload):
            take(kind, payload)
            if kind == wire.Kind.READY:
                os.kill(worker.pid, signal.SIGKILL)
                os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
                worker._reap()

        worker._take = take_and_see_the_end
        with pytest.raises(GuestDiedError, match="was killed by SIGKILL"):
            await asyncio.wait_for(worker.start(), 10)
        assert owner.deaths == []
        assert loop.is_running()

    run(start())


def test_guest_that_makes_no_progress_is_killed_after_the_start_timeout(tmp_path):
    async def start():
        spec = launch_spec(
            tmp_path, "def initialize(self, args):\n    os.kill(os.getpid(), signal.SIGSTOP)", start_timeout=0.7
        )
        worker, _ = guest(spec)
        text = (
            r"Stub process 'm_0_0' is not healthy: it made no progress for 0\.7 s .*stub-timeout-seconds.* was killed"
        )
        with pytest.raises(GuestDiedError, match=text):
            await worker.start()
        return worker.pid

    assert not is_running(run(start()))


def test_slow_but_living_initialize_is_waited_for(tmp_path):
    async def start():
        worker, _ = await started(
            launch_spec(tmp_path, "def initialize(self, args):\n    time.sleep(2)", start_timeout=1.2)
        )
        await worker.kill()

    run(start())


def test_start_that_is_cancelled_leaves_no_process(tmp_path):
    async def start():
        worker, owner = guest(launch_spec(tmp_path, "def initialize(self, args):\n    print('in'); time.sleep(60)"))
        task = asyncio.ensure_future(worker.start())
        await until(lambda: owner.lines, "initialize to be running")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return worker.pid

    assert not is_running(run(start()))


def test_interpreter_that_cannot_be_executed_is_named(tmp_path):
    async def start():
        spec = dataclasses.replace(launch_spec(tmp_path, IDENTITY), python=tmp_path / "bin" / "python")
        worker, _ = guest(spec)
        with pytest.raises(GuestDiedError, match=r"cannot start 'm_0_0': .*bin/python: No such file or directory"):
            await worker.start()

    run(start())


def test_stopping_runs_finalize_and_what_comes_after_it(tmp_path):
    """Also exit handlers: a guest that closes its channel while it ends is not cut short."""
    methods = f"""
def initialize(self, args):
    import atexit
    atexit.register(lambda: (time.sleep(0.3), open({str(tmp_path / "after")!r}, "w").close()))

def finalize(self):
    print("finalized")
    open({str(tmp_path / "final")!r}, "w").close()
{IDENTITY}"""

    async def stop():
        worker, owner = await started(launch_spec(tmp_path, methods))
        await worker.stop(10)
        assert owner.deaths == []
        assert ("stdout", "finalized") in owner.lines

    run(stop())
    assert (tmp_path / "final").exists()
    assert (tmp_path / "after").exists()


def test_finalize_that_hangs_is_cut_short(tmp_path):
    async def stop():
        worker, _ = await started(launch_spec(tmp_path, "def finalize(self):\n    time.sleep(60)"))
        await worker.stop(0.2)
        return worker.pid

    assert not is_running(run(stop()))


def test_killing_ends_what_the_model_started_too(tmp_path):
    methods = """
def initialize(self, args):
    import subprocess
    child = subprocess.Popen(["sh", "-c", "sleep 300 & echo $!; wait"])
    print(child.pid)
"""

    async def kill():
        worker, owner = await started(launch_spec(tmp_path, methods))
        await until(lambda: len(owner.lines) == 2, "both pids")
        pids = [worker.pid, *(int(line) for _, line in owner.lines)]
        assert all(map(is_running, pids))
        await worker.kill()
        await until(lambda: not any(map(is_running, pids)), "all processes to end")

    run(kill())


def test_model_may_terminate_processes_it_started(tmp_path):
    """The guest itself outlives SIGTERM; what it starts must not inherit that."""
    methods = """
def initialize(self, args):
    import multiprocessing, subprocess
    fork = multiprocessing.get_context("fork")
    forked = fork.Process(target=time.sleep, args=(300,))
    forked.start()
    started = subprocess.Popen(["sleep", "300"])
    forked.terminate()
    started.terminate()
    forked.join()
    print(forked.exitcode, started.wait())
"""

    async def serve():
        worker, owner = guest(launch_spec(tmp_path, methods))
        await asyncio.wait_for(worker.start(), 10)
        os.kill(worker.pid, signal.SIGTERM)
        os.kill(worker.pid, signal.SIGINT)
        await until(lambda: ("stdout", "-15 -15") in owner.lines, "exit codes")
        await worker.stop(5)
        assert owner.deaths == []

    run(serve())


DIES = """
def execute(self, requests):
    value = pb_utils.get_input_tensor_by_name(requests[0], "IN").as_numpy()[0]
    if value < 0:
        print("the end is near", file=sys.stderr)
        os.kill(os.getpid(), signal.SIGSEGV)
    return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", pb_utils.get_input_tensor_by_name(r, "IN").as_numpy())])
            for r in requests]
"""


def test_death_amid_a_request_is_told_once_with_signal_and_last_lines(tmp_path):
    async def die():
        worker, owner = await started(launch_spec(tmp_path, DIES))
        worker.execute([(1, request(1))])
        worker.execute([(2, request(-1))])
        worker.execute([(3, request(3))])
        await until(lambda: owner.deaths, "the death")
        [error] = owner.deaths
        assert "was killed by SIGSEGV" in error.message
        assert error.exit_status == -signal.SIGSEGV
        assert "the end is near" in error.last_lines
        assert [answer.key for answer in owner.answers] == [1]
        assert [batch.keys for batch in worker.batches.values()] == [[2], [3]]
        assert all(batch.sent for batch in worker.batches.values())

    run(die())


def test_request_sent_after_the_last_answer_of_a_guest_that_is_gone_counts_as_not_begun(tmp_path):
    async def die():
        worker, owner = await started(launch_spec(tmp_path, IDENTITY))
        batch_done = owner.batch_done

        def send_another(worker, batch, started, ended):
            batch_done(worker, batch, started, ended)
            if batch.keys == [1]:
                worker.execute([(2, request(2))])

        owner.batch_done = send_another
        worker._loop.remove_reader(worker._channel._socket)
        worker.execute([(1, request(1))])
        # The answer lies in the socket, unread, when the guest ends.
        await until(lambda: _readable(worker._channel._socket), "the answer")
        os.kill(worker.pid, signal.SIGKILL)
        await until(lambda: owner.deaths, "the death")
        assert [answer.key for answer in owner.answers] == [1]
        assert [(batch.keys, batch.sent) for batch in worker.batches.values()] == [([2], 0)]

    run(die())


def _readable(sock) -> bool:
    return bool(select.select([sock], [], [], 0)[0])


def test_child_that_keeps_the_socket_open_does_not_hide_a_death(tmp_path):
    methods = """
def initialize(self, args):
    if os.fork() == 0:
        os.setsid()
        time.sleep(20)
        os._exit(0)

def execute(self, requests):
    os._exit(7)
"""

    async def die():
        worker, owner = await started(launch_spec(tmp_path, methods))
        children = [child.pid for child in psutil.Process(worker.pid).children()]
        worker.execute([(1, request(1))])
        await until(lambda: owner.deaths, "the death")
        assert "exited with status 7" in owner.deaths[0].message
        for child in children:
            os.kill(child, signal.SIGKILL)

    run(die())


def test_guest_that_closes_its_channel_is_killed_and_told_so(tmp_path):
    methods = """
def execute(self, requests):
    import socket
    for number in range(3, 50):
        try:
            socket.socket(fileno=number).shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
    time.sleep(60)
"""

    async def die():
        worker, owner = await started(launch_spec(tmp_path, methods))
        worker.execute([(1, request(1))])
        await until(lambda: owner.deaths, "the death")
        assert "was killed: it closed its channel" in owner.deaths[0].message

    run(die())


def test_uncaught_error_of_the_stub_keeps_its_exit_code(tmp_path):
    """Not SIGKILL, which reads as if the memory had run out."""

    async def die():
        worker, owner = await started(launch_spec(tmp_path, IDENTITY))
        worker._send(wire.frame(wire.Kind.EXECUTE, b"nonsense"))
        await until(lambda: owner.deaths, "the death")
        assert "exited with status 1" in owner.deaths[0].message
        assert any("struct.error" in line for line in owner.deaths[0].last_lines)

    run(die())


@pytest.mark.parametrize(
    "frame",
    [
        wire.frame(77, b""),
        wire.frame(wire.Kind.RESPONSES, b"short"),
        wire.frame(wire.Kind.RESPONSES, wire.RESPONSES_HEAD.pack(99, 0, 0, 0, 0)),
        wire.frame(wire.Kind.LOG, b"\xff" * 9),
    ],
    ids=["unknown kind", "short responses", "unknown batch", "malformed log"],
)
def test_guest_that_breaks_the_protocol_is_killed_and_told_so(tmp_path, frame):
    methods = f"""
def execute(self, requests):
    import socket
    number = int(sys.argv[sys.argv.index("--socket") + 1])
    os.write(number, {frame!r})
    time.sleep(60)
"""

    async def die():
        worker, owner = await started(launch_spec(tmp_path, methods))
        worker.execute([(1, request(1))])
        await until(lambda: owner.deaths, "the death")
        assert "was killed: it broke the protocol: " in owner.deaths[0].message

    run(die())


def test_error_in_the_owner_costs_the_guest_and_not_the_server(tmp_path, caplog):
    async def die():
        worker, owner = await started(launch_spec(tmp_path, IDENTITY))

        def broken(*_):
            raise ZeroDivisionError("a fault of ours")

        owner.answered = broken
        worker.execute([(1, request(1))])
        await until(lambda: owner.deaths, "the death")
        assert "its message could not be handled: a fault of ours" in owner.deaths[0].message

    run(die())
    assert "ZeroDivisionError" in caplog.text


def test_stub_of_another_protocol_is_refused_with_both_versions(tmp_path, monkeypatch):
    monkeypatch.setattr("naiad.workers.worker.wire.PROTOCOL_VERSION", 99)

    async def start():
        worker, _ = guest(launch_spec(tmp_path, IDENTITY))
        with pytest.raises(ProtocolError, match=r"the stub .* speaks protocol 1, this server 99: remove it or copy"):
            await worker.start()
        return worker.pid

    assert not is_running(run(start()))


def test_lines_arrive_whole_from_both_streams(tmp_path):
    methods = """
def initialize(self, args):
    print("one\\ntwo")
    print("\\u00e4\\u00f6", end="", flush=True)
    print("three", file=sys.stderr)
    os.write(1, b"\\xff\\r\\nunended")
    pb_utils.Logger.log_warn("careful \\ud800")
    print("x" * 50_000, file=sys.stderr)
"""

    async def serve():
        worker, owner = await started(launch_spec(tmp_path, methods))
        await worker.stop(5)
        out = [line for stream, line in owner.lines if stream == "stdout"]
        err = [line for stream, line in owner.lines if stream == "stderr"]
        assert out == ["one", "two", "\u00e4\u00f6\ufffd", "unended"]
        assert err[0] == "three"
        assert "".join(err[1:]) == "x" * 50_000
        assert [(level, Path(file).name, text) for level, file, text in owner.logged] == [
            (1, "model.py", "careful \\ud800")
        ]

    run(serve())


def test_guest_keeps_one_channel_through_a_million_bytes_of_messages(tmp_path):
    """A message longer than the socket takes at once, both ways."""
    methods = """
def execute(self, requests):
    for request in requests:
        pb_utils.Logger.log_info(request.request_id() * 2)
    return [pb_utils.InferenceResponse(error=pb_utils.TritonError("e" * 2_000_000)) for _ in requests]
"""

    async def serve():
        worker, owner = await started(launch_spec(tmp_path, methods))
        asked = request(1)
        asked.parameters = {"long": "p" * 3_000_000}
        asked.request_id = "i" * 60_000
        worker.execute([(1, asked)])
        await until(lambda: owner.done, "the answer")
        assert owner.answers[0].response.error.message == "e" * 2_000_000
        assert owner.logged[0][2] == "i" * 120_000
        await worker.kill()

    run(serve())


def test_completing_returns_the_configuration(tmp_path):
    methods = """
@staticmethod
def auto_complete_config(config):
    config.set_max_batch_size(7)
    return config
"""

    async def complete():
        worker, _ = guest(
            launch_spec(tmp_path, methods, mode="complete", model_config='{"name": "m", "max_batch_size": 0}')
        )
        try:
            return await worker.start()
        finally:
            await worker.kill()

    assert '"max_batch_size": 7' in run(complete())


def test_request_that_a_dying_guest_never_read_counts_as_not_begun(tmp_path):
    """Killed while it was idle, a guest holds nothing, whatever is sent before its end is known."""

    async def die():
        worker, owner = await started(launch_spec(tmp_path, IDENTITY))
        os.kill(worker.pid, signal.SIGSTOP)
        worker.execute([(1, request(1))])
        os.kill(worker.pid, signal.SIGKILL)
        await until(lambda: owner.deaths, "the death")
        assert [(batch.keys, batch.sent) for batch in worker.batches.values()] == [([1], 0)]

    run(die())
