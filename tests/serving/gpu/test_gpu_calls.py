"""Calls between models whose tensors stay in GPU memory, through real guests and a stand-in for the driver."""

from __future__ import annotations

import os
import signal

import pytest
from serving.gpu.gpu_models import (
    DOUBLES,
    DOUBLES_ON_GPU,
    ECHO,
    IMPORTS,
    TAKES_GPU,
    add_code_model,
    add_ensemble,
    add_model,
)
from serving.written import evaluate, send_code
from support.server import ServerProcess

REUSES_ITS_OUTPUT = """
def initialize(self, args):
    self.output = None
def respond(self, request):
    import ctypes
    values = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
    if self.output is None:
        self.output = device_arrays.DeviceArray.of(values)
    device_arrays.cuda("cuMemcpyHtoD_v2", ctypes.c_uint64(self.output.address),
                       ctypes.c_void_p(values.ctypes.data), ctypes.c_size_t(values.nbytes))
    return pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("OUT", self.output)])
"""
ENDS_ITS_CALLER = """
def respond(self, request):
    given = pb_utils.get_input_tensor_by_name(request, "IN")
    os.kill(int(open("PID").read()), 9)
    while os.path.exists(f"/proc/{open('PID').read()}"):
        time.sleep(0.001)
    try:
        text = str(given.as_numpy()[:3].tolist())
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
    open("SAW", "w").write(text)
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.zeros(1, np.float32))])
"""
CALLS = """
import asyncio
GPU, CPU = pb_utils.TRITONSERVER_MEMORY_GPU, pb_utils.TRITONSERVER_MEMORY_CPU
def request(model, tensor, where=None):
    options = {} if where is None else {"preferred_memory": pb_utils.PreferredMemory(where, 0)}
    return pb_utils.InferenceRequest(model_name=model, requested_output_names=["OUT"], inputs=[tensor], **options)
def call(model, array, where=GPU):
    response = request(model, T("IN", array) if isinstance(array, DeviceArray) else pb_utils.Tensor("IN", array), where).exec()
    if response.has_error():
        raise RuntimeError(response.error().message())
    return pb_utils.get_output_tensor_by_name(response, "OUT")
values = np.arange(100_000, dtype=np.float32)
"""


@pytest.fixture(scope="module")
def server(work, shared_driver):
    add_code_model(work / "models")
    add_model(work / "models", "echo", ECHO, config=TAKES_GPU)
    add_model(work / "models", "echo_cpu", ECHO)
    add_model(work / "models", "batches", ECHO, config=TAKES_GPU + "dynamic_batching { }\nmax_batch_size: 0\n")
    add_model(work / "models", "cached", ECHO, config=TAKES_GPU + "response_cache { enable: true }\n")
    add_model(work / "models", "doubles", DOUBLES_ON_GPU)
    add_model(work / "models", "doubles_cpu", DOUBLES)
    add_ensemble(work / "models", "chain", "doubles", "echo", "echo")
    add_model(work / "models", "reuses", REUSES_ITS_OUTPUT)
    with ServerProcess(work / "models", work=work, environ=shared_driver.environ) as server:
        server.driver = shared_driver
        yield server


def in_model(server: ServerProcess, statements: str, expression: str) -> str:
    """Run statements in the guest of the model `code` after the definitions of `CALLS`."""
    assert evaluate(server, "code", f"{IMPORTS}\n{CALLS}\n{statements}") == "done"
    return evaluate(server, "code", expression)


def copies_to_cpu(server: ServerProcess) -> int:
    """How many tensors of a call have been copied from the device to the CPU."""
    return sum(size == 400_000 for size in server.driver.bytes_of("cuMemcpyDtoH_v2"))


def test_a_tensor_stays_on_the_device_there_and_back(server):
    in_model(server, "array = DeviceArray.of(values); call('echo', array); call('echo', array)", "0")
    before = copies_to_cpu(server)

    answer = in_model(server, "answer = call('echo', DeviceArray.of(values))", "answer.is_cpu()")

    assert answer == "False"
    assert copies_to_cpu(server) == before, "neither the input nor the output came to the CPU"
    assert evaluate(server, "code", "np.array_equal(answer.as_numpy(), values)") == "True"
    assert evaluate(server, "code", "np.array_equal(DeviceArray.from_dlpack(answer).numpy(), values)") == "True"


