"""Tensors in GPU memory that a model makes and clients receive, through real guests and a stand-in for the driver."""

from __future__ import annotations

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from serving.gpu.gpu_models import DOUBLES_ON_GPU, IMPORTS, add_code_model, add_model
from serving.written import evaluate
from support.client_inputs import input_of
from support.server import ServerProcess


@pytest.fixture(scope="module")
def shared_server(work, shared_driver):
    add_model(work / "models", "doubles", DOUBLES_ON_GPU)
    add_code_model(work / "models")
    add_code_model(work / "models", "untouched")
    with ServerProcess(work / "models", work=work, environ=shared_driver.environ) as server:
        server.driver = shared_driver
        yield server


@pytest.fixture
def server(shared_server):
    """The server of all tests here, with nothing registered or allocated that an earlier test has left."""
    driver = shared_server.driver
    shared_server.wait_for(lambda: not driver.pinned() and not driver.allocations(), "what is idle to be given back")
    return shared_server


def float_tensor(values):
    return input_of(tritonclient.http, "IN", values)


def test_clients_get_the_bytes_of_outputs_in_gpu_memory(server):
    for module, url in ((tritonclient.http, server.http_url), (tritonclient.grpc, server.grpc_url)):
        with module.InferenceServerClient(url) as connection:
            for count in (0, 1, 4, 100_000, 3_000_000, 3_000_000, 3_000_000, 7):
                values = np.arange(count, dtype=np.float32)
                given = input_of(module, "IN", values)
                answer = connection.infer("doubles", [given]).as_numpy("OUT")
                assert np.array_equal(answer, values * 2), (module, count)


def test_outputs_are_copied_once_from_the_device_to_the_segment(server):
    values = np.ones(3_000_000, np.float32)
    copied, registered = len(server.driver.bytes_of("cuMemcpyDtoH_v2")), server.driver.calls()["cuMemHostRegister_v2"]

    with tritonclient.http.InferenceServerClient(server.http_url) as connection:
        for _ in range(4):
            connection.infer("doubles", [float_tensor(values)])

    assert server.driver.bytes_of("cuMemcpyDtoH_v2")[copied:] == [values.nbytes] * 4
    assert len(server.driver.pinned()) <= 2, "the block is registered once, not at each response"
    assert 1 <= server.driver.calls()["cuMemHostRegister_v2"] - registered <= 2


def test_registered_memory_and_regions_are_in_the_statistics_and_the_metrics(tmp_path, driver):
    add_model(tmp_path / "models", "doubles", DOUBLES_ON_GPU)
    with ServerProcess(tmp_path / "models", work=tmp_path, environ=driver.environ) as server:
        server.driver = driver
        judge_reports(server)


def judge_reports(server):
    given = float_tensor(np.ones(2_000_000, np.float32))

    def reported() -> list[dict[str, object]]:
        return server.get("/v2/models/doubles/stats").json()["model_stats"][0].get("memory_usage", [])

    def metric() -> str:
        return next(
            line for line in server.metrics().splitlines() if line.startswith("nv_pinned_memory_pool_used_bytes ")
        )

    size = 8 << 20
    seen = reported(), metric()
    assert seen == ([], "nv_pinned_memory_pool_used_bytes 0")
    expected = [{"type": "CPU_PINNED", "id": 0, "byte_size": size}], f"nv_pinned_memory_pool_used_bytes {size}"
    with tritonclient.http.InferenceServerClient(server.http_url) as connection:
        # Usually the second one registers its block, unless the guest paused before it.
        for _ in range(50):
            connection.infer("doubles", [given])
            seen = reported(), metric()
            if seen == expected:
                break
    assert seen == expected
    server.wait_for(lambda: not server.driver.pinned(), "the pause after which pages are given back")
    server.wait_for(lambda: metric() == "nv_pinned_memory_pool_used_bytes 0", "the report")


def test_memory_of_the_device_is_released_after_the_response(server):
    for count in (4, 3_000_000):
        document = {"inputs": [{"name": "IN", "datatype": "FP32", "shape": [count], "data": [1.0] * count}]}
        assert server.post("/v2/models/doubles/infer", document).status == 200

    server.wait_for(lambda: not server.driver.allocations(), "all allocations to be freed")


def test_models_without_gpu_tensors_do_not_load_the_driver(server):
    loaded = "[name for name in __import__('sys').modules if 'cuda' in name or name == 'naiad_stub.dlpack']"

    assert evaluate(server, "untouched", loaded) == "[]"
    assert "libcuda" not in evaluate(server, "untouched", "open('/proc/self/maps').read()")
    pid = evaluate(server, "untouched", "os.getpid()")
    assert [name for name in server.driver.contexts() if f"-{pid}-" in name] == []


