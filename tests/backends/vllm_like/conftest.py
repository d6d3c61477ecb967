"""One environment and one server for all tests of language models that do not need their own."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
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


@pytest.fixture(scope="session")
def explicit_server(tmp_path_factory: pytest.TempPathFactory, engines: Path) -> Iterator[ServerProcess]:
    """A server that loads what it is told to; its repository has a model of each engine."""
    folder = tmp_path_factory.mktemp("llm")
    for name, settings in SETTINGS.items():
        version = add_model(folder / "models", engines, name, settings)
        if name in LORAS:
            (version / "multi_lora.json").write_text(json.dumps(LORAS[name]))
            (version / "adapters" / "shouting").mkdir(parents=True)
            shutil.copy(engines / "adapter.gguf", version)
    port = free_ports(1)[0]
    flags = ("--model-control-mode=explicit", f"--openai-port={port}", "--openai-lora-separator=:")
    with ServerProcess(folder / "models", *flags, work=folder) as running:
        running.openai_port = port  # type: ignore[attr-defined]
        yield running


@pytest.fixture(scope="session")
def loaded() -> set[str]:
    """The names of the models that have been loaded for all tests."""
    return set()


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest, explicit_server: ServerProcess, loaded: set[str]) -> ServerProcess:
    """That server with the module's MODELS; nothing a test does with them is to change what others find."""
    for name in request.module.MODELS:
        if name not in loaded:
            load(explicit_server, name)
            loaded.add(name)
    return explicit_server


def load(server: ServerProcess, name: str) -> None:
    reply = server.post(f"/v2/repository/models/{name}/load")
    assert reply.status == 200, reply.body


@pytest.fixture
def serve(explicit_server: ServerProcess, engines: Path) -> Iterator[Callable[..., ServerProcess]]:
    """`serve(name, settings)` adds a model to that server until the test ends; further arguments are those of `add_model`."""
    repository = explicit_server.work / "models"
    names = []

    def add_and_load(name: str, settings: object, *args: str, **options: str) -> ServerProcess:
        names.append(name)
        add_model(repository, engines, name, settings, *args, **options)
        load(explicit_server, name)
        return explicit_server

    yield add_and_load
    for name in names:
        explicit_server.post(f"/v2/repository/models/{name}/unload")
        shutil.rmtree(repository / name)


@pytest.fixture
def client(server: ServerProcess) -> Iterator[OpenAI]:
    """OpenAI's own client, asking that server."""
    import openai

    base = f"http://127.0.0.1:{server.openai_port}/v1"  # type: ignore[attr-defined]
    with openai.OpenAI(base_url=base, api_key="any", max_retries=0, timeout=60) as made:
        yield made
