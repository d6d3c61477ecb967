"""`examples/llm_pipeline`: three steps, each under a Python of its own, as an ensemble and as calls; parts stream through."""

from __future__ import annotations

import importlib.util
import json
import queue
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from support.server import ServerProcess

EXAMPLE = Path(__file__).parents[3] / "examples" / "llm_pipeline"
CHAINS = ("as_ensemble", "as_calls")
pytestmark = [pytest.mark.endurance]


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory, engines: Path) -> Iterator[ServerProcess]:
    """The example with a tiny model in the place of its weights."""
    folder = tmp_path_factory.mktemp("pipeline")
    environments = folder / "environments"
    environments.mkdir()
    if len(start_script().build_steps(environments)) < 2:
        pytest.skip("there are no two Pythons besides this one")
    (environments / "generate").symlink_to(engines)
    shutil.copytree(EXAMPLE / "models", folder / "models", ignore=shutil.ignore_patterns("__pycache__"))
    settings = {"model": str(engines / "tiny.gguf"), "max_model_len": 2048, "max_num_seqs": 4}
    (folder / "models" / "generate" / "1" / "model.json").write_text(json.dumps(settings))
    with ServerProcess(folder / "models", f"--env-directory={environments}", work=folder, timeout=90) as server:
        yield server


def start_script():
    spec = importlib.util.spec_from_file_location("llm_pipeline_start", EXAMPLE / "start.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Asked:
    """One request; iterating gives text and mark of each part."""

    def __init__(self, server: ServerProcess, model: str, question: str, tokens: int) -> None:
        self.client = grpcclient.InferenceServerClient(server.grpc_url)
        self._arrived: queue.Queue = queue.Queue()
        given = grpcclient.InferInput("QUESTION", [1], "BYTES")
        given.set_data_from_numpy(np.array([question.encode()], dtype=object))
        most = grpcclient.InferInput("MAX_TOKENS", [1], "INT32")
        most.set_data_from_numpy(np.array([tokens], dtype=np.int32))
        self.client.start_stream(lambda result, error: self._arrived.put((result, error)))
        self.client.async_stream_infer(model, [given, most], enable_empty_final_response=True)

    def __iter__(self) -> Iterator[tuple[bytes, bool]]:
        while True:
            result, error = self._arrived.get(timeout=60)
            if error is not None:
                raise error
            answer = result.as_numpy("ANSWER")
            if answer is not None:
                yield answer[0], bool(result.as_numpy("IS_LAST")[0])
            if result.get_response().parameters["triton_final_response"].bool_param:
                return

    def __enter__(self) -> Asked:  # noqa: PYI034 - typing.Self is 3.11+
        return self

    def __exit__(self, *_: object) -> None:
        self.client.stop_stream(cancel_requests=True)
        self.client.close()


def whole(server: ServerProcess, model: str, question: str, tokens: int) -> list[tuple[bytes, bool]]:
    with Asked(server, model, question, tokens) as asked:
        return list(asked)


def test_each_step_runs_under_a_python_of_its_own(pipeline: ServerProcess):
    found = dict(re.findall(r"'(\w+?)_0(?:_0)?' is ready: pid \d+, Python (\d+\.\d+)", pipeline.log))
    assert set(found) == {"prepare", "generate", "finish", "as_calls"}
    assert len({found["prepare"], found["generate"], found["finish"]}) == 3


@pytest.mark.parametrize("chain", CHAINS)
def test_parts_stream_through_all_steps_and_the_last_is_marked(pipeline: ServerProcess, chain: str):
    parts = whole(pipeline, chain, " hello   the other\nworld ", 24)
    assert len(parts) > 5
    assert [is_last for _, is_last in parts] == [False] * (len(parts) - 1) + [True]
    direct = pipeline.post("/v2/models/generate/generate", {
        "messages": json.dumps([{"role": "system", "content": "You are a helpful assistant."},
                                {"role": "user", "content": "hello the other world"}]),
        "max_tokens": 24, "temperature": 0,
    }).json()["text_output"]  # fmt: skip
    assert b"".join(text for text, _ in parts).decode() == re.sub(r"[0-9]", "#", direct)


@pytest.mark.parametrize("chain", CHAINS)
def test_the_first_part_comes_before_the_last_is_made(pipeline: ServerProcess, chain: str):
    """A long answer is left after its first part; another one, which would have to wait, is answered."""
    with Asked(pipeline, chain, "hello", 1900) as long:
        first, is_last = next(iter(long))
        assert isinstance(first, bytes)
        assert not is_last
        assert whole(pipeline, chain, "the", 2)[-1][1]


@pytest.mark.parametrize("chain", CHAINS)
def test_errors_of_the_first_step_reach_the_client(pipeline: ServerProcess, chain: str):
    with pytest.raises(Exception, match="the question is empty"):
        whole(pipeline, chain, "   ", 3)


def test_the_client_of_the_example_prints_both_answers(pipeline: ServerProcess):
    command = [sys.executable, EXAMPLE / "client.py", "--url", pipeline.grpc_url, "--max-tokens", "16"]
    done = subprocess.run(command, capture_output=True, timeout=60, check=False)
    said = done.stdout.decode(errors="replace")
    assert done.returncode == 0, said + done.stderr.decode(errors="replace")
    assert said.startswith("as_ensemble: ")
    assert said.count("the last one marked as such: yes") == 2
