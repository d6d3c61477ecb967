"""`triton_python_backend_utils` and `c_python_backend_utils` without a server: they work, and their types are right."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

MYPY = [sys.executable, "-m", "mypy", "--strict"]

MODEL = """
    import json
    from typing import Any, Dict, List

    import numpy as np
    import triton_python_backend_utils as pb_utils
    from c_python_backend_utils import InferenceResponseSender


    class TritonPythonModel:
        @staticmethod
        def auto_complete_config(auto_complete_model_config: pb_utils.ModelConfig) -> pb_utils.ModelConfig:
            auto_complete_model_config.add_input({"name": "IN", "data_type": "TYPE_FP32", "dims": [1]})
            auto_complete_model_config.set_model_transaction_policy({"decoupled": True})
            return auto_complete_model_config

        def initialize(self, args: Dict[str, str]) -> None:
            self.config: Dict[str, Any] = json.loads(args["model_config"])
            family = pb_utils.MetricFamily("calls", "Calls.", pb_utils.MetricFamily.COUNTER)
            self.calls = family.Metric({"model": args["model_name"]})

        def execute(self, requests: List[pb_utils.InferenceRequest]) -> None:
            for request in requests:
                sender: InferenceResponseSender = request.get_response_sender()
                tensor = pb_utils.get_input_tensor_by_name(request, "IN")
                if tensor is None:
                    error = pb_utils.TritonError("no IN", pb_utils.TritonError.INVALID_ARG)
                    sender.send(pb_utils.InferenceResponse(error=error), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
                    continue
                call = pb_utils.InferenceRequest(model_name="m", requested_output_names=["OUT"], inputs=[tensor])
                for response in call.exec(decoupled=True):
                    sender.send(pb_utils.InferenceResponse(response.output_tensors()))
                doubled = call.exec().output_tensors()[0].as_numpy() * 2
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.asarray(doubled))]))
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
                self.calls.increment(1)
                pb_utils.Logger.log("done", pb_utils.Logger.VERBOSE)
"""
WRONG = {
    'pb_utils.Tensor(name="x", array=np.ones(1))': "Unexpected keyword argument",
    "pb_utils.TritonError(3)": 'expected "str"',
    "pb_utils.Logger.log('x', 1)": 'expected "_LogLevel"',
    "pb_utils.InferenceResponse([np.ones(1)])": 'expected "Tensor"',
    "pb_utils.no_such_name": "has no attribute",
    "pb_utils.InferenceRequest(inputs=[], requested_output_names=[], model_name='m').exec(True).error()": "ResponseIterator",
}


def run(*command, cwd):
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=280, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.server
def test_the_utils_work_without_a_server(tmp_path):
    code = (
        "import triton_python_backend_utils as pb_utils, numpy as np\n"
        "tensor = pb_utils.Tensor('x', np.arange(3))\n"
        "print(tensor.as_numpy().tolist(), pb_utils.TritonError('t').message(), pb_utils.get_model_dir() == '')"
    )

    assert run(sys.executable, "-c", code, cwd=tmp_path) == (0, "[0, 1, 2] t True\n")


@pytest.mark.server
@pytest.mark.parametrize(
    "code",
    [
        "import c_python_backend_utils as c, triton_python_backend_utils as pb_utils",
        "import triton_python_backend_utils as pb_utils, c_python_backend_utils as c",
    ],
)
def test_both_modules_have_the_same_classes_in_either_order_of_import(code, tmp_path):
    code += "\nprint(c.Tensor is pb_utils.Tensor, c.__name__, c.MetricKind.GAUGE is pb_utils.MetricFamily.GAUGE)"

    assert run(sys.executable, "-c", code, cwd=tmp_path) == (0, "True c_python_backend_utils True\n")


@pytest.mark.server
def test_calls_of_a_request_outside_a_guest_say_where_they_work(tmp_path):
    code = (
        "import triton_python_backend_utils as pb_utils\n"
        "request = pb_utils.InferenceRequest(model_name='m', inputs=[], requested_output_names=[])\n"
        "try: request.exec()\n"
        "except pb_utils.TritonModelException as error: print(error)"
    )

    assert run(sys.executable, "-c", code, cwd=tmp_path) == (
        0,
        "BLS is only supported during the 'execute' function.\n",
    )


@pytest.mark.server
def test_a_copy_of_the_utils_beside_a_model_still_imports_without_naiad(tmp_path):
    """People copy the file for their editors; there is no stub to complete it there."""
    import triton_python_backend_utils as pb_utils

    (tmp_path / "triton_python_backend_utils.py").write_text(Path(pb_utils.__file__).read_text())
    code = (
        "import sys; sys.modules['naiad_stub'] = None\n"
        "import triton_python_backend_utils as pb_utils\n"
        "print(pb_utils.triton_string_to_numpy('TYPE_FP32').__name__, hasattr(pb_utils, 'Tensor'))"
    )

    assert run(sys.executable, "-c", code, cwd=tmp_path) == (0, "float32 False\n")


@pytest.mark.slow
def test_strict_mypy_finds_wrong_uses_and_nothing_in_a_right_model(tmp_path):
    (tmp_path / "model.py").write_text(textwrap.dedent(MODEL))
    head = "import numpy as np\nimport triton_python_backend_utils as pb_utils\n"
    (tmp_path / "wrong.py").write_text(head + "\n".join(WRONG) + "\n")

    code, said = run(*MYPY, "model.py", "wrong.py", cwd=tmp_path)

    lines = said.splitlines()
    assert code == 1
    assert [line for line in lines if line.startswith("model.py")] == []
    assert lines[-1].endswith("in 1 file (checked 2 source files)"), said
    for number, expected in enumerate(WRONG.values(), 3):
        assert any(line.startswith(f"wrong.py:{number}:") and expected in line for line in lines), (number, said)
