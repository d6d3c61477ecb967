"""Calls to other models by processes that a model has forked: pools, executors, `os.fork`, their threads and children."""

from __future__ import annotations

import json
import os
import signal

import psutil
import pytest
from serving.repositories import repository
from serving.written import RUNS_CODE, evaluate, write_model
from support.interpreters import each_interpreter, numpy_environment
from support.server import ServerProcess, still_running

FUNCTIONS = """
import asyncio, multiprocessing, signal, sys, threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial

import numpy as np
import triton_python_backend_utils as pb_utils

fork = multiprocessing.get_context("fork")
here = sys.modules[__name__]


def request(number, size=3, model="identity"):
    tensor = pb_utils.Tensor("IN", np.full(size, number, np.float32))
    return pb_utils.InferenceRequest(model_name=model, inputs=[tensor], requested_output_names=["OUT"])

def value(response):
    if response.has_error():
        return response.error().message()
    (tensor,) = response.output_tensors()
    array = tensor.as_numpy()
    assert (array == array[0]).all()
    return len(array), array[0].item()

def call(number, size=3, model="identity"):
    return value(request(number, size, model).exec())

def call_allocated(number):
    tensor = pb_utils.Tensor.allocate("IN", [60_000], np.float32)
    tensor.as_numpy()[:] = number
    return value(pb_utils.InferenceRequest(model_name="identity", inputs=[tensor], requested_output_names=["OUT"]).exec())

def call_with_id(number):
    asked = pb_utils.InferenceRequest(
        request_id="mine", correlation_id="sequence", model_name="identity", requested_output_names=["OUT"],
        inputs=request(number, 90_000).inputs(), parameters={"a": 1}, timeout=60_000_000,
    )
    return value(asked.exec())

def call_by_coroutines(number):
    async def all_of_them():
        return await asyncio.gather(*[request(each, 50_000).async_exec() for each in range(number)])
    return [value(response) for response in asyncio.run(all_of_them())]

def call_by_threads(number):
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(call, range(number)))

def streamed(number):
    tensor = pb_utils.Tensor("IN", np.array([number, 0], np.float32))
    return pb_utils.InferenceRequest(model_name="repeats", inputs=[tensor], requested_output_names=["OUT"])

def stream(number):
    return len(list(streamed(number).exec(decoupled=True)))

def stream_asynchronously(number):
    async def count():
        return [response async for response in await streamed(number).async_exec(decoupled=True)]
    return len(asyncio.run(count()))

def leave_a_stream(number):
    responses = streamed(number).exec(decoupled=True)
    next(responses)
    responses.cancel()
    del responses
    return call(number)

def in_child(function, *arguments):
    '''What *function* returns in a child by `os.fork`.'''
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            text = repr(function(*arguments))
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        try:
            os.write(write, text.encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as file:
        text = file.read()
    os.waitpid(pid, 0)
    return text

def after_closing_all(number):
    pid = os.fork()
    if not pid:
        try:
            os.closerange(3, 4096)
            os._exit(int(call(number)[1]))
        finally:
            os._exit(99)
    return os.WEXITSTATUS(os.waitpid(pid, 0)[1])

def call_and_log(number):
    pb_utils.Logger.log_warn(f"a child calls with {number}")
    return call(number)

def pooled(function, numbers, processes=4):
    with fork.Pool(processes) as pool:
        result = pool.map(function, numbers)
        pool.close()
        pool.join()
    return result

def executed(function, numbers):
    with ProcessPoolExecutor(4, mp_context=fork) as pool:
        return list(pool.map(function, numbers))

def blocks_in_use():
    from naiad_stub import runtime
    blocks = runtime.current().calls._blocks
    blocks.trim()
    return blocks._segment.in_use

def resources():
    '''Descriptors and threads of this process; what a child has left is gone soon.'''
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))
"""
METHODS = f"""
def initialize(self, args):
    here.early = fork.Pool(2)
    here.at_start = here.early.apply(call, (1,))
{RUNS_CODE}
def finalize(self):
    here.early.terminate()
    here.early.join()
"""
GATED = """
def execute(self, requests):
    for request in requests:
        with open("{folder}/entered", "a") as file:
            file.write("x")
        while not os.path.exists("{folder}/gate") and not request.is_cancelled():
            time.sleep(0.005)
        if request.is_cancelled():
            with open("{folder}/cancelled", "a") as file:
                file.write("x")
    return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.ones(1, np.float32))]) for _ in requests]
"""
GATED_CONFIG = """
backend: "python"
input [{ name: "IN" data_type: TYPE_FP32 dims: [-1] }]
output [{ name: "OUT" data_type: TYPE_FP32 dims: [-1] }]
instance_group { count: 2 kind: KIND_CPU }
"""


