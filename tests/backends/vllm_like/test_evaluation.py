"""lm-eval, the evaluation harness, unchanged: a task whose answers are scored by the model's log probabilities."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from support.once import once
from support.packages import install_packages
from support.server import ServerProcess, free_ports

from .conftest import add_model

pytestmark = [pytest.mark.endurance, pytest.mark.timeout(600)]

LM_EVAL = "lm-eval[api]==0.4.13"
SOURCES = ("sqlitedict", "word2number", "rouge-score")
"""Packages that it needs and that have no wheels."""
QUESTIONS = ("hello the other world", "in an hour", "the church and the hall", "one two three")
TASK = """
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
target_delimiter: ""
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{{target}}}}}"
metric_list: [{{metric: acc, aggregation: mean, higher_is_better: true}}]
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, engines: Path) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("evaluated")
    add_model(folder / "models", engines, "llama", {"model": "tiny.gguf", "max_model_len": 512, "max_num_seqs": 2})
    port = free_ports(1)[0]
    with ServerProcess(folder / "models", f"--openai-port={port}", work=folder) as running:
        running.openai_port = port  # type: ignore[attr-defined]
        yield running


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with lm-eval."""

    def install(folder: Path) -> None:
        folder.mkdir()
        (folder / "failure").write_text(install_packages(sys.executable, folder, LM_EVAL, sources=SOURCES))

    folder = once(tmp_path_factory, "lm-eval", install)
    failure = (folder / "failure").read_text()
    if failure:
        pytest.skip(f"{LM_EVAL} cannot be installed: {failure}")
    return folder


def tasks(server: ServerProcess, folder: Path) -> None:
    """Two tasks with the same questions: `likely`, whose answers are what the model says, and `unlikely`, the others."""
    base = f"http://127.0.0.1:{server.openai_port}/v1"  # type: ignore[attr-defined]
    rows = []
    with openai.OpenAI(base_url=base, api_key="any", max_retries=0, timeout=60) as client:
        for question in QUESTIONS:
            given = {"model": "llama", "prompt": question, "max_tokens": 1, "temperature": 0, "logprobs": 5}
            found = client.completions.create(**given).choices[0].logprobs  # type: ignore[call-overload]
            best, *others = sorted(found.top_logprobs[0], key=lambda text: -found.top_logprobs[0][text])
            # Of plain letters, so that the text is read as the tokens that it is made of.
            plain = [text for text in others if text.isascii() and text.strip()]
            if best.isascii() and best.strip() and plain:
                rows.append({"question": question, "choices": [plain[-1], best], "good": 1, "bad": 0})
    assert rows
    (folder / "rows.json").write_text("\n".join(map(json.dumps, rows)))
    for name, target in (("likely", "good"), ("unlikely", "bad")):
        (folder / f"{name}.yaml").write_text(TASK.format(name=name, file=folder / "rows.json", target=target))


def test_lm_eval_scores_answers_by_their_log_probabilities(server, packages, tmp_path):
    tasks(server, tmp_path)
    arguments = {
        "model": "llama",
        "base_url": f"http://127.0.0.1:{server.openai_port}/v1/completions",
        "max_length": "500",
        "num_concurrent": "2",
        "max_retries": "1",
    }
    command = [sys.executable, "-m", "lm_eval", "--model", "local-completions", "--tasks", "likely,unlikely"]
    command += ["--model_args", ",".join(f"{name}={value}" for name, value in arguments.items())]
    command += ["--include_path", str(tmp_path), "--output_path", str(tmp_path / "results")]
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "NO_PROXY": "127.0.0.1"}
    environ = {**kept, **offline, "HOME": str(tmp_path), "PYTHONPATH": str(packages), "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    assert "Using remote tokenizer" in done.stdout + done.stderr
    results = json.loads(next((tmp_path / "results").rglob("results_*.json")).read_text())["results"]
    assert (results["likely"]["acc,none"], results["unlikely"]["acc,none"]) == (1.0, 0.0)
