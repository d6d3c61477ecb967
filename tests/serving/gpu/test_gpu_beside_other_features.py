"""Tensors in GPU memory with sequences, the response cache, warm-up, traces and classification: as the page says."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tritonclient.http
from serving.gpu.gpu_models import DOUBLES_ON_GPU, add_model
from support.client_inputs import input_of
from support.cuda import StandInDriver
from support.server import ServerProcess

ADDS_UP = """
def respond(self, request):
    given = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
    total = device_arrays.DeviceArray.of(given + pb_utils.get_input_tensor_by_name(request, "SUM_IN").as_numpy())
    return pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack(name, total) for name in ("OUT", "SUM_OUT")])
"""
STATE = """
sequence_batching {
  state [{
    input_name: "SUM_IN" output_name: "SUM_OUT" data_type: TYPE_FP32 dims: [ 30000 ]
    initial_state: { data_type: TYPE_FP32 dims: [ 30000 ] zero_data: true name: "zeros" }
  }]
}
"""
WARM_UP = """
model_warmup [{ name: "first" batch_size: 0 inputs { key: "IN" value { data_type: TYPE_FP32 dims: [30000] random_data: true } } }]
"""


@pytest.fixture(scope="module")
def server(work):
    driver = StandInDriver(work / "cuda", has_management=True)
    add_model(work / "models", "adds_up", ADDS_UP, config=STATE)
    add_model(work / "models", "doubles", DOUBLES_ON_GPU, config=WARM_UP)
    add_model(work / "models", "cached", DOUBLES_ON_GPU, config="response_cache { enable: true }\n")
    trace = work / "trace.json"
    options = (
        "--allow-client-shm=true",
        "--cache-config=local,size=10485760",
        f"--trace-config=triton,file={trace}",
        "--trace-config=level=TENSORS",
        "--trace-config=rate=1",
        "--trace-config=triton,log-frequency=1",
    )
    with (
        ServerProcess(work / "models", *options, work=work, environ=driver.environ) as server,
        driver.client() as memory,
    ):
        server.driver, server.memory, server.trace = driver, memory, trace
        with tritonclient.http.InferenceServerClient(server.http_url) as server.client:
            yield server
    assert (driver.allocations(), driver.opened(), driver.pinned(), driver.contexts()) == ([], [], [], [])


def given(values):
    return input_of(tritonclient.http, "IN", values)


def totals_of(server, tensor, sequence):
    """An element of the outputs of a sequence of three requests."""
    marks = ({"sequence_start": not step, "sequence_end": step == 2} for step in range(3))
    answers = [server.client.infer("adds_up", [tensor], sequence_id=sequence, **each) for each in marks]
    return [answer.as_numpy("OUT").tolist()[7] for answer in answers]


def test_states_of_sequences_may_be_made_in_gpu_memory(server):
    assert totals_of(server, given(np.ones(30_000, np.float32)), 5) == [1.0, 2.0, 3.0]


def test_inputs_of_a_sequence_may_be_in_gpu_memory_of_the_client(server):
    region = server.memory.allocate(120_000)
    region.write(np.full(30_000, 2, np.float32).tobytes())
    server.client.register_cuda_shared_memory("sequence", region.handle, 0, 120_000)
    tensor = tritonclient.http.InferInput("IN", [30_000], "FP32")
    tensor.set_shared_memory("sequence", 120_000)
    totals = totals_of(server, tensor, 6)
    server.client.unregister_cuda_shared_memory("sequence")
    assert totals == [2.0, 4.0, 6.0]


def test_an_output_that_was_in_gpu_memory_is_cached(server):
    values = np.arange(30_000, dtype=np.float32)
    answers = [server.client.infer("cached", [given(values)]).as_numpy("OUT") for _ in range(2)]
    assert all(np.array_equal(answer, values * 2) for answer in answers)
    statistics = server.get("/v2/models/cached/stats").json()["model_stats"][0]
    assert statistics["inference_stats"]["cache_hit"]["count"] == 1
    assert statistics["execution_count"] == 1


def test_classes_are_made_of_an_output_in_gpu_memory(server):
    values = np.zeros(30_000, np.float32)
    values[[17, 4]] = 3, 2
    wanted = tritonclient.http.InferRequestedOutput("OUT", class_count=2)
    answer = server.client.infer("doubles", [given(values)], outputs=[wanted]).as_numpy("OUT")
    assert answer.tolist() == [b"6.000000:17", b"4.000000:4"]


def test_a_model_that_makes_outputs_in_gpu_memory_is_warmed_up(server):
    statistics = server.get("/v2/models/doubles/stats").json()["model_stats"][0]
    assert statistics["inference_stats"]["fail"]["count"] == 0
    assert server.log.count("warm") == 0 or "failed" not in server.log


def test_traces_leave_out_what_is_in_gpu_memory_of_the_client(server):
    region = server.memory.allocate(240_000)
    region.write(np.full(30_000, 2, np.float32).tobytes())
    server.client.register_cuda_shared_memory("traced", region.handle, 0, 240_000)
    tensor = tritonclient.http.InferInput("IN", [30_000], "FP32")
    tensor.set_shared_memory("traced", 120_000)
    output = tritonclient.http.InferRequestedOutput("OUT")
    output.set_shared_memory("traced", 120_000, 120_000)

    server.client.infer("doubles", [tensor], outputs=[output], request_id="hidden")
    server.client.infer("doubles", [given(np.ones(3, np.float32))], request_id="shown")

    server.wait_for(lambda: {"hidden", "shown"} <= set(activities(server)), "the traces")
    found = activities(server)
    assert found["hidden"] == set()
    assert found["shown"] == {"TENSOR_QUEUE_INPUT", "TENSOR_BACKEND_OUTPUT"}
    assert region.read(4, 120_000) == np.float32(4).tobytes()
    server.client.unregister_cuda_shared_memory("traced")


def activities(server):
    """The tensors that were traced of each request with an id; a file has one trace."""
    found = {}
    for path in server.trace.parent.glob(f"{server.trace.name}.*"):
        text = path.read_text()
        if text.rstrip().endswith("]"):  # it is complete
            records = json.loads(text)
            names = [record["request_id"] for record in records if "request_id" in record]
            found.update({name: {record["activity"] for record in records if "activity" in record} for name in names})
    return found
