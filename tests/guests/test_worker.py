"""Workers against real guest processes: their work, and every way in which they die."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
from naiad_stub import wire
from support.waiting import until_async

from naiad.protocol.datatypes import Datatype
from naiad.protocol.inference import InferRequest, InputTensor

from .guests import IDENTITY, PLAN, guest, is_running, launch_spec, request, run, started

pytestmark = pytest.mark.server


def test_a_guest_answers_its_requests(tmp_path):
    async def serve():
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
        return worker

    assert not is_running(run(serve()).pid)


def test_a_guest_that_hangs_is_reported_before_it_is_killed(tmp_path):
    async def serve():
        spec = replace(launch_spec(tmp_path, "def execute(self, requests):\n    time.sleep(60)"), hang_seconds=0.2)
        worker, delegate = await started(spec)
        reports = []
        delegate.on_hang = lambda worker: reports.append(("hangs", worker.is_hung, is_running(worker.pid)))
        delegate.is_held_back = lambda _: False
        delegate.on_exit = lambda _, error: reports.append(error.label)
        worker.watch()
        worker.execute([(1, request(1), None)], 1)
        await until_async(lambda: len(reports) == 2, "its end")
        return reports

    assert run(serve()) == [("hangs", True, True), "hang"]


DIES = """
def execute(self, requests):
    value = pb_utils.get_input_tensor_by_name(requests[0], "IN").as_numpy()[0]
    if value < 0:
        print("the end is near", file=sys.stderr)
        os.kill(os.getpid(), signal.SIGSEGV)
    return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", pb_utils.get_input_tensor_by_name(r, "IN").as_numpy())])
            for r in requests]
"""


ERROR_FOR_NEGATIVE = """
    def execute(self, requests):
        answers = []
        for request in requests:
            value = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            if value[0] < 0:
                answers.append(pb_utils.InferenceResponse([], pb_utils.TritonError("it is negative")))
            else:
                answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", value)]))
        return answers
"""


def test_bytes_that_are_forwarded_come_back_as_the_guest_wrote_them(tmp_path):
    """The first response of a layout is checked like any other, and an error is one."""

    async def forward():
        worker, delegate = await started(launch_spec(tmp_path, ERROR_FOR_NEGATIVE))
        packed = PLAN.pack_inputs(request(1.0, 2.0))
        for key, values in ((1, (1.0, 2.0)), (2, (3.0, 4.0)), (3, (-1.0, 0.0)), (4, (5.0, 6.0))):
            worker.forward(key, b"id", packed[0], np.array(values, "<f4").tobytes(), 1, time.monotonic_ns())
            await until_async(lambda key=key: (key,) in delegate.done, "the batch")
        assert [(answer.key, answer.response.error is None) for answer in delegate.answers] == [(1, True), (3, False)]
        assert delegate.answers[1].response.error.message == "it is negative"
        assert [each.key for each in delegate.forwarded] == [2, 4]
        assert [np.frombuffer(each.outputs, "<f4").tolist() for each in delegate.forwarded] == [[3.0, 4.0], [5.0, 6.0]]
        (entry,) = delegate.forwarded[0].layout.entries
        assert entry == ("OUT", Datatype.FP32, (2,), 0, 8)
        assert not worker.open
        assert not worker.forwarded
        assert not worker.batches
        await worker.kill()

    run(forward())


def test_an_exit_during_a_request_is_reported_once_with_signal_and_last_lines(tmp_path):
    async def die():
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

    run(die())


def test_a_child_that_keeps_the_socket_open_does_not_hide_the_exit_of_its_guest(tmp_path):
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
        worker, delegate = await started(launch_spec(tmp_path, methods))
        children = [child.pid for child in psutil.Process(worker.pid).children()]
        worker.execute([(1, request(1), None)], 1)
        await until_async(lambda: delegate.deaths, "the death")
        assert "exited with status 7" in delegate.deaths[0].message
        for child in children:
            os.kill(child, signal.SIGKILL)

    run(die())


def test_uncaught_error_of_the_stub_keeps_its_exit_code(tmp_path):
    """Not SIGKILL, which reads as if the memory had run out."""

    async def die():
        worker, delegate = await started(launch_spec(tmp_path, IDENTITY))
        worker._send(wire.frame(wire.Kind.EXECUTE, b"nonsense"))
        await until_async(lambda: delegate.deaths, "the death")
        assert "exited with status 1" in delegate.deaths[0].message
        assert any("struct.error" in line for line in delegate.deaths[0].last_lines)

    run(die())


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

    run(serve())


def test_guest_keeps_one_channel_through_a_million_bytes_of_messages(tmp_path):
    """A message longer than the socket takes at once, both ways."""
    methods = """