def write_models(tmp_path, *names, config=""):
    models = repository(tmp_path / "models", ["identity", "repeats", *names])
    file = write_model(models, "forks", METHODS, config=config)
    file.write_text(f"import os, time\n{FUNCTIONS}\n{file.read_text()}")
    return models


@pytest.fixture(scope="module")
def server(work):
    with ServerProcess(write_models(work), work=work) as running:
        yield running


CALLS = {
    "pooled(call, range(40))": [(3, float(each)) for each in range(40)],
    "pooled(call, range(200), 8)": [(3, float(each)) for each in range(200)],
    "pooled(partial(call, size=300_000), range(12))": [(300_000, float(each)) for each in range(12)],
    "pooled(call_allocated, range(4))": [(60_000, float(each)) for each in range(4)],
    "pooled(call_with_id, range(4))": [(90_000, float(each)) for each in range(4)],
    "executed(call, range(40))": [(3, float(each)) for each in range(40)],
    "early.map(call, range(40))": [(3, float(each)) for each in range(40)],
    "pooled(call_by_threads, [20] * 4)": [[(3, float(each)) for each in range(20)]] * 4,
    "pooled(call_by_coroutines, [10] * 4)": [[(50_000, float(each)) for each in range(10)]] * 4,
    "pooled(stream, [300] * 4)": [301] * 4,
    "pooled(stream_asynchronously, [300] * 4)": [301] * 4,
    "pooled(leave_a_stream, [5000] * 4)": [(3, 5000.0)] * 4,
    "eval(eval(in_child(in_child, call, 7)))": (3, 7.0),
    "eval(in_child(pooled, call, range(8)))": [(3, float(each)) for each in range(8)],
    "after_closing_all(7)": 7,
    "pooled(partial(call, model='nobody'), range(2))": [
        "Model nobody - Error when running inference: Request for unknown model: 'nobody' is not found"
    ]
    * 2,
}


@pytest.mark.parametrize("code", CALLS)
def test_processes_that_a_model_forks_call_other_models(server, code):
    assert evaluate(server, "forks", code) == repr(CALLS[code])
    assert evaluate(server, "forks", "call(3, 40_000)") == "(40000, 3.0)"
    server.wait_for(lambda: evaluate(server, "forks", "blocks_in_use()") == "0", "all blocks to be free")


def test_a_forked_child_may_call_when_its_model_may(server):
    assert evaluate(server, "forks", "at_start") == repr("BLS is only supported during the 'execute' function.")
    assert evaluate(server, "forks", "early.apply(call, (1,))") == "(3, 1.0)"


def test_children_leave_neither_descriptors_nor_threads_behind(server):
    evaluate(server, "forks", "pooled(call, range(8))")
    before = evaluate(server, "forks", "resources()")
    for _ in range(3):
        evaluate(server, "forks", "pooled(call, range(8))")
    server.wait_for(lambda: evaluate(server, "forks", "resources()") == before, "what serves the children to end")


def test_a_forked_child_logs_to_the_log_of_the_server(server):
    assert evaluate(server, "forks", "pooled(call_and_log, [31])") == "[(3, 31.0)]"
    server.wait_log("a child calls with 31")


