"""ONNX files served by the real ONNX Runtime, from the environment that the backend declares and locks."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from support.server import ServerProcess
from tritonclient.utils import InferenceServerException

from . import files
from .conftest import STATEFUL

pytestmark = [pytest.mark.builds, pytest.mark.endurance]


def infer(server: ServerProcess, model: str, inputs: dict[str, np.ndarray], **options: object) -> dict[str, np.ndarray]:
    """The outputs of a request with binary tensors over HTTP."""
    given = []
    for name, array in inputs.items():
        datatype = "BYTES" if array.dtype == object else {"float32": "FP32", "int64": "INT64"}[array.dtype.name]
        given.append(httpclient.InferInput(name, list(array.shape), datatype))
        given[-1].set_data_from_numpy(array)
    with httpclient.InferenceServerClient(server.http_url) as client:
        result = client.infer(model, given, **options)
    return {output["name"]: result.as_numpy(output["name"]) for output in result.get_response()["outputs"]}


def row(*values: float) -> np.ndarray:
    return np.array([values], np.float32)


def test_a_file_without_a_configuration_is_recognised_and_its_configuration_completed(server: ServerProcess):
    config = server.get("/v2/models/add_sub/config").json()
    assert (config["backend"], config["platform"]) == ("onnxruntime", "onnxruntime_onnx")
    assert config["max_batch_size"] == 8, "of --backend-config"
    assert config["dynamic_batching"]["preferred_batch_size"] == [8]
    assert [(one["name"], one["data_type"], one["dims"]) for one in config["input"]] == [
        ("A", "TYPE_FP32", [4]),
        ("B", "TYPE_FP32", [4]),
    ]
    found = infer(server, "add_sub", {"A": row(1, 2, 3, 4), "B": row(1, 1, 1, 1)})
    assert found["SUM"].tolist() == [[2, 3, 4, 5]]
    assert found["DIFFERENCE"].tolist() == [[0, 1, 2, 3]]
    assert "autofilled max_batch_size to 8 for model 'add_sub'" in server.log


def test_requests_are_batched_and_each_gets_its_own_rows(server: ServerProcess):
    def ask(number: int) -> bool:
        a, b = row(*range(number, number + 4)).repeat(number % 3 + 1, 0), row(*[number] * 4).repeat(number % 3 + 1, 0)
        with grpcclient.InferenceServerClient(server.grpc_url) as client:
            inputs = [grpcclient.InferInput(name, list(a.shape), "FP32") for name in ("A", "B")]
            for one, array in zip(inputs, (a, b), strict=True):
                one.set_data_from_numpy(array)
            return bool((client.infer("add_sub", inputs).as_numpy("SUM") == a + b).all())

    with ThreadPoolExecutor(16) as threads:
        assert all(threads.map(ask, range(96)))
    statistics = server.get("/v2/models/add_sub/stats").json()["model_stats"][0]
    assert statistics["execution_count"] < statistics["inference_count"]


def test_all_parameters_of_the_reference_are_accepted(server: ServerProcess):
    found = infer(server, "tuned", {"A": row(1, 2, 3, 4), "B": row(4, 3, 2, 1)})
    assert found["SUM"].tolist() == [[5, 5, 5, 5]]


def test_strings_arrive_as_they_were_sent(server: ServerProcess):
    texts = np.array([["a", "é\n"], ["", "日本"]], object)
    found = infer(server, "texts", {"X": texts})["Y"]
    assert [text.decode() for text in found.ravel()] == texts.ravel().tolist()
    broken = np.array([[b"\xff", b"a"]], object)
    with pytest.raises(
        Exception, match="input 'X' has a string that is not UTF-8: 'utf-8' codec can't decode byte 0xff"
    ):
        infer(server, "texts", {"X": broken})


def test_a_scalar_has_one_element(server: ServerProcess):
    assert server.get("/v2/models/total/config").json()["output"][0]["dims"] == [1]
    assert infer(server, "total", {"X": np.array([1, 2, 4], np.float32)})["S"].tolist() == [7]


def test_an_input_with_a_value_in_the_file_may_be_left_out(server: ServerProcess):
    x = np.array([1, 2], np.float32)
    assert infer(server, "scaled", {"X": x})["Y"].tolist() == [10, 20]
    assert infer(server, "scaled", {"X": x, "W": np.array([3], np.float32)})["Y"].tolist() == [3, 6]


def test_a_state_belongs_to_its_sequence(server: ServerProcess):
    def step(sequence: int, value: float, *, start: bool = False, end: bool = False) -> float:
        options = {"sequence_id": sequence, "sequence_start": start, "sequence_end": end}
        return float(infer(server, "counter", {"X": row(value)}, **options)["Y"][0, 0])

    assert step(1, 1, start=True) == 1
    assert step(2, 10, start=True) == 10
    assert step(1, 2) == 3
    assert step(2, 20, end=True) == 30
    assert step(1, 4, end=True) == 7
    assert step(1, 5, start=True, end=True) == 5


def test_a_directory_has_the_graph_and_its_weights(server: ServerProcess):
    found = infer(server, "external", {"X": np.eye(8, 64, dtype=np.float32)})["Y"]
    assert found.tolist() == np.arange(4096, dtype=np.float32).reshape(64, 64)[:8].tolist()


def test_inputs_that_the_model_refuses_are_an_error_of_their_request_alone(server: ServerProcess):
    def ask(position: int) -> object:
        try:
            return infer(server, "gather", {"I": np.array([[position]], np.int64)})["Y"].tolist()
        except InferenceServerException as error:
            return error.message()

    with ThreadPoolExecutor(16) as threads:
        answers = dict(zip(range(20), threads.map(ask, range(20)), strict=True))
    assert [answers[position] for position in range(10)] == [[[position]] for position in range(10)]
    for position in range(10, 20):
        assert f"Status Message: indices element out of data bounds, idx={position} must be within" in answers[position]


INPUT = 'input { name: "X" data_type: TYPE_FP32 dims: 3 } output { name: "S" data_type: TYPE_FP32 dims: 1 }'

BROKEN = {
    "nonsense": (
        "",
        "ONNX Runtime {version} cannot open '{file}': Load model from {file} failed:Protobuf parsing failed.",
    ),
    "no_file": (INPUT, "unable to find '{file}' for model instance 'no_file'"),
    "sequence_output": (
        "",
        (
            "unable to load model 'sequence_output', Unsupported ONNX Type 'seq(tensor(float))' for I/O 'Y', expected "
            "'tensor'; classifiers of scikit-learn are converted with the option zipmap=False"
        ),
    ),
    "wrong_name": (INPUT.replace('"X"', '"Z"'), "unexpected inference input 'Z', allowed inputs are: X"),
    "wrong_parameter": (
        INPUT + 'parameters { key: "intra_op_thread_count" value { string_value: "many" } }',
        (
            "unable to load model 'wrong_parameter', the parameter intra_op_thread_count is 'many', not an integer; "
            "correct it in config.pbtxt"
        ),
    ),
    "wrong_mode": (
        INPUT + 'parameters { key: "execution_mode" value { string_value: "2" } }',
        "Expected values for  execution_mode are 0 or 1 but got 2 .",
    ),
    "wrong_accelerator": (
        INPUT + 'optimization { execution_accelerators { cpu_execution_accelerator { name: "magic" } } }',
        "unknown Execution Accelerator 'magic' is requested",
    ),
    "ragged": (
        INPUT.replace("dims: 3", "dims: 3 allow_ragged_batch: true"),
        (
            "unable to load model 'ragged', configuration expects model provides input with shape [-1]  for ragged input "
            "'X', model provides [3]"
        ),
    ),
    "batches": (
        "max_batch_size: 4",
        (
            "autofill failed for model 'batches': model does not support batching while non-zero max_batch_size is "
            "specified"
        ),
    ),
}


def test_a_model_that_cannot_be_loaded_says_why_and_others_are_served(tmp_path: Path, store: Path):
    models = tmp_path / "models"
    files.total(models / "whole" / "1" / "model.onnx")
    for name, (config, _) in BROKEN.items():
        file = models / name / "1" / "model.onnx"
        if name == "nonsense":
            file.parent.mkdir(parents=True)
            file.write_text("nonsense")
        elif name == "no_file":
            file.parent.mkdir(parents=True)
        elif name == "sequence_output":
            files.map_of_classes(file)
        else:
            files.total(file)
        (models / name / "config.pbtxt").write_text(f'backend: "onnxruntime" {config}')
    flags = (f"--env-store={store}", "--exit-on-error=false", "--strict-readiness=false")
    with ServerProcess(models, *flags, work=tmp_path) as server:
        found = {one["name"]: one for one in server.post("/v2/repository/index").json()}
        assert found["whole"]["state"] == "READY"
        for name, (_, text) in BROKEN.items():
            file = models / name / "1" / "model.onnx"
            reason = found[name]["reason"]
            for part in text.format(file=file, version="{version}").split("{version}"):
                assert part in reason, name
            assert "Traceback" not in reason
            assert "\nAt:" not in reason


def test_an_accelerator_that_this_build_has_not_is_warned_of_and_the_model_is_served(tmp_path: Path, store: Path):
    models = tmp_path / "models"
    files.total(models / "m" / "1" / "model.onnx")
    (models / "m" / "config.pbtxt").write_text(
        f'backend: "onnxruntime" {INPUT} '
        'optimization { execution_accelerators { cpu_execution_accelerator { name: "openvino" } } }'
    )
    with ServerProcess(models, f"--env-store={store}", work=tmp_path) as server:
        server.wait_log("the execution accelerator 'openvino' of model 'm' is not used: ONNX Runtime ")
        assert "was built without OpenVINOExecutionProvider" in server.log
        assert infer(server, "m", {"X": np.array([1, 2, 4], np.float32)})["S"].tolist() == [7]


def test_the_threads_of_an_instance_are_the_processors_divided_by_the_instances(tmp_path: Path, store: Path):
    models = tmp_path / "models"
    shutil.rmtree(models, ignore_errors=True)
    files.counter(models / "m" / "1" / "model.onnx")
    (models / "m" / "config.pbtxt").write_text('backend: "onnxruntime" instance_group { count: 64 }' + STATEFUL)
    with ServerProcess(models, f"--env-store={store}", work=tmp_path, timeout=200) as server:
        options = {"sequence_id": 1, "sequence_start": True, "sequence_end": True}
        assert infer(server, "m", {"X": row(5)}, **options)["Y"].tolist() == [[5]]
        guests = [process for process in server.children() if process.num_threads()]
        assert max(process.num_threads() for process in guests) < 16, "ONNX Runtime would start one for each processor"


RAGGED = """
backend: "onnxruntime"
max_batch_size: 4
input { name: "X" data_type: TYPE_FP32 dims: -1 allow_ragged_batch: true }
output { name: "SUM" data_type: TYPE_FP32 dims: 1 }
output { name: "DOUBLE" data_type: TYPE_FP32 dims: -1 }
output { name: "COUNT" data_type: TYPE_FP32 dims: 1 }
output { name: "ACCUMULATED" data_type: TYPE_INT32 dims: 1 }
output { name: "LARGEST" data_type: TYPE_INT64 dims: 1 }
output { name: "ITEMS" data_type: TYPE_INT32 dims: 1 }
output { name: "FLAT" data_type: TYPE_INT32 dims: 1 }
batch_output { target_name: "DOUBLE" kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: "X" }
dynamic_batching { preferred_batch_size: 3 max_queue_delay_microseconds: 60000000 }
""" + "".join(
    f'batch_input {{ target_name: "{name}" kind: {kind} data_type: {data_type} source_input: "X" }}\n'
    for name, kind, data_type in (
        ("COUNTS", "BATCH_ELEMENT_COUNT", "TYPE_FP32"),
        ("ENDS", "BATCH_ACCUMULATED_ELEMENT_COUNT", "TYPE_INT32"),
        ("BOUNDS", "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO", "TYPE_INT32"),
        ("MOST", "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE", "TYPE_FP32"),
        ("SHAPES", "BATCH_ITEM_SHAPE", "TYPE_INT32"),
        ("SIZES", "BATCH_ITEM_SHAPE_FLATTEN", "TYPE_INT32"),
    )
)


@pytest.fixture(scope="module")
def ragged(tmp_path_factory: pytest.TempPathFactory, store: Path) -> Iterator[ServerProcess]:
    """A server that waits for three requests of a model with ragged inputs, and computes them at once."""
    folder = tmp_path_factory.mktemp("ragged")
    files.ragged(folder / "models" / "ragged" / "1" / "model.onnx")
    (folder / "models" / "ragged" / "config.pbtxt").write_text(RAGGED)
    with ServerProcess(folder / "models", f"--env-store={store}", work=folder) as running:
        yield running


def ask_three(server: ServerProcess) -> list[dict[str, list[object]]]:
    """What three requests of 3, 1 and 2 numbers, which are one batch, get."""
    requests = [row(1, 2, 3), row(10), row(100, 200)]
    with ThreadPoolExecutor(3) as threads:
        found = list(threads.map(lambda one: infer(server, "ragged", {"X": one}), requests))
    return [{name: array.tolist() for name, array in outputs.items()} for outputs in found]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("SUM", [[[6]], [[10]], [[300]]]),
        ("DOUBLE", [[[2, 4, 6]], [[20]], [[200, 400]]]),
        ("COUNT", [[[3]], [[1]], [[2]]]),
        ("ITEMS", [[[3]], [[1]], [[2]]]),
        ("FLAT", [[[3]], [[1]], [[2]]]),
        ("LARGEST", [[[3]], [[3]], [[3]]]),
    ],
)
def test_ragged_requests_are_one_call_and_each_gets_its_own_part(
    ragged: ServerProcess, name: str, values: list[object]
):
    """The order in a batch is that of arrival, and each value here is a request's whatever the order is."""
    before = ragged.get("/v2/models/ragged/stats").json()["model_stats"][0]["execution_count"]
    assert [outputs[name] for outputs in ask_three(ragged)] == values
    after = ragged.get("/v2/models/ragged/stats").json()["model_stats"][0]["execution_count"]
    assert after - before == 1


def test_numbers_of_elements_add_up_within_a_batch(ragged: ServerProcess):
    ends = [outputs["ACCUMULATED"][0][0] for outputs in ask_three(ragged)]
    assert max(ends) == 6
    sizes = sorted(zip(ends, (3, 1, 2), strict=True))
    assert [end for end, _ in sizes] == list(itertools.accumulate(size for _, size in sizes))
