"""One environment and one server for each file of tests of language models."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.server import ServerProcess, free_ports

from . import environment

if TYPE_CHECKING:
    from openai import OpenAI

ROOT = Path(__file__).parents[3]
BACKENDS = ROOT / "backends"

# The backend's own folder is where its modules are found, as in a guest.
if str(BACKENDS / "vllm_like") not in sys.path:
    sys.path.append(str(BACKENDS / "vllm_like"))

_CONFIG = """
backend: "{backend}"
instance_group {{ count: 1 kind: KIND_MODEL }}
parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{environment}" }} }}
parameters {{ key: "REPORT_CUSTOM_METRICS" value {{ string_value: "true" }} }}
"""

SETTINGS = {
    "llama": {"model": "tiny.gguf", "max_model_len": 2048, "max_num_seqs": 8, "dtype": "float16"},
    "fake": {
        "model": "some/model",
        "gpu_memory_utilization": 0.5,
        "disable_log_requests": True,
        "enable_lora": True,
        "tool_call_parser": "marks",
    },
    "thoughtful": {"model": "some/model", "reasoning_parser": "thoughts", "tool_call_parser": "marks"},
    "vectors": {"model": "tiny.gguf", "max_model_len": 256, "max_num_seqs": 2, "runner": "pooling"},
    "ranker": {
        "model": "tiny.gguf",
        "max_model_len": 256,
        "runner": "pooling",
        "pooler_config": {"pooling_type": "RANK"},
    },
    "adapted": {"model": "tiny.gguf", "max_model_len": 256, "max_num_seqs": 2, "enable_lora": True},
}
LORAS = {"fake": {"shouting": "adapters/shouting"}, "adapted": {"other": "adapter.gguf"}}
"""`multi_lora.json`; all files and folders it names are made."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whichever test comes first makes the environment, or waits for who does, and needs the time for that."""
    for item in items:
        if "engines" in getattr(item, "fixturenames", ()) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(280))


@pytest.fixture(scope="session")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The environment with the engines; `tiny.gguf` lies in it."""
    return environment.make(tmp_path_factory)


def add_model(
    repository: Path, engines: Path, name: str, settings: object, config: str = "", backend: str = "vllm_like"
) -> Path:
    """A model of the backend; returns its version directory."""
    version = repository / name / "1"
    version.mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(_CONFIG.format(environment=engines, backend=backend) + config)
    (version / "model.json").write_text(json.dumps(settings))
    if (engines / "tiny.gguf").exists():
        shutil.copy(engines / "tiny.gguf", version)
    return version


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, engines: Path) -> Iterator[ServerProcess]:
    """A server with a model of each engine; nothing a test does with it is to change what others find."""
    folder = tmp_path_factory.mktemp("llm")
    for name, settings in SETTINGS.items():
        version = add_model(folder / "models", engines, name, settings)
        if name in LORAS:
            (version / "multi_lora.json").write_text(json.dumps(LORAS[name]))
            (version / "adapters" / "shouting").mkdir(parents=True)
            shutil.copy(engines / "adapter.gguf", version)
    port = free_ports(1)[0]
    flags = (f"--openai-port={port}", "--openai-lora-separator=:")
    with ServerProcess(folder / "models", *flags, work=folder) as running:
        running.openai_port = port  # type: ignore[attr-defined]
        yield running


@pytest.fixture
def client(server: ServerProcess) -> Iterator[OpenAI]:
    """OpenAI's own client, asking that server."""
    import openai

    base = f"http://127.0.0.1:{server.openai_port}/v1"  # type: ignore[attr-defined]
    with openai.OpenAI(base_url=base, api_key="any", max_retries=0, timeout=30) as made:
        yield made