@pytest.mark.parametrize(
    ("function", "code", "text"),
    [
        (
            "cuMemcpyDtoH_v2",
            999,
            "cannot copy 400000 bytes of the memory of GPU 0 to the CPU: {} CUDA_ERROR_UNKNOWN (999)",
        ),
        ("cuCtxPushCurrent_v2", 201, "cannot use GPU 0: {} CUDA_ERROR_INVALID_CONTEXT (201)"),
    ],
)
def test_a_call_of_the_driver_that_fails_fails_the_request_alone(server, function, code, text):
    text = text.format(f"{function} failed with")
    document = {"inputs": [{"name": "IN", "datatype": "FP32", "shape": [100_000], "data": [1.0] * 100_000}]}
    assert server.post("/v2/models/doubles/infer", document).status == 200
    pid = evaluate(server, "code", "os.getpid()")

    if function == "cuCtxPushCurrent_v2":  # only of what the guest does, not of the model's own array
        evaluate(server, "code", IMPORTS + "t = pb_utils.Tensor.from_dlpack('X', DeviceArray.of(np.zeros(100)))")
        server.driver.fail(function, code)
        assert text in evaluate(server, "code", "t.as_numpy()")
        server.driver.mend(function)
        evaluate(server, "code", "del t; gc.collect()")
    else:
        server.driver.fail(function, code, once=True)
        reply = server.post("/v2/models/doubles/infer", document)
        assert (reply.status, text in reply.error) == (500, True), reply.body

    assert server.post("/v2/models/doubles/infer", document).status == 200
    assert evaluate(server, "code", "os.getpid()") == pid
    server.wait_for(lambda: not server.driver.allocations(), "the failed output to be freed")


def test_outputs_are_sent_where_memory_cannot_be_registered(tmp_path, driver):
    """On a server of its own: a guest tries it once."""
    values = np.ones(2_000_000, np.float32)
    driver.fail("cuMemHostRegister_v2", 2)
    add_model(tmp_path / "models", "doubles", DOUBLES_ON_GPU)
    with (
        ServerProcess(tmp_path / "models", work=tmp_path, environ=driver.environ) as server,
        tritonclient.http.InferenceServerClient(server.http_url) as connection,
    ):
        answers = [connection.infer("doubles", [float_tensor(values)]).as_numpy("OUT") for _ in range(3)]
        assert driver.pinned() == []

    assert all(np.array_equal(answer, values * 2) for answer in answers)


def test_registered_memory_is_given_up_before_its_pages_are(server):
    """The driver writes to the pages that it registered: if the system had got them back, responses would be wrong."""
    values = np.arange(3_000_000, dtype=np.float32)
    given = float_tensor(values)
    before = server.driver.calls()["cuMemHostRegister_v2"]
    with tritonclient.http.InferenceServerClient(server.http_url) as connection:
        # Usually the second one registers its block, unless the guest paused before it.
        for _ in range(50):
            connection.infer("doubles", [given])
            if server.driver.calls()["cuMemHostRegister_v2"] > before:
                break
        assert server.driver.calls()["cuMemHostRegister_v2"] > before
        server.wait_for(lambda: not server.driver.pinned(), "the pause after which pages are given back")
        assert np.array_equal(connection.infer("doubles", [given]).as_numpy("OUT"), values * 2)


def test_without_a_driver_the_error_says_what_is_missing(tmp_path):
    """The array is a pretended one: where there is no driver, no real one can be made."""
    pretended = """
import device_arrays
class Pretended(device_arrays.DeviceArray):
    def __init__(self):
        self.shape, self.dtype, self.address, self.ordinal, self.stream = (2,), np.dtype("f4"), 4096, 0, None
        self.asked_streams, self._base = [], 0
"""
    add_code_model(tmp_path / "models")
    with ServerProcess(tmp_path / "models", work=tmp_path) as server:
        assert evaluate(server, "code", pretended) == "done"
        answer = evaluate(server, "code", "pb_utils.Tensor.from_dlpack('X', Pretended())")
        again = evaluate(server, "code", "pb_utils.Tensor.from_dlpack('X', Pretended().capsule())")

    for text in (answer, again):
        assert text.startswith(
            "TritonModelException: cannot use a tensor in GPU memory: NVIDIA's driver is missing (libcuda.so.1: cannot "
            "open shared object file"
        )
        assert text.endswith(
            "; run the server on a machine with the driver, in a container with access to its GPUs (docker run --gpus "
            "all)"
        )


def test_a_driver_without_a_device_is_reported(tmp_path, driver):
    add_code_model(tmp_path / "models")
    with ServerProcess(tmp_path / "models", work=tmp_path, environ=driver.environ) as server:
        evaluate(server, "code", IMPORTS + "a = DeviceArray.of(np.zeros(2)); a.ordinal = 3")
        answer = evaluate(server, "code", "pb_utils.Tensor.from_dlpack('X', a)")
        evaluate(server, "code", "a.ordinal = 0; del a")
        (driver.folder / "fail-cuInit").write_text("100")
        none = evaluate(server, "code", "__import__('naiad_stub.cuda.driver', fromlist=['Driver']).Driver()")

    assert answer == "CudaError: cannot use GPU 3: cuDeviceGet failed with CUDA_ERROR_INVALID_DEVICE (101)"
    assert none == (
        "TritonModelException: cannot use a tensor in GPU memory: cuInit failed with CUDA_ERROR_NO_DEVICE (100); check "
        "that `nvidia-smi` works there and which devices CUDA_VISIBLE_DEVICES names"
    )
