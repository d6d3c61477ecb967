"""Responses whose outputs are not those of the request and the configuration: the client gets the others, the log a line."""

from __future__ import annotations

import pytest
from support.server import ServerProcess

CODE = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        names = ["A", "B"] if len(requests) > 1 else NAMES
        return [pb_utils.InferenceResponse([pb_utils.Tensor(n, np.zeros(1, np.int32)) for n in names]) for _ in requests]
"""
CONFIG = """backend: "python"
output [ { name: "A" data_type: TYPE_INT32 dims: [ 1 ] }, { name: "B" data_type: TYPE_INT32 dims: [ 1 ] } ]
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("names")
    for name, returned in {"lacks": ["A"], "extra": ["A", "B", "C"], "right": ["A", "B"]}.items():
        file = folder / "models" / name / "1" / "model.py"
        file.parent.mkdir(parents=True)
        file.write_text(CODE.replace("NAMES", str(returned)))
        (folder / "models" / name / "config.pbtxt").write_text(CONFIG)
    with ServerProcess(folder / "models", work=folder) as running:
        yield running


def returned(server: ServerProcess, model: str, *requested: str) -> list[str]:
    document = {"inputs": [], "outputs": [{"name": name} for name in requested]}
    reply = server.post(f"/v2/models/{model}/infer", document if requested else {"inputs": []})
    assert reply.status == 200, reply.error
    return [output["name"] for output in reply.json()["outputs"]]


def lines(server: ServerProcess, model: str) -> list[str]:
    return [line for line in server.log.splitlines() if line.startswith("W") and f" {model}_0 " in line]


def test_a_requested_output_that_is_missing_is_warned_of_once(server):
    assert returned(server, "lacks", "A") == ["A"]
    assert lines(server, "lacks") == []
    for _ in range(3):
        assert returned(server, "lacks") == ["A"]
    said = (
        "a response lacks the output 'B', which was requested, so that its client gets status 200 with the other outputs; "
        "return all requested outputs, or an error"
    )
    server.wait_log(said)
    (line,) = lines(server, "lacks")
    assert said in line


def test_an_output_that_the_configuration_does_not_name_is_warned_of_once(server):
    for _ in range(3):
        assert returned(server, "extra") == ["A", "B"]
    said = (
        "a response has the output 'C', which the configuration does not name, so that clients do not get it; declare it "
        "in config.pbtxt, or remove it from the response"
    )
    server.wait_log(said)
    (line,) = lines(server, "extra")
    assert said in line


def test_outputs_that_a_client_does_not_request_are_no_reason_for_a_warning(server):
    assert returned(server, "right", "B") == ["B"]
    assert returned(server, "right") == ["A", "B"]
    returned(server, "extra")
    server.wait_log("has the output 'C'")  # so that the lines of earlier requests are there, too
    assert lines(server, "right") == []