@pytest.mark.parametrize(
    "code",
    [
        "in_child(lambda: pb_utils.MetricFamily(name='m', description='d', kind=pb_utils.MetricFamily.COUNTER))",
        "in_child(pb_utils.is_model_ready, 'identity')",
        "in_child(list, streamed(5000).exec(decoupled=True))",
    ],
    ids=["metrics", "control", "a stream of the parent"],
)
def test_unsupported_calls_of_a_forked_child_fail_with_a_sentence(server, code):
    text = (
        "this process was forked from the model's and can only call other models: respond, load models and use metrics "
        "in the process that runs `execute`; a function of a pool may return what is needed for that"
    )
    assert text in evaluate(server, "forks", code)
    assert evaluate(server, "forks", "call(3)") == "(3, 3.0)"


START = """
children = [fork.Process(target=call, args=(1, size, 'gated')) for size in (3, 100_000)]
for child in children:
    child.start()
"""
KILL = """
for child in children:
    child.kill()
    child.join()
    child.close()
"""


def gated_server(tmp_path):
    models = write_models(tmp_path)
    file = write_model(models, "gated", GATED.format(folder=tmp_path))
    (file.parents[1] / "config.pbtxt").write_text(GATED_CONFIG)
    return ServerProcess(models, work=tmp_path)


def marks(file):
    return len(file.read_text()) if file.exists() else 0


def test_calls_of_a_child_that_is_killed_are_cancelled(tmp_path):
    with gated_server(tmp_path) as server:
        assert evaluate(server, "forks", "call(1, 100_000)") == "(100000, 1.0)"
        before = evaluate(server, "forks", "resources()")
        assert evaluate(server, "forks", START) == "done"
        server.wait_for(lambda: marks(tmp_path / "entered") == 2, "the calls to arrive")
        assert evaluate(server, "forks", KILL) == "done"
        server.wait_for(lambda: marks(tmp_path / "cancelled") == 2, "the calls to be cancelled")
        (tmp_path / "gate").touch()
        assert evaluate(server, "forks", "pooled(partial(call, model='gated'), range(4))") == repr([(1, 1.0)] * 4)
        server.wait_for(lambda: evaluate(server, "forks", "blocks_in_use()") == "0", "all blocks to be free")
        server.wait_for(lambda: evaluate(server, "forks", "resources()") == before, "what served the children to end")


def test_a_child_that_stops_reading_delays_no_other(tmp_path):
    with gated_server(tmp_path) as server:
        assert evaluate(server, "forks", START) == "done"
        server.wait_for(lambda: marks(tmp_path / "entered") == 2, "the calls to arrive")
        assert evaluate(server, "forks", "for child in children: os.kill(child.pid, signal.SIGSTOP)") == "done"
        (tmp_path / "gate").touch()
        right = [(300_000, float(each)) for each in range(4)]
        assert evaluate(server, "forks", "pooled(partial(call, size=300_000), range(4))") == repr(right)
        assert evaluate(server, "forks", "for child in children: os.kill(child.pid, signal.SIGCONT)") == "done"
        assert evaluate(server, "forks", "[child.join() or child.exitcode for child in children]") == "[0, 0]"


def test_children_whose_guest_is_killed_end_with_it(tmp_path):
    with gated_server(tmp_path) as server:
        assert evaluate(server, "forks", START) == "done"
        server.wait_for(lambda: marks(tmp_path / "entered") == 2, "the calls to arrive")
        pids = json.loads(evaluate(server, "forks", "[child.pid for child in children]"))
        children = [psutil.Process(pid) for pid in pids]
        os.kill(int(evaluate(server, "forks", "os.getpid()")), signal.SIGKILL)
        assert still_running(children, 60) == []
        server.wait_log("'forks_0' is restarted in ")
        (tmp_path / "gate").touch()
        assert evaluate(server, "forks", "pooled(call, range(4))") == repr([(3, float(each)) for each in range(4)])


@pytest.mark.parametrize(("version", "python"), each_interpreter())
def test_processes_of_every_interpreter_call_models(version, python, tmp_path, tmp_path_factory):
    folder = numpy_environment(tmp_path_factory, version, python)
    config = f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{folder}" }} }}\n'
    with ServerProcess(write_models(tmp_path, config=config), work=tmp_path) as server:
        assert evaluate(server, "forks", "list(sys.version_info[:2])") == repr(list(version))
        for code, expected in CALLS.items():
            assert evaluate(server, "forks", code) == repr(expected)
