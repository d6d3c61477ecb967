"""Models as steps of KServe's InferenceGraph: the requests are those of its router."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.late_import import LateModule
from support.model_files import python_config, write_files
from support.server import ServerProcess

jsonschema = LateModule("jsonschema")

ROOT = Path(__file__).parents[3]
SCALE = """
def initialize(self, args):
    self._input, self._output = (json.loads(args["model_config"])[side][0]["name"] for side in ("input", "output"))

def respond(self, request):
    tensor = pb_utils.get_input_tensor_by_name(request, self._input)
    return pb_utils.InferenceResponse([pb_utils.Tensor(self._output, tensor.as_numpy() * 2)])
"""


@pytest.fixture(scope="module")
def server(work: Path) -> Iterator[ServerProcess]:
    write_files(work / "models", "first", python_config("IMAGE FP32 -1", "FEATURES FP32 -1"), SCALE)
    write_files(work / "models", "second", python_config("FEATURES FP32 -1", "LABEL FP32 -1"), SCALE)
    with ServerProcess(work / "models", work=work) as server:
        yield server


@pytest.fixture(scope="module")
def graph() -> dict[str, Any]:
    """The graph of the how-to page."""
    page = (ROOT / "docs/how-to/kserve.md").read_text()
    text = next(block for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL) if "InferenceGraph" in block)
    document: dict[str, Any] = yaml.safe_load(text)
    jsonschema.validate(document, json.loads((ROOT / "tests/operations/deploy/graph.schema.json").read_text()))
    return document


def route(server: ServerProcess, nodes: Mapping[str, Any], node: str, body: bytes) -> bytes:
    """Response of a node, as KServe's router computes it: bodies are sent on as they are, without headers."""
    if nodes[node]["routerType"] == "Ensemble":
        answers = {step["name"]: json.loads(call(server, nodes, step, body)) for step in nodes[node]["steps"]}
        return json.dumps(answers).encode()
    assert nodes[node]["routerType"] == "Sequence"
    answer = b""
    for index, step in enumerate(nodes[node]["steps"]):
        answer = call(server, nodes, step, answer if index and step.get("data") == "$response" else body)
    return answer


def call(server: ServerProcess, nodes: Mapping[str, Any], step: Mapping[str, Any], body: bytes) -> bytes:
    if "nodeName" in step:
        return route(server, nodes, step["nodeName"], body)
    path = re.sub(r"^http://[^/]+", "", step["serviceUrl"])
    reply = server.request("POST", path, body, {"Content-Type": "application/json"})
    assert reply.status == 200, reply.body
    return reply.body


def image(**more: Any) -> bytes:
    tensor = {"name": "IMAGE", "datatype": "FP32", "shape": [2], "data": [1.0, 2.0]}
    return json.dumps({"inputs": [tensor], **more}).encode()


def test_a_response_is_the_request_of_the_next_step(server: ServerProcess, graph: dict[str, Any]):
    answer = json.loads(route(server, graph["spec"]["nodes"], "root", image(id="7")))

    assert answer["model_name"] == "second"
    assert answer["id"] == "7"
    (output,) = answer["outputs"]
    assert (output["name"], output["data"]) == ("LABEL", [4.0, 8.0])


def test_an_ensemble_joins_the_answers_of_its_steps(server: ServerProcess, graph: dict[str, Any]):
    first = graph["spec"]["nodes"]["root"]["steps"][0]["serviceUrl"]
    nodes = {"root": {"routerType": "Ensemble", "steps": [{"name": name, "serviceUrl": first} for name in "ab"]}}

    answers = json.loads(route(server, nodes, "root", image()))

    assert {name: answer["outputs"][0]["data"] for name, answer in answers.items()} == {
        "a": [2.0, 4.0],
        "b": [2.0, 4.0],
    }


@pytest.mark.parametrize(
    "outputs",
    [
        [],
        [{"name": "LABEL"}],
        [{"name": "FEATURES", "datatype": "FP32", "shape": [1], "data": [1.0]}, {"name": "LABEL"}],
        "LABEL",
    ],
)
def test_a_request_that_only_names_outputs_has_no_inputs(server: ServerProcess, outputs: Any):
    reply = server.post("/v2/models/second/infer", {"model_name": "first", "outputs": outputs})
    assert reply.error.startswith("Unable to parse '")


def test_outputs_are_not_given_as_inputs_of_other_names(server: ServerProcess):
    tensor = {"name": "IMAGE", "datatype": "FP32", "shape": [1], "data": [1.0]}
    reply = server.post("/v2/models/second/infer", {"model_name": "zeroth", "model_version": "1", "outputs": [tensor]})
    assert reply.status == 400
    assert "unexpected inference input 'IMAGE' for model 'second'" in reply.json()["error"]
