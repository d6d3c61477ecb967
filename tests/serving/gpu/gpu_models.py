"""Models with arrays in GPU memory."""

from __future__ import annotations

import shutil
from pathlib import Path

from serving.written import evaluate, write_model
from support.cuda import DEVICE_ARRAYS
from support.server import ServerProcess

IMPORTS = (
    "import device_arrays, numpy as np, gc; from device_arrays import DeviceArray; T = pb_utils.Tensor.from_dlpack; "
)

TENSORS = """
input [{{ name: "IN" data_type: TYPE_{type} dims: [-1] }}]
output [{{ name: "OUT" data_type: TYPE_{type} dims: [-1] }}]
"""
DOUBLES_ON_GPU = """
def execute(self, requests):
    responses = []
    for request in requests:
        given = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
        doubled = pb_utils.Tensor.from_dlpack("OUT", device_arrays.DeviceArray.of(given * 2))
        assert not doubled.is_cpu()
        responses.append(pb_utils.InferenceResponse([doubled]))
    return responses
"""
"""Answers with its input times two, in GPU memory."""


def add_code_model(repository: Path, name: str = "code") -> None:
    """A model that runs code in its guest, where `device_arrays` can be imported."""
    file = write_model(repository, name)
    shutil.copy(DEVICE_ARRAYS, file.parent)


def add_model(repository: Path, name: str, methods: str, *, datatype: str = "FP32", config: str = "") -> None:
    """A model with the input IN and the output OUT."""
    file = write_model(repository, name, methods)
    (repository / name / "config.pbtxt").write_text('backend: "python"\n' + TENSORS.format(type=datatype) + config)
    shutil.copy(DEVICE_ARRAYS, file.parent)
    file.write_text("import device_arrays\n" + file.read_text())


def add_ensemble(repository: Path, name: str, *models: str) -> None:
    """An ensemble of models that `add_model` makes, one after the other."""
    steps = ""
    for index, model in enumerate(models):
        given = "IN" if index == 0 else f"between_{index}"
        made = "OUT" if index == len(models) - 1 else f"between_{index + 1}"
        maps = f'input_map {{ key: "IN" value: "{given}" }} output_map {{ key: "OUT" value: "{made}" }}'
        steps += f'step {{ model_name: "{model}" model_version: -1 {maps} }}\n'
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(
        f'platform: "ensemble"\n{TENSORS.format(type="FP32")}ensemble_scheduling {{\n{steps}}}\n'
    )


def run_code(server: ServerProcess, statements: str, expression: str) -> str:
    """Run statements in the guest of the model `code`, then return the text of an expression's value."""
    assert evaluate(server, "code", IMPORTS + statements) == "done"
    return evaluate(server, "code", expression)
