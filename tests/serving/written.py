"""Models written down as text, and a model that runs the code it is sent."""

from __future__ import annotations

import json
from http.client import HTTPConnection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from support.model_files import write_files

if TYPE_CHECKING:  # tests/conftest.py marks modules that know `ServerProcess`, and here it is but a type
    from support.server import Reply, ServerProcess

CONFIG = """
backend: "python"
input [{ name: "CODE" data_type: TYPE_STRING dims: [1] }]
output [{ name: "OUT" data_type: TYPE_STRING dims: [1] }]
"""
RUNS_CODE = """
def execute(self, requests):
    responses = []
    for request in requests:
        code = pb_utils.get_input_tensor_by_name(request, "CODE").as_numpy()[0].decode()
        try:
            try:
                text = repr(eval(code, globals()))
            except SyntaxError:
                exec(code, globals())
                text = "done"
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([text.encode()], object))]))
    return responses
"""
"""The answer to an expression is its value's repr, to statements `done`, and to either the exception if it raises."""


def write_model(repository: Path, name: str, methods: str = RUNS_CODE, *, config: str = "") -> Path:
    """A model whose class has *methods*; *config* is appended to its configuration. Returns its `model.py`."""
    return write_files(repository, name, CONFIG + config, methods) / "model.py"


def document_of(code: str) -> dict[str, Any]:
    """A request to a model that runs code."""
    return {"inputs": [{"name": "CODE", "datatype": "BYTES", "shape": [1], "data": [code]}]}


def send_code(server: ServerProcess, model: str, code: str) -> Reply:
    """The reply of *model*, which runs code, to *code*."""
    return server.post(f"/v2/models/{model}/infer", document_of(code))


def evaluate(server: ServerProcess, model: str, code: str) -> str:
    """What *model*, which runs code, answers to *code*."""
    reply = send_code(server, model, code)
    assert reply.status == 200, reply.body
    return str(reply.json()["outputs"][0]["data"][0])


def evaluate_over(connection: HTTPConnection, model: str, code: str) -> str:
    """The same over a connection of the test's own."""
    connection.request("POST", f"/v2/models/{model}/infer", json.dumps(document_of(code)))
    response = connection.getresponse()
    body = response.read()
    assert response.status == 200, body
    return str(json.loads(body)["outputs"][0]["data"][0])
