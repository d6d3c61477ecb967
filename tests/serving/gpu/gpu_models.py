"""Models with arrays in GPU memory."""

from __future__ import annotations

import shutil
from pathlib import Path

from serving.ensembles.ensembles import write_ensemble
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
TAKES_GPU = 'parameters { key: "FORCE_CPU_ONLY_INPUT_TENSORS" value { string_value: "no" } }\n'


def answering(output: str) -> str:
    """The method of a model that answers with this tensor; `given` is that of the input."""
    return f"""
def respond(self, request):
    given = pb_utils.get_input_tensor_by_name(request, "IN")
    return pb_utils.InferenceResponse([{output}])
"""


ECHO = answering('pb_utils.Tensor.from_dlpack("OUT", given.to_dlpack())')
WHERE = answering('pb_utils.Tensor("OUT", np.array([given.is_cpu()], np.float32))')
DOUBLES = answering('pb_utils.Tensor("OUT", given.as_numpy() * 2)')
DOUBLES_ON_GPU = answering('pb_utils.Tensor.from_dlpack("OUT", device_arrays.DeviceArray.of(given.as_numpy() * 2))')


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
    names = ["IN", *(f"between_{index}" for index in range(1, len(models))), "OUT"]
    steps = [f"{model} IN={names[index]} > OUT={names[index + 1]}" for index, model in enumerate(models)]
    write_ensemble(repository, name, *steps, inputs="IN FP32 -1", outputs="OUT FP32 -1")


def run_code(server: ServerProcess, statements: str, expression: str) -> str:
    """Run statements in the guest of the model `code`, then return the text of an expression's value."""
    assert evaluate(server, "code", IMPORTS + statements) == "done"
    return evaluate(server, "code", expression)
