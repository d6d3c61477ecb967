"""The backend `pytorch`: an environment with PyTorch in a store, built once, and models made by it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from backends.builds import python_of, torch_environment
from support.once import once
from support.server import ServerProcess

ENVIRONMENT = "--backend-config=pytorch,execution-env-path=../transformers/pylock.cpu.toml"
"""The packages that the backend declares, and more: one environment for the tests of both."""

PREWARM = 'parameters { key: "PREWARM" value { string_value: "torch" } }'
"""PyTorch is imported once for all of the tests' models."""


def tensor(kind: str, name: str, data_type: str = "FP32", dims: str = "4", more: str = "") -> str:
    return f'{kind} {{ name: "{name}" data_type: TYPE_{data_type} dims: [ {dims} ] {more} }}\n'


def parameter(key: str, value: object) -> str:
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'


PLATFORM = 'backend: "pytorch" platform: "pytorch_libtorch"\n'
BATCHES = "max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 2000 }\n"
INPUTS = tensor("input", "x") + tensor("input", "y")
OUTPUTS = tensor("output", "OUTPUT__0") + tensor("output", "OUTPUT__1")
SCALAR = "reshape { shape: [ ] }"

CONFIGS = {
    "add_sub": PLATFORM + BATCHES + INPUTS + OUTPUTS,
    "by_index": BATCHES + tensor("input", "B__1") + tensor("input", "A__0") + OUTPUTS,
    "by_order": 'platform: "pytorch_libtorch"'
    + BATCHES
    + tensor("input", "FIRST")
    + tensor("input", "SECOND")
    + tensor("output", "SUM")
    + tensor("output", "DIFFERENCE"),
    "tuned": PLATFORM
    + BATCHES
    + INPUTS
    + OUTPUTS
    + "".join(
        parameter(key, value)
        for key, value in (
            ("DISABLE_OPTIMIZED_EXECUTION", "true"),
            ("INFERENCE_MODE", "false"),
            ("DISABLE_CUDNN", "true"),
            ("ENABLE_WEIGHT_SHARING", "true"),
            ("ENABLE_CACHE_CLEANING", "true"),
            ("INTER_OP_THREAD_COUNT", "1"),
            ("INTRA_OP_THREAD_COUNT", "1"),
            ("ENABLE_JIT_EXECUTOR", "true"),
            ("ENABLE_JIT_PROFILING", "false"),
            ("ENABLE_TENSOR_FUSER", "false"),
        )
    ),
    "without_outputs": BATCHES + tensor("input", "x", dims="-1") + tensor("input", "y", dims="-1"),
    "wrong_outputs": PLATFORM
    + BATCHES
    + INPUTS
    + tensor("output", "OUTPUT__0", "FP64")
    + tensor("output", "OUTPUT__7"),
    "traced": PLATFORM + 'default_model_filename: "other.pt"\n' + INPUTS + OUTPUTS,
    "louder": PLATFORM
    + BATCHES
    + tensor("input", "texts", "STRING", "1", SCALAR)
    + tensor("output", "OUTPUT__0", "STRING", "1", SCALAR),
    "lengths": PLATFORM
    + tensor("input", "texts", "STRING", "-1")
    + tensor("output", "OUTPUT__0", "INT64", "-1")
    + tensor("output", "OUTPUT__1", "STRING", "-1"),
    "named": PLATFORM
    + BATCHES
    + tensor("input", "b")
    + tensor("input", "a")
    + tensor("output", "sum")
    + tensor("output", "product"),
    "lookup": PLATFORM + BATCHES + tensor("input", "positions", "INT64", "1") + tensor("output", "OUTPUT__0", dims="1"),
    "counter": PLATFORM
    + "max_batch_size: 4\n"
    + tensor("input", "INPUT__0", dims="1")
    + tensor("output", "OUTPUT__0", dims="1")
    + """
    sequence_batching {
      direct {}
      control_input { name: "START__1" control { kind: CONTROL_SEQUENCE_START fp32_false_true: [0, 1] } }
      state { input_name: "STATE__2" output_name: "STATE__1" data_type: TYPE_FP32 dims: 1 }
    }
    """,
    "module": 'backend: "pytorch" runtime: "model.py"\n'
    + BATCHES
    + tensor("input", "X")
    + tensor("output", "Y", dims="2")
    + tensor("output", "Z", dims="4")
    + parameter("TORCH_COMPILE_OPTIONAL_PARAMETERS", '{\\"backend\\": \\"eager\\"}')
    + parameter("NUM_THREADS", 1)
    + parameter("NUM_INTEROP_THREADS", 1),
}

