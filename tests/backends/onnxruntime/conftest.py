"""The backend `onnxruntime`: its declared environment in a store, built once, and one server for most tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from backends.builds import declared_environment
from support.server import ServerProcess

from . import files

STATEFUL = """
max_batch_size: 4
input { name: "X" data_type: TYPE_FP32 dims: 1 }
output { name: "Y" data_type: TYPE_FP32 dims: 1 }
sequence_batching {
  direct {}
  control_input { name: "START" control { kind: CONTROL_SEQUENCE_START fp32_false_true: [0, 1] } }
  state { input_name: "STATE" output_name: "NEW_STATE" data_type: TYPE_FP32 dims: 1 }
}
"""

PARAMETERS = """
max_batch_size: 16
optimization { graph { level: 1 } }
""" + "".join(
    f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'
    for key, value in (
        ("intra_op_thread_count", 1),
        ("inter_op_thread_count", 1),
        ("execution_mode", 1),
        ("enable_mem_arena", "true"),
        ("enable_mem_pattern", 0),
        ("session.use_device_allocator_for_initializers", 1),
        ("memory.enable_memory_arena_shrinkage", "cpu:0"),
    )
)


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the environment that the backend declares."""
    return declared_environment(tmp_path_factory, "onnxruntime")


def add_models(models: Path) -> Path:
    """Models of all kinds. Those without a configuration are recognised by their file."""
    files.add_sub(models / "add_sub" / "1" / "model.onnx")
    files.add_sub(models / "tuned" / "1" / "model.onnx")
    (models / "tuned" / "config.pbtxt").write_text('platform: "onnxruntime_onnx"' + PARAMETERS)
    files.identity(models / "texts" / "1" / "model.onnx", files.STRING, ["rows", 2])
    files.total(models / "total" / "1" / "model.onnx")
    files.scaled(models / "scaled" / "1" / "other.onnx")
    optional = 'input { name: "W" data_type: TYPE_FP32 dims: 1 optional: true }'
    required = 'input { name: "X" data_type: TYPE_FP32 dims: 2 } output { name: "Y" data_type: TYPE_FP32 dims: 2 }'
    (models / "scaled" / "config.pbtxt").write_text(
        f'backend: "onnxruntime" default_model_filename: "other.onnx" {required} {optional}'
    )
    files.gather(models / "gather" / "1" / "model.onnx")
    files.counter(models / "counter" / "1" / "model.onnx")
    (models / "counter" / "config.pbtxt").write_text('backend: "onnxruntime"' + STATEFUL)
    files.with_external_data(models / "external" / "1" / "model.onnx")
    return models


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, store: Path) -> Iterator[ServerProcess]:
    """A server with these models; nothing that a test does with it changes what others find."""
    folder = tmp_path_factory.mktemp("onnx")
    flags = (f"--env-store={store}", "--backend-config=onnxruntime,default-max-batch-size=8")
    with ServerProcess(add_models(folder / "models"), *flags, work=folder) as running:
        yield running
