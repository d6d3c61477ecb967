"""A model that goes on with requests whose clients have left does not keep a server that is to end."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton
from support.client_inputs import input_of
from support.model_files import python_config, write_files
from support.server import HOST, ServerProcess
from support.waiting import until

_MODEL = """
def initialize(self, args):
    config = json.loads(args["model_config"])
    self.is_decoupled = pb_utils.using_decoupled_model_transaction_policy(config)

def execute(self, requests):
    response = pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.zeros(1, np.float32))])
    if self.is_decoupled:
        requests[0].get_response_sender().send(response)
    print("begun", flush=True)
    while not requests[0].is_cancelled():
        time.sleep(0.01)
    print("cancelled", flush=True)
    time.sleep(600)  # as if it did not look
"""
_KILLED = "still executes requests that were cancelled and is killed"


@pytest.fixture
def models(tmp_path: Path) -> Path:
    for name, more in (("once", ""), ("stream", "model_transaction_policy { decoupled: true }")):
        write_files(tmp_path / "models", name, python_config("IN FP32 1", "OUT FP32 1", more), _MODEL)
    return tmp_path / "models"


def leave_http(server: ServerProcess, path: str, document: object) -> None:
    """Send a request, and disconnect once the model executes it."""
    with contextlib.closing(http.client.HTTPConnection(HOST, server.http_port, timeout=60)) as connection:
        connection.request("POST", path, json.dumps(document))
        until(lambda: "begun" in server.log, "the request to be executed")


def leave_grpc(server: ServerProcess) -> None:
    """The same over gRPC."""
    tensor = input_of(triton, "IN", np.zeros(1, np.float32))
    with triton.InferenceServerClient(server.grpc_url) as client:
        call = client.async_infer("once", [tensor], callback=lambda result, error: None)
        until(lambda: "begun" in server.log, "the request to be executed")
        call.cancel()


CLIENTS = {
    "a stream of events": lambda server: leave_http(server, "/v2/models/stream/generate_stream", {"IN": 1.0}),
    "a request over HTTP": lambda server: leave_http(server, "/v2/models/once/generate", {"IN": 1.0}),
    "a call over gRPC": leave_grpc,
}


@pytest.mark.parametrize(
    ("client", "frontends"), [*((client, 0) for client in CLIENTS), ("a request over HTTP", 2), ("a call over gRPC", 2)]
)
def test_a_server_does_not_wait_for_its_exit_timeout_if_clients_have_left(tmp_path, models, frontends, client) -> None:
    options = (f"--processes={max(int(frontends), 1)}", "--exit-timeout-secs=600")
    with ServerProcess(models, *options, work=tmp_path) as server:
        CLIENTS[client](server)
        until(lambda: "cancelled" in server.log, "the model to be told")
        os.kill(server.pid, signal.SIGTERM)
        assert server.wait_exit(60) == 0
        assert _KILLED in server.log


def test_an_unload_does_not_wait_for_the_exit_timeout_if_clients_have_left(tmp_path, models) -> None:
    options = ("--model-control-mode=explicit", "--load-model=once", "--exit-timeout-secs=600")
    with ServerProcess(models, *options, work=tmp_path) as server:
        CLIENTS["a request over HTTP"](server)
        until(lambda: "cancelled" in server.log, "the model to be told")
        assert server.post("/v2/repository/models/once/unload").status == 200
        server.wait_log(_KILLED)
        until(lambda: not server.children(), "the guest to be killed")