def test_a_handle_is_opened_once_for_many_calls(server):
    in_model(server, "array = DeviceArray.of(values)\nfor _ in range(4): call('echo', array).as_numpy()", "0")
    before = server.driver.calls()["cuIpcOpenMemHandle_v2"]

    in_model(server, "for _ in range(20): call('echo', array).as_numpy()", "0")

    # A pause in between closes idle handles, and one more region may be in use while the host returns another.
    assert server.driver.calls()["cuIpcOpenMemHandle_v2"] - before <= 8


@pytest.mark.parametrize(("where", "is_cpu"), [("GPU", False), ("None", False), ("CPU", True)])
def test_outputs_are_where_the_caller_prefers_them(server, where, is_cpu):
    code = f"array = DeviceArray.of(values); answers = [call('echo', array, {where}) for _ in range(2)]"
    assert in_model(server, code, "answers[-1].is_cpu()") == str(is_cpu)
    assert evaluate(server, "code", "np.array_equal(answers[-1].as_numpy(), values)") == "True"


@pytest.mark.parametrize("model", ["echo_cpu", "doubles_cpu", "batches", "cached"])
@pytest.mark.parametrize("count", [4, 100_000])
def test_outputs_that_are_made_on_the_cpu_are_copied_to_the_gpu_that_the_caller_prefers(server, model, count):
    factor = 2 if model == "doubles_cpu" else 1
    code = f"answer = call('{model}', values[:{count}])"
    assert in_model(server, code, "[answer.is_cpu(), answer.__dlpack_device__()]") == "[False, (2, 0)]"
    right = f"np.array_equal(DeviceArray.from_dlpack(answer).numpy(), values[:{count}] * {factor})"
    assert evaluate(server, "code", right) == "True"


def test_a_preferred_gpu_that_the_process_does_not_have_leaves_outputs_on_the_cpu(server):
    code = """
options = {"preferred_memory": pb_utils.PreferredMemory(GPU, 5)}
asked = pb_utils.InferenceRequest(model_name="echo_cpu", requested_output_names=["OUT"],
                                  inputs=[pb_utils.Tensor("IN", values)], **options)
answer = pb_utils.get_output_tensor_by_name(asked.exec(), "OUT")
"""
    assert in_model(server, code, "answer.is_cpu()") == "True"
    assert evaluate(server, "code", "np.array_equal(answer.as_numpy(), values)") == "True"


def test_tensors_stay_on_the_device_from_step_to_step_of_an_ensemble(server):
    """Three steps; the client gets bytes."""
    document = {"inputs": [{"name": "IN", "datatype": "FP32", "shape": [100_000], "data": [2.0] * 100_000}]}

    def made():
        reply = server.post("/v2/models/chain/infer", document)
        assert reply.status == 200, reply.body
        return set(reply.json()["outputs"][0]["data"])

    assert made() == {4.0}
    before = copies_to_cpu(server)
    assert made() == {4.0}
    assert copies_to_cpu(server) - before == 1, "that for the client"


def test_a_model_that_was_loaded_again_to_take_inputs_on_the_cpu_gets_them_there(tmp_path, driver):
    """Its caller still believes that it takes them on the device."""
    add_code_model(tmp_path / "models")
    add_model(tmp_path / "models", "echo", ECHO, config=TAKES_GPU)
    options = ("--model-control-mode=explicit", "--load-model=*")
    with ServerProcess(tmp_path / "models", *options, work=tmp_path, environ=driver.environ) as server:
        in_model(server, "array = DeviceArray.of(values); call('echo', array); call('echo', array)", "0")
        path = tmp_path / "models" / "echo" / "config.pbtxt"
        path.write_text(path.read_text().replace(TAKES_GPU, ""))
        assert server.post("/v2/repository/models/echo/load", {}).status == 200
        assert in_model(server, "answers = [call('echo', array, CPU) for _ in range(2)]", "0") == "0"
        right = "[np.array_equal(each.as_numpy(), values) for each in answers]"
        assert evaluate(server, "code", right) == "[True, True]"


@pytest.mark.parametrize("model", ["batches", "cached"])
def test_models_that_batch_or_cache_get_right_values(server, model):
    code = f"answers = [call('{model}', DeviceArray.of(values + n)) for n in (1, 2, 1, 2)]"
    right = in_model(server, code, "[float(each.as_numpy()[7]) for each in answers]")
    assert right == "[8.0, 9.0, 8.0, 9.0]"


