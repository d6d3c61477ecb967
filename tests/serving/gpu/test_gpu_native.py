"""Native backends and GPU memory: what their memory manager gives, and clients' tensors there."""

from __future__ import annotations

import numpy as np
import pytest
import tritonclient.http
from support.cuda import StandInDriver
from support.native import add_model
from support.server import ServerProcess

GPU_MEMORY, PINNED_MEMORY, GPU_FREE_TWICE = 17, 18, 19


def told(server, fault):
    document = {"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1, 1], "data": [fault]}]}
    return server.post("/v2/models/faults/infer", document).error


@pytest.fixture(scope="module")
def server(work):
    driver = StandInDriver(work / "cuda", has_management=True)
    add_model(work / "models", "faults", "faults.c", max_batch_size=1)
    option = "--allow-client-shm=true"
    with ServerProcess(work / "models", option, work=work, environ=driver.environ) as server, driver.client() as memory:
        server.driver, server.memory = driver, memory
        yield server
    assert (driver.allocations(), driver.opened(), driver.pinned(), driver.contexts()) == ([], [], [], [])


@pytest.mark.parametrize(("fault", "marks"), [(GPU_MEMORY, "allocations"), (PINNED_MEMORY, "pinned")])
def test_the_memory_manager_gives_memory_of_gpus_and_pinned_memory(server, fault, marks):
    function = {"allocations": "cuMemAlloc_v2", "pinned": "cuMemHostRegister_v2"}[marks]
    before = server.driver.calls()[function]
    others = getattr(server.driver, marks)()  # of the client
    assert told(server, fault) == "the call succeeded"
    assert server.driver.calls()[function] == before + 1
    assert getattr(server.driver, marks)() == others


def test_memory_of_a_gpu_that_is_freed_twice_is_an_error(server):
    assert "was allocated by this memory manager, or it was freed" in told(server, GPU_FREE_TWICE)


def test_a_full_gpu_is_an_error_of_the_call(server):
    server.driver.fail("cuMemAlloc_v2", 2, once=True)
    text = told(server, GPU_MEMORY)
    assert text.startswith("cannot allocate 100 bytes of the memory of GPU 0: cuMemAlloc_v2 failed with")


def test_a_native_model_reads_and_writes_gpu_memory_of_clients(server):
    values = np.array([[0.0]], np.float32)
    region = server.memory.allocate(64)
    region.write(values.tobytes())
    with tritonclient.http.InferenceServerClient(server.http_url) as client:
        client.register_cuda_shared_memory("r", region.handle, 0, 64)
        given = tritonclient.http.InferInput("IN", [1, 1], "FP32")
        given.set_shared_memory("r", 4)
        output = tritonclient.http.InferRequestedOutput("OUT")
        output.set_shared_memory("r", 4, 32)
        region.write(b"\xff" * 4, 32)
        client.infer("faults", [given], outputs=[output])
        assert region.read(4, 32) == values.tobytes()
        client.unregister_cuda_shared_memory("r")


def test_without_a_driver_the_memory_manager_says_what_is_missing(tmp_path):
    add_model(tmp_path / "models", "faults", "faults.c", max_batch_size=1)
    with ServerProcess(tmp_path / "models", work=tmp_path) as server:
        texts = {"GPU": told(server, GPU_MEMORY), "Pinned": told(server, PINNED_MEMORY)}
    for kind, text in texts.items():
        assert text.startswith(
            f"{kind} memory allocation is not supported: cannot use a tensor in GPU memory: NVIDIA's driver is missing"
        )
