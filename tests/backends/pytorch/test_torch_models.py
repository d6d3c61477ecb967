"""Files of PyTorch served by the real PyTorch: naming, batches, parameters, strings, states, errors."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http as httpclient
from support.server import ServerProcess
from tritonclient.utils import InferenceServerException

from .conftest import BATCHES, ENVIRONMENT, INPUTS, OUTPUTS, PLATFORM, PREWARM, parameter, run, tensor

pytestmark = [pytest.mark.builds, pytest.mark.endurance, pytest.mark.timeout(600)]

DATATYPES = {"object": "BYTES", "float32": "FP32", "float64": "FP64", "int64": "INT64"}


def infer(server: ServerProcess, model: str, inputs: dict[str, np.ndarray], **options: Any) -> dict[str, list[Any]]:
    """The outputs of a request with binary tensors over HTTP."""
    given = []
    for name, array in inputs.items():
        given.append(httpclient.InferInput(name, list(array.shape), DATATYPES[array.dtype.name]))
        given[-1].set_data_from_numpy(array)
    with httpclient.InferenceServerClient(server.http_url) as client:
        result = client.infer(model, given, **options)
    return {output["name"]: result.as_numpy(output["name"]).tolist() for output in result.get_response()["outputs"]}


def row(*values: float) -> np.ndarray:
    return np.array([values], np.float32)


def texts(*values: str) -> np.ndarray:
    return np.array([[value] for value in values], object)


A, B = row(1, 2, 3, 4), row(10, 20, 30, 40)
SUM, DIFFERENCE = [[11, 22, 33, 44]], [[-9, -18, -27, -36]]


def test_inputs_are_found_by_the_names_of_forward_whatever_their_order(server: ServerProcess):
    for inputs in ({"x": A, "y": B}, {"y": B, "x": A}):
        assert infer(server, "add_sub", inputs) == {"OUTPUT__0": SUM, "OUTPUT__1": DIFFERENCE}
    assert infer(server, "traced", {"x": A[0], "y": B[0]}) == {"OUTPUT__0": SUM[0], "OUTPUT__1": DIFFERENCE[0]}


def test_inputs_are_found_by_the_indices_in_their_names(server: ServerProcess):
    assert infer(server, "by_index", {"B__1": B, "A__0": A}) == {"OUTPUT__0": SUM, "OUTPUT__1": DIFFERENCE}


def test_other_names_have_the_order_of_the_configuration_and_the_log_says_so(server: ServerProcess):
    assert infer(server, "by_order", {"SECOND": B, "FIRST": A}) == {"SUM": SUM, "DIFFERENCE": DIFFERENCE}
    assert (
        "input 'FIRST' or previous input(s) are neither an input argument to the model 'by_order' nor do they follow "
        "the <name>__<index> naming convention."
    ) in server.log


def test_a_dictionary_has_inputs_and_outputs_by_their_names(server: ServerProcess):
    assert infer(server, "named", {"a": A, "b": B}) == {"sum": SUM, "product": [[10, 40, 90, 160]]}


def test_inputs_that_the_model_refuses_are_an_error_of_their_request_alone(server: ServerProcess):
    def ask(position: int) -> object:
        try:
            return infer(server, "lookup", {"positions": np.array([[position]], np.int64)})["OUTPUT__0"]
        except InferenceServerException as error:
            return error.message()

    with ThreadPoolExecutor(16) as threads:
        answers = dict(zip(range(20), threads.map(ask, range(20)), strict=True))
    assert [answers[position] for position in range(10)] == [[[position]] for position in range(10)]
    for position in range(10, 20):
        assert str(answers[position]).startswith("PyTorch execute failure: ")
        assert "index out of range" in str(answers[position])


def test_all_parameters_of_the_reference_are_accepted_and_one_has_no_effect(server: ServerProcess):
    assert infer(server, "tuned", {"x": A, "y": B})["OUTPUT__0"] == SUM
    assert server.log.count("ENABLE_WEIGHT_SHARING of model 'tuned' has no effect: each instance is a process") == 1


def test_strings_are_lists(server: ServerProcess):
    found = infer(server, "louder", {"texts": texts("a", "é\n", "")})
    assert found == {"OUTPUT__0": [[b"a!"], ["é\n!".encode()], [b"!"]]}
    # Strings of TorchScript are bytes.
    found = infer(server, "lengths", {"texts": np.array(["ab", "日本語"], object)})
    assert found == {"OUTPUT__0": [2, 9], "OUTPUT__1": [b"ab", "日本語".encode()]}
    with pytest.raises(InferenceServerException, match="input 'texts' has a string that is not UTF-8"):
        infer(server, "louder", {"texts": np.array([[b"\xff"]], object)})


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("OUTPUT__0", "configuration expects datatype TYPE_FP64 for output 'OUTPUT__0', model provides TYPE_FP32"),
        (
            "OUTPUT__7",
            (
                "The output OUTPUT__7 in the model configuration refers to an output index which doesn't exist. This "
                "model has 2 outputs"
            ),
        ),
    ],
)
def test_what_a_model_returns_is_compared_with_its_configuration(server: ServerProcess, output: str, message: str):
    wanted = [httpclient.InferRequestedOutput(output)]
    with pytest.raises(InferenceServerException) as raised:
        infer(server, "wrong_outputs", {"x": A, "y": B}, outputs=wanted)
    assert raised.value.message() == message


def test_a_class_in_model_py_gets_its_weights_and_is_compiled_as_the_parameter_says(server: ServerProcess):
    assert infer(server, "module", {"X": A}) == {"Y": [[21, 59]], "Z": [[2, 4, 6, 8]]}


def interface(server: ServerProcess, model: str) -> dict[str, Any]:
    config = server.get(f"/v2/models/{model}/config").json()
    return {
        "max_batch_size": config["max_batch_size"],
        **{
            one["name"]: (one["data_type"].removeprefix("TYPE_"), one["dims"])
            for one in (*config["input"], *config["output"])
        },
    }


def test_outputs_are_completed_by_a_trial(server: ServerProcess):
    assert interface(server, "without_outputs") == {
        "max_batch_size": 8,
        "x": ("FP32", [-1]),
        "y": ("FP32", [-1]),
        "OUTPUT__0": ("FP32", [-1]),
        "OUTPUT__1": ("FP32", [-1]),
    }
    assert infer(server, "without_outputs", {"x": A, "y": B})["OUTPUT__0"] == SUM


def test_an_exported_program_needs_no_configuration(server: ServerProcess):
    config = server.get("/v2/models/exported/config").json()
    assert (config["backend"], config["platform"]) == ("pytorch", "torch_aoti")
    assert config["dynamic_batching"]["preferred_batch_size"] == [4]
    assert interface(server, "exported") == {
        "max_batch_size": 4,
        "INPUT__0": ("FP32", [4]),
        "INPUT__1": ("FP32", [3]),
        "OUTPUT__0": ("FP32", [3]),
        "OUTPUT__1": ("FP32", [3]),
        "OUTPUT__2": ("FP32", [1]),
    }
    for rows in (1, 3):
        bias = np.ones((rows, 3), np.float32)
        found = infer(server, "exported", {"INPUT__0": A.repeat(rows, 0), "INPUT__1": bias})
        assert np.array(found["OUTPUT__1"]) == pytest.approx(np.array(found["OUTPUT__0"]) + 1)
        assert found["OUTPUT__2"] == [[10]] * rows
    assert interface(server, "fixed")["max_batch_size"] == 0
    assert interface(server, "fixed")["OUTPUT__1"] == ("FP32", [2, 4])


def test_an_ensemble_has_steps_in_python_and_in_pytorch(server: ServerProcess):
    assert infer(server, "spoken", {"TEXT": texts("7", "3")}) == {"VALUE": [[7], [3]]}


MODULE = 'backend: "pytorch" runtime: "model.py"\n' + tensor("input", "X") + tensor("output", "Y", dims="2")
ONE_ROW = tensor("input", "INPUT__0", dims="2, 4") + tensor("input", "INPUT__1", dims="2, 4")
ONE_ROW_OUT = tensor("output", "OUTPUT__0", dims="2, 4")
CLASS = "import torch\n\n\nclass Net(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n        "

BROKEN = {
    "no_file": (
        PLATFORM + INPUTS + OUTPUTS,
        "unable to find '{folder}/model.pt' for model instance 'no_file'",
    ),
    "nonsense": (
        PLATFORM + INPUTS + OUTPUTS,
        (
            "failed to load model 'nonsense': PyTorch {version} cannot read '{folder}/model.pt' as TorchScript: it is "
            "no archive that PyTorch writes; copy it again, or write it by torch.jit.script(model).save('model.pt')"
        ),
    ),
    "weights_alone": (
        PLATFORM + INPUTS + OUTPUTS,
        (
            "it is what torch.save writes: weights or a pickled object, without the code of a model; write "
            "torch.jit.script(model).save('model.pt'), or put the class of the model into a model.py beside it"
        ),
    ),
    "newer": (
        PLATFORM + INPUTS + OUTPUTS,
        "a file of a newer version needs an environment with that version",
    ),
    "no_inputs": (
        "",
        (
            "unable to load model 'no_inputs', its configuration lacks inputs, and its file does not tell their types "
            "and shapes, only forward(x: Tensor, y: Tensor) -> Tuple[Tensor, Tensor]; write them in config.pbtxt, for "
            'example: input {{ name: "x" data_type: TYPE_FP32 dims: [ -1 ] }}'
        ),
    ),
    "wrong_count": (
        PLATFORM + tensor("input", "x") + OUTPUTS,
        (
            "unable to load model 'wrong_count', configuration expects 1 inputs, model provides 2: "
            "forward(x: Tensor, y: Tensor) -> Tuple[Tensor, Tensor]"
        ),
    ),
    "wrong_names": (
        PLATFORM + tensor("input", "A__1") + tensor("input", "B__2") + OUTPUTS,
        "its inputs are not one for each of the model's 2: A__1 at 1, B__2 at 2",
    ),
    "wrong_flag": (
        PLATFORM + INPUTS + OUTPUTS + parameter("INFERENCE_MODE", "maybe"),
        (
            "unable to load model 'wrong_flag', the parameter INFERENCE_MODE is 'maybe', not true or false; correct it "
            "in config.pbtxt"
        ),
    ),
    "two_dimensions": (
        PLATFORM + BATCHES + tensor("input", "texts", "STRING", "1") + tensor("output", "OUTPUT__0", "STRING", "1"),
        ("Triton only supports 1 dimensional List of String as input for 'texts' for model 'two_dimensions'"),
    ),
    "unknown_input": (
        ONE_ROW.replace("INPUT__1", "INPUT__7") + ONE_ROW_OUT,
        "unexpected inference input 'INPUT__7', allowed inputs are: ARGS[0] (INPUT__0), ARGS[1] (INPUT__1)",
    ),
    "wrong_type": (
        ONE_ROW.replace("FP32", "FP64") + ONE_ROW_OUT,
        "configuration expects datatype TYPE_FP64 for input 'INPUT__0', model provides TYPE_FP32",
    ),
    "wrong_shape": (
        ONE_ROW.replace("2, 4", "2, 5") + ONE_ROW_OUT,
        (
            "model 'wrong_shape', tensor 'INPUT__0': the model expects 2 dimensions (shape [2,4]) but the model "
            "configuration specifies 2 dimensions (shape [2,5])"
        ),
    ),
    "wrong_inputs": (
        tensor("input", "INPUT__0", dims="2, 4") + ONE_ROW_OUT,
        (
            'Model instance "wrong_inputs" has mismatching input count between model config and model definition: '
            "model config input count = 1, model definition input count = 2"
        ),
    ),
    "no_package": (
        'platform: "torch_aoti"' + ONE_ROW + ONE_ROW_OUT,
        "'{folder}/model.pt2' is no archive that PyTorch writes, and no package; write it by",
    ),
    "other_weights": (
        MODULE,
        (
            "the weights '{folder}/model.pt' do not fit Net: Error(s) in loading state_dict for Net: Missing key(s) in "
            'state_dict: "layer.bias".'
        ),
    ),
    "no_class": (
        MODULE,
        "Cannot find a subclass of torch.nn.Module in '{folder}/model.py'; define the model there as a class",
    ),
    "failing_code": (
        MODULE,
        "'{folder}/model.py' cannot be imported: ModuleNotFoundError: No module named 'missing'\n",
    ),
    "failing_class": (
        MODULE,
        "Net() of '{folder}/model.py' failed, which is called without arguments: ZeroDivisionError: division by zero\n",
    ),
}

WRITTEN = {
    "nonsense": ("model.pt", "nonsense"),
    "no_package": ("model.pt2", "nonsense"),
    "no_file": ("notes.txt", ""),
    "other_weights": (
        "model.py",
        CLASS + "self.layer = torch.nn.Linear(4, 2)\n",
    ),
    "no_class": ("model.py", "import torch\nfrom torch.nn import Module\n"),
    "failing_code": ("model.py", "import missing\n"),
    "failing_class": ("model.py", CLASS + "1 / 0\n"),
}


def test_a_model_that_cannot_be_loaded_says_why_and_others_are_served(tmp_path: Path, files: Path, store: Path):
    models = tmp_path / "models"
    shutil.copytree(files / "kept", models / "kept")
    (models / "kept" / "config.pbtxt").write_text(PLATFORM + BATCHES + INPUTS + OUTPUTS + PREWARM)
    for name, (config, _) in BROKEN.items():
        if (files / name).exists():
            shutil.copytree(files / name, models / name)
        if name in WRITTEN:
            file = models / name / "1" / WRITTEN[name][0]
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(WRITTEN[name][1])
        if config:
            (models / name / "config.pbtxt").write_text(config + PREWARM)
    flags = (f"--env-store={store}", ENVIRONMENT, "--exit-on-error=false", "--strict-readiness=false")
    with ServerProcess(models, *flags, work=tmp_path, timeout=240) as server:
        reasons = {
            entry["name"]: entry.get("reason", "")
            for entry in server.post("/v2/repository/index", {}).json()
            if entry.get("state") != "READY"
        }
        for name, (_, message) in BROKEN.items():
            wanted = message.format(folder=models / name / "1", version="2.13.0+cpu")
            assert wanted in reasons[name], f"{name}: {reasons[name]}"
        assert "naiad_pytorch/" not in "".join(reasons.values()), "frames of the backend's own code"
        assert infer(server, "kept", {"x": A, "y": B})["OUTPUT__0"] == SUM


@pytest.mark.skipif(shutil.which("g++") is None, reason="compiling a package needs g++")
def test_a_package_that_was_compiled_ahead_of_time_needs_no_configuration(tmp_path: Path, store: Path):
    models = tmp_path / "models"
    run(store, "make_compiled.py", models)
    shutil.copytree(models / "compiled", models / "by_structure")
    (models / "by_structure" / "config.pbtxt").write_text(
        'platform: "torch_aoti"'
        + tensor("input", "ARGS[1]", dims="-1, 4")
        + tensor("input", "ARGS[0]", dims="-1, 4")
        + tensor("output", "RESULT[difference]", dims="-1, 4")
    )
    shutil.copytree(models / "compiled", models / "wrong")
    (models / "wrong" / "config.pbtxt").write_text(
        tensor("input", "INPUT__0", dims="-1, 5") + tensor("input", "INPUT__1", dims="-1, 5") + OUTPUTS
    )
    flags = (f"--env-store={store}", ENVIRONMENT, "--exit-on-error=false", "--strict-readiness=false")
    with ServerProcess(models, *flags, work=tmp_path, timeout=240) as server:
        assert interface(server, "compiled") == {
            "max_batch_size": 4,
            **dict.fromkeys(["INPUT__0", "INPUT__1", "OUTPUT__0", "OUTPUT__1"], ("FP32", [4])),
        }
        for rows in (1, 2, 3):
            found = infer(server, "compiled", {"INPUT__0": A.repeat(rows, 0), "INPUT__1": B.repeat(rows, 0)})
            assert found == {"OUTPUT__0": SUM * rows, "OUTPUT__1": DIFFERENCE * rows}
        assert infer(server, "by_structure", {"ARGS[0]": A, "ARGS[1]": B}) == {"RESULT[difference]": DIFFERENCE}
        (entry,) = [one for one in server.post("/v2/repository/index", {}).json() if one["name"] == "wrong"]
        assert "tensor 'INPUT__0': the model expects 2 dimensions (shape [-1,4])" in entry["reason"]