# A server waits for three requests of these models, and computes them at once.
SEGMENTS = (
    BATCHES.replace(
        "max_queue_delay_microseconds: 2000", "preferred_batch_size: 3 max_queue_delay_microseconds: 60000000"
    )
    + tensor("input", "x__0", dims="-1", more="allow_ragged_batch: true")
    + tensor("output", "OUTPUT__0", dims="1")
    + tensor("output", "OUTPUT__1", dims="-1")
    + """
    batch_input {
      target_name: "ENDS__1" kind: BATCH_ACCUMULATED_ELEMENT_COUNT data_type: TYPE_INT32 source_input: "x__0"
    }
    batch_output { target_name: "OUTPUT__1" kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: "x__0" }
    """
)
CONFIGS["segments"] = PLATFORM + SEGMENTS
CONFIGS["segments_module"] = 'backend: "pytorch" runtime: "model.py"\n' + SEGMENTS
CONFIGS["segments_exported"] = 'backend: "pytorch"\n' + SEGMENTS.replace("x__0", "INPUT__0").replace(
    "ENDS__1", "INPUT__1"
)

SEGMENTS_MODULE = """
import torch


class Segments(torch.nn.Module):
    def forward(self, x, ends):
        sums = torch.cumsum(x, 0)[ends.long() - 1]
        return torch.diff(sums, prepend=torch.zeros(1)).reshape(-1, 1), x * 2
"""

MODULE = """
import torch
from torch.nn import Linear


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = Linear(4, 2)

    def forward(self, x):
        return self.layer(x), x * 2
"""


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with an environment that has PyTorch."""
    return torch_environment(tmp_path_factory)


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory, store: Path) -> Path:
    """Folders of models as a program wrote them, without configurations."""

    def make(folder: Path) -> None:
        run(store, "make_models.py", folder)

    return once(tmp_path_factory, "pytorch-models", make)


def run(store: Path, program: str, folder: Path) -> None:
    command = [str(python_of(store)), "-W", "ignore", str(Path(__file__).with_name(program)), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, files: Path, store: Path) -> Iterator[ServerProcess]:
    """A server with these models, and an ensemble of one of them with a model in Python."""
    folder = tmp_path_factory.mktemp("pytorch")
    models = folder / "models"
    for name, config in {**CONFIGS, "exported": "", "fixed": ""}.items():
        if name == "segments_module":
            (models / name / "1").mkdir(parents=True)
            (models / name / "1" / "model.py").write_text(SEGMENTS_MODULE)
        else:
            shutil.copytree(files / name, models / name)
        if config:
            (models / name / "config.pbtxt").write_text(config + PREWARM)
    (models / "module" / "1" / "model.py").write_text(MODULE)
    add_ensemble(models)
    with ServerProcess(models, f"--env-store={store}", ENVIRONMENT, work=folder, timeout=240) as running:
        yield running


def add_ensemble(models: Path) -> None:
    """Text of numbers to numbers in Python, then their lookup in PyTorch."""
    code = models / "parse" / "1" / "model.py"
    code.parent.mkdir(parents=True)
    code.write_text(PARSE)
    (code.parents[1] / "config.pbtxt").write_text(
        "max_batch_size: 8\n" + tensor("input", "TEXT", "STRING", "1") + tensor("output", "NUMBER", "INT64", "1")
    )
    ensemble = models / "spoken" / "config.pbtxt"
    ensemble.parent.joinpath("1").mkdir(parents=True)
    ensemble.write_text(
        'platform: "ensemble" max_batch_size: 8\n'
        + tensor("input", "TEXT", "STRING", "1")
        + tensor("output", "VALUE", dims="1")
        + """
        ensemble_scheduling {
          step { model_name: "parse" model_version: -1
            input_map { key: "TEXT" value: "TEXT" } output_map { key: "NUMBER" value: "number" } }
          step { model_name: "lookup" model_version: -1
            input_map { key: "positions" value: "number" } output_map { key: "OUTPUT__0" value: "VALUE" } }
        }
        """
    )


PARSE = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse(
                [
                    pb_utils.Tensor(
                        "NUMBER",
                        np.array(
                            [
                                [int(text)]
                                for text in pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy().ravel()
                            ],
                            np.int64,
                        ),
                    )
                ]
            )
            for request in requests
        ]
"""
