"""A model's call of another model has a timeout of its own, as a client's request has."""

from __future__ import annotations

import pytest
from support.model_files import python_config, write_files
from support.server import ServerProcess
from support.threads import in_thread

CALLEE = """
def initialize(self, args):
    self.gate = os.path.join(args["model_repository"], "gate")

def respond(self, request):
    given = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
    if given.max():
        pb_utils.Logger.log_info("waits for the gate")
        while not os.path.exists(self.gate):
            time.sleep(0.01)
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", given)])
"""
CALLER = """
def respond(self, request):
    timeout = int(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy().flat[0])
    tensor = pb_utils.Tensor("IN", np.zeros((1, 1), np.float32))
    answer = pb_utils.InferenceRequest("", 0, [tensor], ["OUT"], "callee", timeout=timeout).exec()
    text = answer.error().message() if answer.has_error() else "fine"
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([text], object))])
"""
BATCHES = """
max_batch_size: 1
dynamic_batching { default_queue_policy { default_timeout_microseconds: 60000000 allow_timeout_override: true } }
"""


@pytest.fixture(scope="module")
def server(work):
    write_files(work / "models", "callee", python_config("IN FP32 1", "OUT FP32 1", BATCHES), CALLEE)
    write_files(work / "models", "caller", python_config("IN FP32 1", "OUT STRING 1"), CALLER)
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
    busy = in_thread(ask, server, "callee", [1, 1], 1)
    server.wait_log("waits for the gate")
    assert ask(server, "caller", [1], 50_000) == ["Request timeout expired"]
    (server.work / "models" / "callee" / "gate").touch()
    busy.exception(60)
