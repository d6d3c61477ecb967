"""Workers against real guest processes: their work, and every way in which they die."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest
from naiad_stub import wire
from support.waiting import until_async

from .guests import IDENTITY, guest, is_running, launch_spec, request, started

pytestmark = pytest.mark.server


async def test_a_guest_answers_its_requests(tmp_path):
    worker, delegate = await started(launch_spec(tmp_path, IDENTITY))
    for key in range(1, 6):
        worker.execute([(key, request(key, key + 0.5), None)], 1)
    assert worker.python.count(".") == 2
    await until_async(lambda: len(delegate.done) == 5, "five batches")
    assert [answer.key for answer in delegate.answers] == [1, 2, 3, 4, 5]
    assert [list(output) for output in delegate.outputs()] == [[k, k + 0.5] for k in range(1, 6)]
    assert (worker.batches, worker.memory.inputs.in_use) == ({}, 0)
    await worker.stop(10)
    assert delegate.deaths == []
    assert not is_running(worker.pid)


DIES = """
def execute(self, requests):
    value = pb_utils.get_input_tensor_by_name(requests[0], "IN").as_numpy()[0]
    if value < 0:
        print("the end is near", file=sys.stderr)
        os.kill(os.getpid(), signal.SIGSEGV)
    return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", pb_utils.get_input_tensor_by_name(r, "IN").as_numpy())])
            for r in requests]
"""


async def test_an_exit_during_a_request_is_reported_once_with_signal_and_last_lines(tmp_path):
    worker, delegate = await started(launch_spec(tmp_path, DIES))
    worker.execute([(1, request(1), None)], 1)
    worker.execute([(2, request(-1), None)], 1)
    worker.execute([(3, request(3), None)], 1)
    await until_async(lambda: delegate.deaths, "the death")
    [error] = delegate.deaths
    assert "was killed by SIGSEGV" in error.message
    assert error.exit_status == -signal.SIGSEGV
    assert "the end is near" in error.last_lines
    assert [answer.key for answer in delegate.answers] == [1]
    assert [batch.keys for batch in worker.batches.values()] == [[2], [3]]
    assert all(batch.sent for batch in worker.batches.values())


async def test_a_child_that_keeps_the_socket_open_does_not_hide_the_exit_of_its_guest(tmp_path):
    methods = """
def initialize(self, args):
    if os.fork() == 0:
        os.setsid()
        time.sleep(20)
        os._exit(0)

def execute(self, requests):
    os._exit(7)
"""
    worker, delegate = await started(launch_spec(tmp_path, methods))
    children = [child.pid for child in psutil.Process(worker.pid).children()]
    worker.execute([(1, request(1), None)], 1)
    await until_async(lambda: delegate.deaths, "the death")
    assert "exited with status 7" in delegate.deaths[0].message
    for child in children:
        os.kill(child, signal.SIGKILL)


async def test_uncaught_error_of_the_stub_keeps_its_exit_code(tmp_path):
    """Not SIGKILL, which reads as if the memory had run out."""
    worker, delegate = await started(launch_spec(tmp_path, IDENTITY))
    worker._send(wire.frame(wire.Kind.EXECUTE, b"nonsense"))
    await until_async(lambda: delegate.deaths, "the death")
    assert "exited with status 1" in delegate.deaths[0].message
    assert any("struct.error" in line for line in delegate.deaths[0].last_lines)


async def test_lines_arrive_whole_from_both_streams(tmp_path):
    methods = """
def initialize(self, args):
    print("one\\ntwo")
    print("\\u00e4\\u00f6", end="", flush=True)
    print("three", file=sys.stderr)
    os.write(1, b"\\xff\\r\\nunended")
    pb_utils.Logger.log_warn("careful \\ud800")
    print("x" * 50_000, file=sys.stderr)
"""
    worker, delegate = await started(launch_spec(tmp_path, methods))
    await worker.stop(5)
    out = [line for stream, line in delegate.lines if stream == "stdout"]
    err = [line for stream, line in delegate.lines if stream == "stderr"]
    assert out == ["one", "two", "\u00e4\u00f6\ufffd", "unended"]
    assert err[0] == "three"
    assert err[1:] == ["x" * 16384 + " ... [the line is cut after 16384 bytes]"]
    assert [(level, Path(file).name, text) for level, file, text in delegate.logged] == [
        (1, "model.py", "careful \\ud800")
    ]


async def test_guest_keeps_one_channel_through_a_million_bytes_of_messages(tmp_path):
    """A message longer than the socket takes at once, both ways."""
    methods = """
def execute(self, requests):
    for request in requests:
        pb_utils.Logger.log_info(request.request_id())
    return [pb_utils.InferenceResponse(parameters={"long": "e" * 2_000_000}) for _ in requests]
"""
    worker, delegate = await started(launch_spec(tmp_path, methods))
    asked = request(1)
    asked.parameters = {"long": "p" * 3_000_000}
    asked.request_id = "i" * 30_000
    worker.execute([(1, asked, None)], 1)
    await until_async(lambda: delegate.done, "the answer")
    assert delegate.answers[0].response.parameters == {"long": "e" * 2_000_000}
    assert delegate.logged[0][2] == f"[request id: {'i' * 128}...] {'i' * 30_000}"
    await worker.kill()


async def test_completing_returns_the_configuration(tmp_path):
    methods = """
@staticmethod
def auto_complete_config(config):
    config.set_max_batch_size(7)
    return config
"""
    given = '{"name": "m", "max_batch_size": 0}'
    worker, _ = guest(launch_spec(tmp_path, methods, completes_config=True, model_config=given))
    assert '"max_batch_size": 7' in await worker.start()
    await worker.kill()
