"""Outputs of another datatype or shape than the configuration declares: the client gets them, the log a line."""

from __future__ import annotations

import json

import pytest
from support.model_files import write_files
from support.server import ServerProcess

from naiad.cli.main import main

CODE = """
def execute(self, requests):
    values = [pb_utils.get_input_tensor_by_name(request, "IN").as_numpy() for request in requests]
    return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", RETURNED)]) for value in values]
"""
CONFIG = """backend: "python"
max_batch_size: 8
input { name: "IN" data_type: TYPE_FP32 dims: -1 }
output { name: "OUT" data_type: TYPE_FP32 dims: 2 DECLARED }
instance_group { kind: KIND_CPU count: 2 }
dynamic_batching { }
"""
MODELS = {
    "right": ("value[:, :2]", ""),
    "doubles": ("value[:, :2].astype(np.float64)", ""),
    "longer": ("value", ""),
    "flat": ("value[0]", ""),
    "reshaped": ("value[:, :2].reshape(-1, 2, 1)", "reshape { shape: [ 2, 1 ] }"),
}


@pytest.fixture(scope="module")
def folder(work):
    for name, (code, declared) in MODELS.items():
        config = CONFIG.replace("DECLARED", declared)
        write_files(work / "models", name, config, CODE.replace("RETURNED", code))
    return work


@pytest.fixture(scope="module")
def server(folder):
    with ServerProcess(folder / "models", work=folder) as running:
        yield running


def returned(server, model, columns):
    document = {"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1, columns], "data": [1.0] * columns}]}
    reply = server.post(f"/v2/models/{model}/infer", document)
    assert reply.status == 200, reply.error
    (output,) = reply.json()["outputs"]
    return output["datatype"], output["shape"]


def line(form: str) -> str:
    return (
        f"output 'OUT' is not what the configuration declares: a response has it as {form}, declared is TYPE_FP32 [-1,2]"
        "; clients get it as it is; correct config.pbtxt or the response"
    )


def warned(server) -> list[str]:
    return [each for each in server.log.splitlines() if "is not what the configuration declares" in each]


def test_an_output_that_contradicts_the_configuration_is_delivered_and_warned_of_once_a_model(server):
    assert returned(server, "right", 2) == ("FP32", [1, 2])
    assert returned(server, "reshaped", 2) == ("FP32", [1, 2])
    assert returned(server, "doubles", 2) == ("FP64", [1, 2])
    for columns in range(3, 12):
        assert returned(server, "longer", columns) == ("FP32", [1, columns])
    assert returned(server, "flat", 2) == ("FP32", [2])
    server.wait_log("[flat v1 ")
    assert [each.partition("pid")[0].rpartition("[")[2].split()[0] for each in warned(server)] == [
        "doubles",
        "longer",
        "flat",
    ]
    doubles, longer, flat = warned(server)
    assert line("TYPE_FP64 [1,2]") in doubles
    assert line("TYPE_FP32 [1,3]") in longer
    assert line("TYPE_FP32 [2]") in flat


def test_naiad_run_says_it_and_prints_the_output(folder, capfd):
    document = {"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1, 2], "data": [1.0, 2.0]}]}
    request = folder / "request.json"
    request.write_text(json.dumps(document))
    assert main(["run", str(folder / "models" / "doubles"), f"--input={request}"]) == 0
    out, err = capfd.readouterr()
    assert line("TYPE_FP64 [1,2]") in err
    assert "FP64" in out
