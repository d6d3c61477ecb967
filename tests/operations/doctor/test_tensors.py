"""Literals of a model's code that contradict its configuration: names of tensors, and types of arrays."""

from __future__ import annotations

import json

import pytest
from operations.doctor.repository import CONFIG, model, write

from naiad.cli.main import main

PORTS = ("--http-port=0", "--grpc-port=0", "--metrics-port=0")
CODE = """import numpy as np
import triton_python_backend_utils as pb_utils
MORE

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            STATEMENT
            responses.append(pb_utils.InferenceResponse(output_tensors=[EXPRESSION]))
        return responses
"""
RIGHT = 'pb_utils.Tensor("Y", x)'
READS = (
    "the code reads the input '{}', which the configuration does not have, so that it never gets one; its inputs are X"
)
MAKES = "the code makes the output '{}', which the configuration does not have, so that clients do not get it; its outputs are Y"
TYPES = "the code makes the output 'Y' as {}, the configuration declares TYPE_FP32"
CALL = (
    'pb_utils.InferenceRequest(model_name="n", requested_output_names=["Z"], inputs=[pb_utils.Tensor("IN", x)]).exec()'
)


@pytest.fixture
def examine(tmp_path, capsys):
    def run(statement="pass", expression=RIGHT, more="", config=CONFIG):
        code = CODE.replace("STATEMENT", statement).replace("EXPRESSION", expression).replace("MORE", more)
        write(tmp_path / "models" / "m", model(code, config))
        main(["doctor", str(tmp_path / "models"), f"--env-store={tmp_path / 'store'}", *PORTS, "--json"])
        return json.loads(capsys.readouterr().out)["findings"]

    return run


@pytest.mark.parametrize(
    ("statement", "expression", "code", "message", "line"),
    [
        ('pb_utils.get_input_tensor_by_name(request, "X1")', RIGHT, "unknown-tensor", READS.format("X1"), 10),
        ('pb_utils.get_input_tensor_by_name(request, name="x")', RIGHT, "unknown-tensor", READS.format("x"), 10),
        ("pass", 'pb_utils.Tensor("YY", x)', "unknown-tensor", MAKES.format("YY"), 11),
        ("pass", 'pb_utils.Tensor.from_dlpack("YY", x)', "unknown-tensor", MAKES.format("YY"), 11),
        ('y = pb_utils.Tensor("YY", x)', "y", "unknown-tensor", MAKES.format("YY"), 10),
        (CALL, 'pb_utils.Tensor("YY", x)', "unknown-tensor", MAKES.format("YY"), 11),
        ("pass", 'pb_utils.Tensor("Y", x.astype(np.float64))', "datatype", TYPES.format("TYPE_FP64"), 11),
        ("pass", 'pb_utils.Tensor("Y", np.zeros(3, "int64"))', "datatype", TYPES.format("TYPE_INT64"), 11),
        ("pass", 'pb_utils.Tensor("Y", np.full(3, 1, dtype=int))', "datatype", TYPES.format("TYPE_INT64"), 11),
        ("y = np.array([b'a'], dtype=object)", 'pb_utils.Tensor("Y", y)', "datatype", TYPES.format("TYPE_STRING"), 11),
    ],
)
def test_a_literal_that_the_configuration_contradicts_is_a_warning(examine, statement, expression, code, message, line):
    (finding,) = examine(statement, expression)
    assert (finding["severity"], finding["code"], finding["message"]) == ("warning", code, message)
    assert finding["where"].endswith(f"model.py:{line}")


def test_the_advice_names_the_close_name(examine):
    config = CONFIG + 'output { name: "SCORES" data_type: TYPE_FP32 dims: 1 }'
    (finding,) = examine(expression='pb_utils.Tensor("SCORE", x)', config=config)
    assert finding["advice"] == "correct it to SCORES, or declare it in config.pbtxt"


@pytest.mark.parametrize(
    ("statement", "expression", "more"),
    [
        (CALL, RIGHT, ""),
        ("pass", 'pb_utils.Tensor("Y", x.astype(np.float32))', ""),
        ("pass", 'pb_utils.Tensor("Y", x.astype(self.kind))', ""),
        ("kind = np.float64 if x.size else np.float32", 'pb_utils.Tensor("Y", x.astype(kind))', ""),
        ("y = x.astype(np.float64)\n            y = y.astype(np.float32)", 'pb_utils.Tensor("Y", y)', ""),
        ("names = [n for n in 'XY']", "*[pb_utils.Tensor(n, x) for n in names]", ""),
        ('pb_utils.get_input_tensor_by_name(*(request, "X1"))', RIGHT, ""),
        ("pass", RIGHT, "def made(kind): return np.zeros(3, kind), np.zeros(3, dtype='no such type')"),
    ],
)
def test_what_fits_or_is_no_literal_is_no_finding(examine, statement, expression, more):
    assert examine(statement, expression, more) == []


def test_controls_of_sequences_are_inputs(examine):
    control = "control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ]"
    config = CONFIG + f'sequence_batching {{ control_input {{ name: "START" {control} }} }}'
    assert examine('pb_utils.get_input_tensor_by_name(request, "START")', config=config) == []


def test_a_model_that_completes_its_configuration_may_read_any_input(tmp_path, capsys):
    code = CODE.replace("STATEMENT", 'pb_utils.get_input_tensor_by_name(request, "X1")').replace("MORE", "")
    code = (
        code.replace("EXPRESSION", RIGHT)
        + "\n    @staticmethod\n    def auto_complete_config(config):\n        return config\n"
    )
    write(tmp_path / "models" / "m", model(code))
    main(["doctor", str(tmp_path / "models"), f"--env-store={tmp_path / 'store'}", *PORTS, "--json"])
    assert json.loads(capsys.readouterr().out)["findings"] == []
