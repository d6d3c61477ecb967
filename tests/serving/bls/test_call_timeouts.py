"""A model's call of another model has a timeout of its own, as a client's request has."""

from __future__ import annotations

import threading

import pytest
from support.server import ServerProcess

CALLEE = """
import os
import time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.gate = os.path.join(args["model_repository"], "gate")

    def execute(self, requests):
        responses = []
        for request in requests:
            given = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            if given.max():
                pb_utils.Logger.log_info("waits for the gate")
                while not os.path.exists(self.gate):
                    time.sleep(0.01)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", given)]))
        return responses
"""
CALLER = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            timeout = int(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy().flat[0])
            tensor = pb_utils.Tensor("IN", np.zeros((1, 1), np.float32))
            call = pb_utils.InferenceRequest(
                model_name="callee", requested_output_names=["OUT"], inputs=[tensor], timeout=timeout
            )
            answer = call.exec()
            text = answer.error().message() if answer.has_error() else "fine"
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([text], object))]))
        return responses
"""
INPUT = 'backend: "python"\ninput [ { name: "IN" data_type: TYPE_FP32 dims: [ 1 ] } ]\n'
CALLEE_CONFIG = f"""{INPUT}
max_batch_size: 1
output [ {{ name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] }} ]
dynamic_batching {{
  default_queue_policy {{ default_timeout_microseconds: 60000000 allow_timeout_override: true }}
}}
"""
CALLER_CONFIG = f'{INPUT}output [ {{ name: "OUT" data_type: TYPE_STRING dims: [ 1 ] }} ]\n'


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    work = tmp_path_factory.mktemp("timeouts")
    for name, code, config in (("callee", CALLEE, CALLEE_CONFIG), ("caller", CALLER, CALLER_CONFIG)):
        (work / "models" / name / "1").mkdir(parents=True)
        (work / "models" / name / "1" / "model.py").write_text(code)
        (work / "models" / name / "config.pbtxt").write_text(config)
    with ServerProcess(work / "models", work=work) as running:
        yield running


def ask(server: ServerProcess, model: str, shape: list[int], value: float) -> list[object]:
    tensor = {"name": "IN", "shape": shape, "datatype": "FP32", "data": [value]}
    reply = server.post(f"/v2/models/{model}/infer", {"inputs": [tensor]})
    assert reply.status == 200, reply.error
    return reply.json()["outputs"][0]["data"]


@pytest.mark.parametrize(("timeout", "expected"), [(5, "Request timeout expired"), (0, "fine"), (30_000_000, "fine")])
def test_a_tiny_timeout_of_a_call_to_an_idle_model_expires_and_a_longer_one_does_not(server, timeout, expected):
    assert ask(server, "caller", [1], timeout) == [expected]


def test_a_call_expires_while_the_model_is_busy(server):
    server.begin_log()
    busy = threading.Thread(target=ask, args=(server, "callee", [1, 1], 1))
    busy.start()
    server.wait_log("waits for the gate")
    assert ask(server, "caller", [1], 50_000) == ["Request timeout expired"]
    (server.work / "models" / "callee" / "gate").touch()
    busy.join()
