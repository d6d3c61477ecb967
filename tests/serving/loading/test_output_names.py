"""Responses whose outputs are not those of the request and the configuration: the client gets the others, the log a line."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import tritonclient.grpc as grpcclient
from support.model_files import python_config, write_files
from support.server import ServerProcess

CODE = """
def execute(self, requests):
    return [pb_utils.InferenceResponse([pb_utils.Tensor(n, np.zeros(1, np.int32)) for n in NAMES]) for _ in requests]
"""
CONFIG = python_config("", "A INT32 1,B INT32 1", "instance_group { kind: KIND_CPU count: 3 }\n")
MODELS = {
    "lacks": CODE.replace("NAMES", '["A"]'),
    "extra": CODE.replace("NAMES", '["A", "B", "C"]'),
    "rpc": CODE.replace("NAMES", '["A"]'),
}


@pytest.fixture(scope="module")
def server(work):
    for name, code in MODELS.items():
        write_files(work / "models", name, CONFIG, code)
    with ServerProcess(work / "models", work=work) as running:
        yield running


def returned(server: ServerProcess, model: str, *requested: str) -> list[str]:
    document = {"inputs": [], "outputs": [{"name": name} for name in requested]}
    reply = server.post(f"/v2/models/{model}/infer", document if requested else {"inputs": []})
    assert reply.status == 200, reply.error
    return [output["name"] for output in reply.json()["outputs"]]


def returned_to_several(server: ServerProcess, model: str, *requested: str) -> None:
    """Have each of the model's instances respond, as several requests at a time do."""
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: returned(server, model, *requested), range(60)))


def lines(server: ServerProcess, model: str) -> list[str]:
    """The warnings of the model's guests, once the log has all that earlier requests caused."""
    server.wait_log(f"[{model} v1 ")
    return [line for line in server.log.splitlines() if line.startswith("W") and f"[{model} v1 " in line]


def lacks(name: str) -> str:
    return (
        f"a response lacks the output '{name}', which its client requested by name, so that the client gets the other "
        "outputs and no error; return all requested outputs, or an error"
    )


def has(name: str) -> str:
    return (
        f"a response has the output '{name}', which the configuration does not name, so that clients do not get it; "
        "declare it in config.pbtxt, or remove it from the response"
    )


def test_a_missing_output_that_a_client_named_is_warned_of_once_for_the_model_and_not_for_each_instance(server):
    assert returned(server, "lacks") == ["A"]  # the client wants what there is
    assert returned(server, "lacks", "A") == ["A"]
    assert "[lacks v1 " not in server.log
    returned_to_several(server, "lacks", "B", "A")
    (line,) = lines(server, "lacks")
    assert lacks("B") in line


def test_a_missing_output_that_a_client_named_over_grpc_is_warned_of(server):
    assert "[rpc v1 " not in server.log
    with grpcclient.InferenceServerClient(server.grpc_url) as client:
        outputs = [grpcclient.InferRequestedOutput(name) for name in ("A", "B")]
        assert client.infer("rpc", [], outputs=outputs).as_numpy("B") is None
    (line,) = lines(server, "rpc")
    assert lacks("B") in line


def test_an_output_that_the_configuration_does_not_name_is_warned_of_once_for_the_model(server):
    assert returned(server, "extra") == ["A", "B"]
    returned_to_several(server, "extra", "A", "B")
    (line,) = lines(server, "extra")
    assert has("C") in line
