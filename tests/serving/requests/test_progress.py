"""A model with a queue of its own says which requests wait in it: they are pending, and their time is queue time."""

from __future__ import annotations

import http.client
from pathlib import Path

import pytest
from serving.repositories import Asking, infer, values
from support.server import ServerProcess

MODEL = """
import os, queue, threading, time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.queue = queue.Queue()
        threading.Thread(target=self.work, daemon=True).start()

    def work(self):
        while True:
            request, sender = self.queue.get()
            sender.mark_started()
            while not os.path.exists({gate!r}):
                time.sleep(0.01)
            seconds = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            time.sleep(float(seconds[0]))
            response = pb_utils.InferenceResponse([pb_utils.Tensor("OUT", seconds)])
            sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            sender.mark_queued()
            self.queue.put((request, sender))
"""
CONFIG = """
backend: "python"
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] } ]
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    work = tmp_path_factory.mktemp("progress")
    (work / "models" / "m" / "1").mkdir(parents=True)
    model = MODEL.replace("{gate!r}", repr(str(gate_of(work))))
    (work / "models" / "m" / "1" / "model.py").write_text(model)
    (work / "models" / "m" / "config.pbtxt").write_text(CONFIG)
    with ServerProcess(work / "models", work=work) as running:
        yield running


def gate_of(work: Path) -> Path:
    """The file that the model waits for before it executes its first request."""
    return work / "gate"


def pending(server: ServerProcess) -> float:
    connection = http.client.HTTPConnection(*server.metrics_url.split(":"), timeout=30)
    connection.request("GET", "/metrics")
    page = connection.getresponse().read().decode()
    connection.close()
    start = 'nv_inference_pending_request_count{model="m",version="1"} '
    return float(next(line[len(start) :] for line in page.splitlines() if line.startswith(start)))


def test_requests_that_wait_inside_a_model_are_pending_and_queued(server):
    before = server.get("/v2/models/m/stats").json()["model_stats"][0]["inference_stats"]
    asking = [Asking(server, "m", 0.5) for _ in range(3)]
    server.wait_for(lambda: pending(server) == 2, "two requests to wait behind the first")
    gate_of(server.work).touch()
    assert [values(each.reply()) for each in asking] == [[0.5]] * 3
    assert pending(server) == 0
    stats = server.get("/v2/models/m/stats").json()["model_stats"][0]["inference_stats"]
    queue, compute = (stats[name]["ns"] - before[name]["ns"] for name in ("queue", "compute_infer"))
    # All three were there before the first was executed: the third waited at least for the half second of the second.
    assert queue >= 0.5e9
    assert compute >= 1.5e9
    assert compute + queue <= stats["success"]["ns"] - before["success"]["ns"]
    assert values(infer(server, "m", 0.0)) == [0.0]
