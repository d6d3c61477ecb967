"""GPUs that are full: that is an error of the request, and the guest goes on; with a stand-in for the driver."""

from __future__ import annotations

import pytest
from serving.gpu.gpu_models import ECHO, IMPORTS, TAKES_GPU, add_code_model, add_model
from serving.gpu.test_gpu_calls import CALLS
from serving.written import evaluate
from support.server import ServerProcess

FILLS = """
def respond(self, request):
    kind = int(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()[0])
    if kind == 1:
        device_arrays.DeviceArray.of(np.zeros(3 << 20, np.uint8))
    elif kind == 2:
        raise type("OutOfMemoryError", (RuntimeError,), {})("CUDA out of memory. Tried to allocate 20.00 GiB.")
    elif kind == 3:
        error = type("OutOfMemoryError", (MemoryError,), {"__module__": "cupy.cuda.memory"})
        raise error("Out of memory allocating 1,024 bytes (allocated so far: 0 bytes).")
    elif kind == 4:
        raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8 bytes.")
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([os.getpid()], np.float32))])
"""
MIB = 1 << 20
LIMITED = 'parameters { key: "memory_limit" value { string_value: "4GiB" } }\n'


@pytest.fixture(scope="module")
def shared_server(work, shared_driver):
    add_code_model(work / "models")
    add_model(work / "models", "echo", ECHO, config=TAKES_GPU)
    add_model(work / "models", "fills", FILLS)
    add_model(work / "models", "limited", FILLS, config=LIMITED)
    with ServerProcess(work / "models", work=work, environ=shared_driver.environ) as server:
        server.driver = shared_driver
        yield server


@pytest.fixture
def server(shared_server):
    """The server of all tests here, on a device with room and nothing in it that an earlier test has left."""
    shared_server.driver.limit(64 * MIB)
    names = "('array', 'answers', 't')"
    evaluate(shared_server, "code", f"[globals().pop(name, None) for name in {names}]; __import__('gc').collect()")
    yield shared_server
    shared_server.driver.limit(64 * MIB)


def ask(server: ServerProcess, model: str, kind: int):
    document = {"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1], "data": [kind]}]}
    return server.post(f"/v2/models/{model}/infer", document)


def pid_of(server: ServerProcess, model: str) -> float:
    reply = ask(server, model, 0)
    assert reply.status == 200, reply.body
    return float(reply.json()["outputs"][0]["data"][0])


@pytest.mark.parametrize("model", ["fills", "limited"])
def test_a_model_that_runs_out_of_device_memory_fails_its_request_and_goes_on(server, model):
    """Also one with a limit of its memory, whose guest exits where that is reached: CuPy's error is a MemoryError."""
    pid = pid_of(server, model)
    server.driver.limit(2 * MIB)

    for kind, text in (
        (1, "cuMemAlloc_v2 failed with 2"),
        (2, "CUDA out of memory. Tried to allocate 20.00 GiB."),
        (3, "Out of memory allocating 1,024 bytes"),
        (4, "RESOURCE_EXHAUSTED: Out of memory"),
    ):
        reply = ask(server, model, kind)
        assert (reply.status, text in reply.error) == (500, True), (kind, reply.body)

    assert pid_of(server, model) == pid


def test_a_full_device_sends_tensors_through_the_cpu_until_it_has_room(server):
    start = "array = DeviceArray.of(values); call('echo', array)"
    assert evaluate(server, "code", f"{IMPORTS}\n{CALLS}\n{start}") == "done"
    server.driver.limit(500_000)  # of which the array has 400,000

    # The first ones may be in regions that an earlier test has left idle: as the answers are kept, these end.
    evaluate(server, "code", "answers = [call('echo', array) for _ in range(9)]")
    right = "answers[-1].is_cpu(), all(np.array_equal(each.as_numpy(), values) for each in answers)"
    seen = evaluate(server, "code", right)
    assert seen == "(True, True)"

    server.driver.limit(64 * MIB)
    evaluate(server, "code", "answers = [call('echo', array) for _ in range(2)]")
    assert evaluate(server, "code", "[each.is_cpu() for each in answers]") == "[False, False]"


def test_what_is_kept_for_later_is_freed_when_the_device_is_full(server):
    """For an allocation of the guest's own, and after a request that failed because the model's own did."""
    start = "array = DeviceArray.of(values)\nfor _ in range(3): call('echo', array)"
    assert evaluate(server, "code", f"{IMPORTS}\n{CALLS}\n{start}") == "done"
    evaluate(server, "code", "t = T('X', DeviceArray.of(np.zeros(2 << 20, np.uint8)))")
    pid = evaluate(server, "code", "os.getpid()")

    def used() -> int:
        return sum(path.stat().st_size for path in server.driver.folder.glob(f"memory-{pid}-*"))

    own = 400_000 + 2 * MIB
    assert used() >= own + 2 * MIB, "and a region"
    server.driver.limit(used())
    copied = "int(DeviceArray.from_dlpack(t.__dlpack__(copy=True)).numpy().sum())"

    assert evaluate(server, "code", copied) == "0"

    assert used() == own, "no region is left"
    server.driver.limit(own)
    assert evaluate(server, "code", copied).startswith(
        "CudaError: cannot allocate 2097152 bytes of the memory of GPU 0: cuMemAlloc_v2 failed with "
        "CUDA_ERROR_OUT_OF_MEMORY (2); free memory on the device, or use smaller batches"
    )


def test_a_tensor_that_is_opened_on_a_full_device_fails_its_request_and_the_next_one_succeeds(tmp_path, driver):
    add_code_model(tmp_path / "models")
    add_model(tmp_path / "models", "echo", ECHO, config=TAKES_GPU)
    with ServerProcess(tmp_path / "models", work=tmp_path, environ=driver.environ) as server:
        start = "array = DeviceArray.of(values); call('echo', array)"  # the first call goes through the CPU
        assert evaluate(server, "code", f"{IMPORTS}\n{CALLS}\n{start}") == "done"
        driver.fail("cuDevicePrimaryCtxRetain", 2, once=True)

        answer = evaluate(server, "code", "call('echo', array)")
        again = evaluate(server, "code", "np.array_equal(call('echo', array).as_numpy(), values)")

    assert "cannot read a tensor of 400000 bytes in GPU memory: " in answer
    assert (
        "cuDevicePrimaryCtxRetain failed with CUDA_ERROR_OUT_OF_MEMORY (2); free memory on the device, or use smaller "
        "batches: send the request again\n"
    ) in answer
    assert again == "True"
