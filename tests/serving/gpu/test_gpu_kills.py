"""Processes that end while others use their GPU memory: an error with its reason, never a wrong value, and no leak."""

from __future__ import annotations

import base64
import os
import signal
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import psutil
import pytest
import tritonclient.http
from serving.gpu.gpu_models import DOUBLES_ON_GPU, TAKES_GPU, WHERE, add_ensemble, add_model
from support.client_inputs import input_of
from support.cuda import StandInDriver
from support.server import ServerProcess
from tritonclient.utils import InferenceServerException

GATED = """
def respond(self, request):
    given = pb_utils.get_input_tensor_by_name(request, "IN")
    open(BEGUN, "w").write(str(os.getpid()))
    while not os.path.exists(GATE):
        time.sleep(0.002)
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", given.as_numpy())])
"""
"""Says that it has begun, and reads its input when it may."""
VALUES = np.arange(100_000, dtype=np.float32)


@pytest.fixture(scope="module")
def shared_server(work):
    driver = StandInDriver(work / "cuda", has_management=True)
    gate, begun = work / "gate", work / "begun"
    add_model(work / "models", "doubles", DOUBLES_ON_GPU)
    gated = GATED.replace("GATE", repr(str(gate))).replace("BEGUN", repr(str(begun)))
    add_model(work / "models", "gated", gated, config=TAKES_GPU)
    add_model(work / "models", "gated_cpu", gated)
    add_ensemble(work / "models", "chain", "doubles", "gated")
    options = ("--allow-client-shm=true", "--stub-restart-limit=100")
    with (
        ServerProcess(work / "models", *options, work=work, environ=driver.environ) as server,
        driver.client() as memory,
        tritonclient.http.InferenceServerClient(server.http_url, concurrency=2) as client,
    ):
        server.driver, server.gate, server.begun = driver, gate, begun
        server.memory, server.client = memory, client
        yield server
    assert (driver.allocations(), driver.opened(), driver.pinned(), driver.contexts()) == ([], [], [], [])


@pytest.fixture
def server(shared_server):
    """The server of all tests here, on a device where an earlier test has left nothing."""
    reset(shared_server)
    driver = shared_server.driver
    shared_server.wait_for(lambda: not driver.allocations() and not driver.opened(), "what is idle to be given back")
    yield shared_server
    shared_server.memory.free()


def given(values=VALUES):
    return input_of(tritonclient.http, "IN", values)


def in_region(name):
    tensor = tritonclient.http.InferInput("IN", [VALUES.size], "FP32")
    tensor.set_shared_memory(name, VALUES.nbytes)
    return tensor


def result(server, model, tensor, outputs=None):
    """The output, None if it is in a region, or the text of the error."""
    with tritonclient.http.InferenceServerClient(server.http_url) as own:
        try:
            answer = own.infer(model, [tensor], outputs=outputs)
        except InferenceServerException as error:
            return error.message()
        return None if outputs else answer.as_numpy("OUT")


def kill(server, pid):
    os.kill(pid, signal.SIGKILL)
    server.wait_for(lambda: not psutil.pid_exists(pid), "the process to end")


def begun(server):
    server.wait_for(lambda: server.begun.exists() and server.begun.read_text(), "the model to begin")
    return int(server.begun.read_text())


def reset(server):
    for path in (server.gate, server.begun):
        path.unlink(missing_ok=True)


def works_again(server, model, tensor, right, outputs=None):
    """A request succeeds, once the guest that was killed has been started again."""
    reset(server)
    server.gate.touch()
    server.wait_for(lambda: not isinstance(result(server, model, tensor, outputs), str), "the restart")
    answer = result(server, model, tensor, outputs)
    assert answer is None or np.array_equal(answer, right)


def test_a_step_whose_input_was_lost_with_its_producer_fails_with_the_reason(server):
    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(result, server, "chain", given())
        begun(server)
        (producer,) = {int(name.split("-")[1]) for name in server.driver.allocations()}
        kill(server, producer)
        server.gate.touch()
        text = pending.result(20)
    assert isinstance(text, str)
    assert "cannot read a tensor of 400000 bytes in GPU memory: " in text
    assert "the model that sent it may have ended meanwhile: send the request again" in text
    works_again(server, "chain", given(), VALUES * 2)


def test_a_producer_that_is_killed_after_its_memory_was_opened_changes_no_value(server):
    server.gate.touch()
    assert np.array_equal(result(server, "chain", given()), VALUES * 2)  # its region is known to the reader now
    reset(server)
    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(result, server, "chain", given())
        begun(server)
        producers = {int(name.split("-")[1]) for name in server.driver.allocations()}
        for producer in producers:
            kill(server, producer)
        server.gate.touch()
        answer = pending.result(20)
    assert isinstance(answer, str) or np.array_equal(answer, VALUES * 2)


