"""Ensembles and the small models that they are made of, written down."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

from support.model_files import tensors, write_files
from support.server import Reply, ServerProcess

ONE_BY_ONE = """
def execute(self, requests):
    return [self.answer(request) for request in requests]

def input(self, request, name="IN"):
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return None if tensor is None else tensor.as_numpy()

def output(self, array):
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)])
"""
REPEAT = """
def execute(self, requests):
    for request in requests:
        sender = request.get_response_sender()
        for value in pb_utils.get_input_tensor_by_name(request, "IN").as_numpy().ravel():
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([value], np.float32))]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
DECOUPLED = "model_transaction_policy { decoupled: true }\n"
TENSORS = 'input { name: "IN" data_type: TYPE_FP32 dims: -1 }\noutput { name: "OUT" data_type: TYPE_FP32 dims: -1 }\n'


def write_model(folder: Path, name: str, methods: str, extra: str = "", tensors: str = TENSORS) -> None:
    """A model of these methods; `answer(self, request)` alone is enough."""
    body = textwrap.dedent(methods) if "def execute" in methods else ONE_BY_ONE + textwrap.dedent(methods)
    write_files(folder, name, f'backend: "python"\n{tensors}{extra}', body)


def write_function(folder: Path, name: str, expression: str, extra: str = "", tensors: str = TENSORS) -> None:
    """A model that answers *expression* of its input `x`."""
    write_model(
        folder,
        name,
        f"def answer(self, request):\n    x = self.input(request)\n    return self.output({expression})\n",
        extra,
        tensors,
    )


def write_ensemble(
    folder: Path,
    name: str,
    *steps: str,
    inputs: str = "X FP32 -1",
    outputs: str = "Y FP32 -1",
    extra: str = "",
    limit: int = 0,
) -> None:
    """An ensemble; steps are `model IN=X, IN2=Z > OUT=Y`, tensors `NAME TYPE DIM... [optional]`, separated by commas."""
    scheduling = "\n".join(_step(step) for step in steps) + (f"\nmax_inflight_requests: {limit}" if limit else "")
    ports = tensors("input", inputs) + tensors("output", outputs)
    write_files(folder, name, f'platform: "ensemble"\n{ports}ensemble_scheduling {{\n{scheduling}\n}}\n{extra}')


def _step(text: str) -> str:
    model, _, maps = text.partition(" ")
    taken, _, made = maps.partition(">")
    return f'step {{ model_name: "{model}" model_version: -1 {_map("input", taken)} {_map("output", made)} }}'


def _map(kind: str, text: str) -> str:
    pairs = [pair.strip().partition("=") for pair in text.split(",")]
    return " ".join(f'{kind}_map {{ key: "{key}" value: "{value}" }}' for key, _, value in pairs)


def ask(server: ServerProcess, model: str, *values: float, name: str = "X", **more: Any) -> Reply:
    """Ask with one tensor of these values; *more* goes into the request."""
    tensor = {"name": name, "datatype": "FP32", "shape": [len(values)], "data": list(values)}
    return server.post(f"/v2/models/{model}/infer", {"inputs": [tensor], **more})


def outputs(reply: Reply) -> dict[str, Any]:
    """Data of the outputs by name."""
    assert reply.status == 200, reply.body
    return {tensor["name"]: tensor["data"] for tensor in reply.json()["outputs"]}