def execute(self, requests):
    for request in requests:
        pb_utils.Logger.log_info(request.request_id())
    return [pb_utils.InferenceResponse(parameters={"long": "e" * 2_000_000}) for _ in requests]
"""

    async def serve():
        worker, delegate = await started(launch_spec(tmp_path, methods))
        asked = request(1)
        asked.parameters = {"long": "p" * 3_000_000}
        asked.request_id = "i" * 30_000
        worker.execute([(1, asked, None)], 1)
        await until_async(lambda: delegate.done, "the answer")
        assert delegate.answers[0].response.parameters == {"long": "e" * 2_000_000}
        assert delegate.logged[0][2] == f"[request id: {'i' * 128}...] {'i' * 30_000}"
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
            launch_spec(tmp_path, methods, completes_config=True, model_config='{"name": "m", "max_batch_size": 0}')
        )
        try:
            return await worker.start()
        finally:
            await worker.kill()

    assert '"max_batch_size": 7' in run(complete())


LONG = np.arange(5 << 20, dtype="<f4")
"""20 MiB: copied in slices."""


def long_request(scale: float) -> InferRequest:
    half = len(LONG) // 2
    return InferRequest("m", 1, [InputTensor("IN", Datatype.FP32, (half * 2,), memoryview((LONG * scale).tobytes()))])


def test_inputs_of_a_long_batch_are_copied_in_slices_and_later_messages_wait(tmp_path):
    async def serve():
        worker, delegate = await started(launch_spec(tmp_path, CANCELLED))
        turns: list[bool] = []

        def count_turns() -> None:
            turns.append(bool(worker._waiting))
            if len(delegate.done) < 3:
                asyncio.get_running_loop().call_soon(count_turns)

        worker.execute([(1, long_request(1), None), (2, long_request(2), None)], 2)
        worker.execute([(3, request(3), None)], 1)
        packed = PLAN.pack_inputs(request(4.0))
        worker.forward(4, b"", packed[0], np.array((4.0,), "<f4").tobytes(), 1, time.monotonic_ns())
        worker.cancel([2])
        assert worker._unsent.batches == [1, 2, 3]
        count_turns()
        await until_async(lambda: len(delegate.done) == 3, "three batches")
        assert sum(turns) >= 35, "at most a MiB in a turn"
        assert [answer.key for answer in delegate.answers] == [1, 2, 3]
        assert [np.frombuffer(each.outputs, "<f4").tolist() for each in delegate.forwarded] == [[4, 0]]
        sums = [np.frombuffer(answer.response.outputs[0].data, "<f4").tolist() for answer in delegate.answers]
        expected = LONG.astype("f8").sum()
        assert sums[0] == pytest.approx([expected, 0], rel=1e-6)
        assert sums[1] == pytest.approx([2 * expected, 1], rel=1e-6), "it was cancelled before it began"
        assert sums[2:] == [[3, 0]]
        assert worker.memory.inputs.in_use == 0
        await worker.stop(10)
        assert delegate.deaths == []

    run(serve())


CANCELLED = """
    def execute(self, requests):
        import numpy as np
        responses = []
        for request in requests:
            array = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            if len(array) > 1:
                end = time.monotonic() + 20
                while array[1] == 2 and not request.is_cancelled() and time.monotonic() < end:
                    time.sleep(0.01)
            found = np.array([array.sum(dtype="f8"), request.is_cancelled()], "f4")
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", found)]))
        return responses
"""