def test_a_model_that_writes_its_next_output_to_the_same_memory_does_not_change_the_last_one(server):
    code = "first = call('reuses', values); second = call('reuses', values * 10)"
    assert in_model(server, code, "[first.is_cpu(), second.is_cpu()]") == "[False, False]"
    assert evaluate(server, "code", "[float(first.as_numpy()[3]), float(second.as_numpy()[3])]") == "[3.0, 30.0]"


def test_the_caller_may_write_to_its_tensor_once_the_call_is_sent(server):
    code = """
import ctypes, device_arrays
array = DeviceArray.of(values)
call('echo', array)
async def run():
    pending = request('echo', T('IN', array), GPU).async_exec()
    other = np.full_like(values, -1)
    device_arrays.cuda("cuMemcpyHtoD_v2", ctypes.c_uint64(array.address), ctypes.c_void_p(other.ctypes.data),
                       ctypes.c_size_t(other.nbytes))
    return await pending
answer = pb_utils.get_output_tensor_by_name(asyncio.run(run()), "OUT")
"""
    assert in_model(server, code, "np.array_equal(answer.as_numpy(), values)") == "True"


def test_many_calls_at_a_time_do_not_mix_their_tensors(server):
    code = """
async def run():
    arrays = [DeviceArray.of(values + n) for n in range(8)]
    return await asyncio.gather(*(request('echo', T('IN', each), GPU).async_exec() for each in arrays))
call('echo', DeviceArray.of(values))
answers = [pb_utils.get_output_tensor_by_name(each, "OUT") for each in asyncio.run(run())]
"""
    assert in_model(server, code, "[int(each.as_numpy()[0]) for each in answers]") == str([*range(8)])
    assert evaluate(server, "code", "{each.is_cpu() for each in answers}") == "{False}"


def test_a_received_tensor_can_be_sent_on_and_kept(server):
    code = """
first = call('echo', DeviceArray.of(values)); first = call('echo', DeviceArray.of(values))
answers = [pb_utils.get_output_tensor_by_name(request('echo', pb_utils.Tensor.from_dlpack('IN', first), GPU).exec(), 'OUT')
           for _ in range(3)]
for n in range(20): call('echo', DeviceArray.of(values + n))
"""
    assert in_model(server, code, "[np.array_equal(each.as_numpy(), values) for each in answers]") == str([True] * 3)
    assert evaluate(server, "code", "[first.is_cpu(), np.array_equal(first.as_numpy(), values)]") == "[False, True]"


def test_work_that_the_caller_has_queued_is_complete_before_the_called_model_reads(server):
    """The stand-in does queued work only when something waits for it."""
    code = """
import ctypes, device_arrays
array = DeviceArray.of(np.zeros(100_000, np.float32))
call('echo', array)
lib = device_arrays._loaded[0]
lib.standinFill(None, ctypes.c_uint64(array.address), ctypes.c_size_t(array.nbytes), 1)
answer = call('echo', array)
"""
    assert in_model(server, code, "answer.as_numpy().view(np.uint8).tolist()[::50_000]") == str([1] * 8)


def test_a_driver_without_handles_sends_tensors_through_the_cpu(tmp_path, driver):
    driver.fail("cuIpcGetMemHandle", 1)
    add_code_model(tmp_path / "models")
    add_model(tmp_path / "models", "echo", ECHO, config=TAKES_GPU)
    with ServerProcess(tmp_path / "models", work=tmp_path, environ=driver.environ) as server:
        code = "answers = [call('echo', DeviceArray.of(values), None) for _ in range(3)]"
        assert in_model(server, code, "[each.is_cpu() for each in answers]") == "[True, True, True]"
        assert evaluate(server, "code", "np.array_equal(answers[-1].as_numpy(), values)") == "True"


