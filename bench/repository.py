"""The measured model repositories, with the same files for both servers."""

from __future__ import annotations

import itertools
import shutil
import subprocess
from pathlib import Path

# Number of FP32 elements; the keys are the names in the report.
IDENTITY_SIZES = {"1KB": 256, "64KB": 16 * 1024, "1MB": 256 * 1024, "16MB": 4 * 1024 * 1024}

ADD_SUB = """\
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            left = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            right = pb_utils.get_input_tensor_by_name(request, "INPUT1").as_numpy()
            total = pb_utils.Tensor("OUTPUT0", left + right)
            difference = pb_utils.Tensor("OUTPUT1", left - right)
            responses.append(pb_utils.InferenceResponse([total, difference]))
        return responses
"""

IDENTITY = """\
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            tensor = pb_utils.get_input_tensor_by_name(request, "INPUT0")
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", tensor.as_numpy())]))
        return responses
"""

LONG = 1000
"""Numbers of a tensor of the model `add_sub_1000`."""
TEXTS = 4

COMPILER = shutil.which("cc") or ""
"""A C compiler, for the native backend; its cases are left out without one."""
NATIVE_ECHO = Path(__file__).parents[1] / "tests" / "native" / "backends" / "echo.c"
CALLS_PER_REQUEST = 32
CALLS = f"""\
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            tensor = pb_utils.get_input_tensor_by_name(request, "INPUT0")
            for _ in range({CALLS_PER_REQUEST}):
                call = pb_utils.InferenceRequest(
                    model_name="called",
                    requested_output_names=["OUTPUT0"],
                    inputs=[pb_utils.Tensor("INPUT0", tensor.as_numpy())],
                )
                response = call.exec()
                if response.has_error():
                    raise pb_utils.TritonModelException(response.error().message())
                tensor = pb_utils.get_output_tensor_by_name(response, "OUTPUT0")
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", tensor.as_numpy())]))
        return responses
"""

RESPONSES_PER_REQUEST = 1000
REPEAT = f"""\
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            array = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            for _ in range({RESPONSES_PER_REQUEST}):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array)]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
DECOUPLED = "model_transaction_policy { decoupled: true }\n"

BATCHED = """\
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.weights = np.random.default_rng(0).standard_normal((16, 16), dtype=np.float32)

    def execute(self, requests):
        arrays = [pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy() for request in requests]
        result = np.tanh(np.concatenate(arrays) @ self.weights)
        responses, start = [], 0
        for array in arrays:
            part = result[start : start + len(array)]
            start += len(array)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", part)]))
        return responses