def test_a_reader_that_is_killed_gives_the_regions_of_its_producer_back(server):
    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(result, server, "chain", given())
        kill(server, begun(server))
        assert isinstance(pending.result(20), str)
    works_again(server, "chain", given(), VALUES * 2)
    server.wait_for(lambda: not server.driver.allocations(), "the regions to be freed")


@pytest.mark.parametrize("model", ["gated", "gated_cpu"])
def test_a_guest_that_is_killed_while_it_uses_a_clients_region_lets_it_go(server, model):
    region = server.memory.allocate(2 * VALUES.nbytes)
    region.write(VALUES.tobytes())
    server.client.register_cuda_shared_memory("r", region.handle, 0, 2 * VALUES.nbytes)
    output = tritonclient.http.InferRequestedOutput("OUT")
    output.set_shared_memory("r", VALUES.nbytes, VALUES.nbytes)
    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(result, server, model, in_region("r"), [output])
        kill(server, begun(server))
        assert isinstance(pending.result(20), str)
    server.client.unregister_cuda_shared_memory("r")
    server.client.register_cuda_shared_memory("r", region.handle, 0, 2 * VALUES.nbytes)
    works_again(server, model, in_region("r"), None, [output])
    assert region.read(VALUES.nbytes, VALUES.nbytes) == VALUES.tobytes()
    server.client.unregister_cuda_shared_memory("r")


@pytest.mark.parametrize("model", ["gated", "gated_cpu"])
def test_memory_that_a_client_has_freed_before_its_request_is_an_error(server, model):
    region = server.memory.allocate(VALUES.nbytes)
    server.client.register_cuda_shared_memory("r", region.handle, 0, VALUES.nbytes)
    region.free()
    server.gate.touch()
    text = result(server, model, in_region("r"))
    assert text == (
        "input 'IN': cannot read a tensor of 400000 bytes in GPU memory: cannot open memory of GPU 0 that another process "
        "has sent: cuIpcOpenMemHandle_v2 failed with CUDA_ERROR_INVALID_VALUE (1); register the region again, with the "
        "handle and the size of memory that is still allocated"
    )
    server.client.unregister_cuda_shared_memory("r")


@pytest.mark.parametrize("function", ["cuMemcpyHtoD_v2", "cuIpcOpenMemHandle_v2", "cuStreamSynchronize"])
def test_a_call_of_the_driver_that_fails_at_an_output_fails_its_request_alone(server, function):
    region = server.memory.allocate(VALUES.nbytes)
    server.client.register_cuda_shared_memory("r", region.handle, 0, VALUES.nbytes)
    output = tritonclient.http.InferRequestedOutput("OUT")
    output.set_shared_memory("r", VALUES.nbytes)
    server.gate.touch()
    server.driver.fail(function, 999, once=True)
    text = result(server, "gated_cpu", given(), [output])
    assert text.startswith("output 'OUT': cannot write an output of 400000 bytes in GPU memory: ")
    assert f"{function} failed with CUDA_ERROR_UNKNOWN (999)" in text
    assert result(server, "gated_cpu", given(), [output]) is None
    assert region.read(VALUES.nbytes) == VALUES.tobytes()
    server.client.unregister_cuda_shared_memory("r")


def test_a_handle_that_names_nothing_ends_no_guest(server):
    server.client.register_cuda_shared_memory("r", base64.b64encode(os.urandom(64)), 0, VALUES.nbytes)
    server.gate.touch()
    assert isinstance(result(server, "gated", in_region("r")), str)
    first = server.begun.read_text() if server.begun.exists() else ""
    assert np.array_equal(result(server, "gated", given()), VALUES)
    assert first in ("", server.begun.read_text())
    server.client.unregister_cuda_shared_memory("r")


def test_the_server_says_how_much_gpu_memory_an_instance_may_share(tmp_path):
    """What goes beyond it goes through the CPU."""
    driver = StandInDriver(tmp_path / "cuda", has_management=True)
    add_model(tmp_path / "models", "doubles", DOUBLES_ON_GPU)
    add_model(tmp_path / "models", "where", WHERE, config=TAKES_GPU)
    add_ensemble(tmp_path / "models", "chain", "doubles", "where")
    for pool, is_cpu in (("0:2097152", 0.0), ("0:2097151", 1.0), ("7:0", 0.0)):
        option = f"--cuda-memory-pool-byte-size={pool}"
        with ServerProcess(tmp_path / "models", option, work=tmp_path, environ=driver.environ) as server:
            assert result(server, "chain", given()).tolist() == [is_cpu]
            if pool == "7:0":
                assert "--cuda-memory-pool-byte-size=7:0 has no effect: there is no GPU 7" in server.log