def test_nothing_stays_in_use_after_a_pause(tmp_path, driver):
    add_code_model(tmp_path / "models")
    add_model(tmp_path / "models", "echo", ECHO, config=TAKES_GPU)
    with ServerProcess(tmp_path / "models", work=tmp_path, environ=driver.environ) as server:

        def regions() -> list[dict[str, object]]:
            """What is kept for tensors of the caller on the GPU, by the statistics."""
            usage = server.get("/v2/models/code/stats").json()["model_stats"][0].get("memory_usage", [])
            return [each for each in usage if each["type"] == "GPU"]

        in_model(server, "for n in range(5): call('echo', DeviceArray.of(values + n)).as_numpy()", "0")
        (region,) = regions()
        assert region["id"] == 0
        assert region["byte_size"] % (2 << 20) == 0
        assert driver.calls()["cuIpcOpenMemHandle_v2"] >= 2
        server.wait_for(lambda: not driver.opened(), "idle handles to be closed")
        server.wait_for(lambda: not driver.allocations(), "idle regions to be freed")
        server.wait_for(lambda: regions()[0]["byte_size"] == 0, "the report of it")
        assert in_model(server, "answer = call('echo', DeviceArray.of(values))", "answer.is_cpu()") == "False"


def test_a_caller_that_is_killed_fails_what_reads_its_memory_with_a_reason(tmp_path, driver):
    """The called model opens the memory when it reads the tensor: by then its owner has ended."""
    add_code_model(tmp_path / "models")
    ends = ENDS_ITS_CALLER.replace("PID", str(tmp_path / "pid")).replace("SAW", str(tmp_path / "saw"))
    add_model(tmp_path / "models", "ends", ends, config=TAKES_GPU)
    add_model(tmp_path / "models", "echo", ECHO, config=TAKES_GPU)
    with ServerProcess(tmp_path / "models", work=tmp_path, environ=driver.environ) as server:
        (tmp_path / "pid").write_text("999999999")
        in_model(server, "try: call('ends', DeviceArray.of(values))\nexcept RuntimeError: pass", "0")
        pid = int(evaluate(server, "code", "os.getpid()"))
        (tmp_path / "pid").write_text(str(pid))

        assert send_code(server, "code", "call('ends', DeviceArray.of(values))").status == 500
        server.wait_for(lambda: (tmp_path / "saw").exists() and (tmp_path / "saw").read_text(), "the model to read")
        assert (tmp_path / "saw").read_text() == (
            "TritonModelException: cannot read a tensor of 400000 bytes in GPU memory: cannot open memory of GPU 0 that "
            "another process has sent: cuIpcOpenMemHandle_v2 failed with CUDA_ERROR_INVALID_VALUE (1); the model that "
            "sent it may have ended meanwhile: send the request again"
        )
        wait_for_restart(server, pid)
        assert in_model(server, "call('echo', DeviceArray.of(values))", "call('echo', values).is_cpu()") == "False"


def test_memory_of_processes_that_have_ended_is_closed_and_given_back(tmp_path, driver):
    """First the called model's, then the caller's."""
    add_code_model(tmp_path / "models")
    kills = f"respond(self, request):\n    if os.path.exists({str(tmp_path / 'kill')!r}): os.kill(os.getpid(), 9)\n"
    add_model(tmp_path / "models", "echo", ECHO.replace("respond(self, request):\n", kills), config=TAKES_GPU)
    with ServerProcess(tmp_path / "models", work=tmp_path, environ=driver.environ) as server:
        in_model(server, "call('echo', DeviceArray.of(values))", "0")
        (tmp_path / "kill").touch()
        answer = evaluate(server, "code", "call('echo', DeviceArray.of(values))")
        assert answer.startswith("RuntimeError:"), answer
        (tmp_path / "kill").unlink()
        server.wait_for(lambda: not driver.allocations(), "the region to be given back and freed")

        in_model(server, "kept = call('echo', DeviceArray.of(values)); kept = call('echo', values)", "0")
        in_model(server, "kept = [call('echo', DeviceArray.of(values)) for _ in range(2)][-1]; kept.as_numpy()", "0")
        pid = int(evaluate(server, "code", "os.getpid()"))
        os.kill(pid, signal.SIGKILL)
        server.wait_for(lambda: not [name for name in driver.opened() if f"-{pid}-" in name], "its memory to be closed")
        wait_for_restart(server, pid)
        again = "answers = [call('echo', DeviceArray.of(values)) for _ in range(2)]"
        assert in_model(server, again, "answers[-1].is_cpu()") == "False"


def wait_for_restart(server: ServerProcess, pid: int) -> None:
    """Until the model `code` is ready in another process."""

    def is_another() -> bool:
        reply = send_code(server, "code", "os.getpid()")
        return reply.status == 200 and reply.json()["outputs"][0]["data"] != [str(pid)]

    server.wait_for(is_another, "the restart")