"""
# Simulates an accelerator: a batch takes 5 ms without using a processor.
BATCHED_5MS = BATCHED.replace("import numpy", "import time\n\nimport numpy", 1).replace(
    "        arrays = ", "        time.sleep(0.005)\n        arrays = ", 1
)
DYNAMIC = "max_batch_size: 64\ndynamic_batching { }\n"
STEPS = ("INPUT0", "first", "second", "OUTPUT0")


def write_load_models(repository: Path) -> None:
    """Write the models of all loads: `add_sub`, identities of each size and of strings, calls, streams, an ensemble.

    With a compiler, also an echo in C, and one in Python of the same tensor beside it.
    """
    _write(repository / "add_sub", ADD_SUB, _ports(("INPUT0", "INPUT1"), ("OUTPUT0", "OUTPUT1"), 16))
    for name, elements in IDENTITY_SIZES.items():
        _write(repository / f"identity_{name}", IDENTITY, _ports(("INPUT0",), ("OUTPUT0",), elements))
    _write(repository / f"add_sub_{LONG}", ADD_SUB, _ports(("INPUT0", "INPUT1"), ("OUTPUT0", "OUTPUT1"), LONG))
    _write(repository / "strings", IDENTITY, _ports(("INPUT0",), ("OUTPUT0",), TEXTS, "STRING"))
    code = IDENTITY.replace("INPUT0", "text_input").replace("OUTPUT0", "text_output")
    _write(repository / "text", code, _ports(("text_input",), ("text_output",), 1, "STRING"))
    one = _ports(("INPUT0",), ("OUTPUT0",), 16)
    _write(repository / "called", IDENTITY, one)
    _write(repository / "calls", CALLS, one)
    _write(repository / "repeat", REPEAT, one + DECOUPLED)
    _write(repository / "batched", BATCHED, one + DYNAMIC)
    _write(repository / "batched_5ms", BATCHED_5MS, one + DYNAMIC)
    _write_ensemble(repository / "ensemble", one)
    if COMPILER:
        _write_native(repository / "native")
        code = IDENTITY.replace("INPUT0", "IN").replace("OUTPUT0", "OUT")
        _write(repository / "native_python", code, _ports(("IN",), ("OUT",), 16))


def write_copies(repository: Path, count: int) -> None:
    """Write `count` models with the same code, each with its own instance."""
    for index in range(count):
        _write(repository / f"model_{index:02}", ADD_SUB, _ports(("INPUT0", "INPUT1"), ("OUTPUT0", "OUTPUT1"), 16))


def write_scaling_models(repository: Path, copies: int, instances: int) -> None:
    """Write `add_sub` with these instances, an identity model of 1 MB, and copies of `add_sub` with one instance."""
    write_copies(repository, copies)
    group = f"instance_group {{ count: {instances} kind: KIND_CPU }}\n"
    _write(repository / "add_sub", ADD_SUB, _ports(("INPUT0", "INPUT1"), ("OUTPUT0", "OUTPUT1"), 16) + group)
    _write(repository / "identity_1MB", IDENTITY, _ports(("INPUT0",), ("OUTPUT0",), IDENTITY_SIZES["1MB"]))


def write_with_environment(repository: Path, archive: Path, stub: Path | None) -> None:
    """Write one model with a packed environment; `stub` is the reference's stub for the environment's Python."""
    model = repository / "packed"
    parameter = f'parameters: {{ key: "EXECUTION_ENV_PATH" value: {{ string_value: "{archive}" }} }}\n'
    _write(model, ADD_SUB, _ports(("INPUT0", "INPUT1"), ("OUTPUT0", "OUTPUT1"), 16) + parameter)
    if stub is not None:
        shutil.copy(stub, model)


def _write_native(model: Path) -> None:
    """A model of the backend `echo`, written in C, with its library in the model's directory."""
    (model / "1").mkdir(parents=True)
    (model / "config.pbtxt").write_text('backend: "echo"\n' + _ports(("IN",), ("OUT",), 16))
    library = model / "libtriton_echo.so"
    subprocess.run([COMPILER, "-shared", "-fPIC", "-O2", "-o", library, NATIVE_ECHO], check=True)


def _write_ensemble(model: Path, ports: str) -> None:
    """Write an ensemble that runs the model `called` three times, one after the other."""
    (model / "1").mkdir(parents=True)
    steps = "".join(
        f'step {{ model_name: "called" model_version: -1 input_map {{ key: "INPUT0" value: "{source}" }} '
        f'output_map {{ key: "OUTPUT0" value: "{target}" }} }}\n'
        for source, target in itertools.pairwise(STEPS)
    )
    (model / "config.pbtxt").write_text(f'platform: "ensemble"\n{ports}ensemble_scheduling {{\n{steps}}}\n')


def _write(model: Path, code: str, ports: str) -> None:
    (model / "1").mkdir(parents=True)
    (model / "1" / "model.py").write_text(code)
    (model / "config.pbtxt").write_text(f'backend: "python"\n{ports}')


def _ports(inputs: tuple[str, ...], outputs: tuple[str, ...], elements: int, datatype: str = "FP32") -> str:
    return "".join(
        f'{side} {{ name: "{name}" data_type: TYPE_{datatype} dims: [ {elements} ] }}\n'
        for side, names in (("input", inputs), ("output", outputs))
        for name in names
    )
