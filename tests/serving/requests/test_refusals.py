"""What cannot be served is said when a model is loaded, not answered wrongly."""

import pytest
from support.server import ServerProcess

MODEL = """
class TritonPythonModel:
    def execute(self, requests):
        return []
"""
FAILS_ONCE = """
import pathlib


class TritonPythonModel:
    def initialize(self, args):
        mark = pathlib.Path(args["model_repository"]) / "tried"
        if not mark.exists():
            mark.touch()
            raise RuntimeError("not yet")

    def execute(self, requests):
        return []
"""
TENSORS = 'input { name: "IN" data_type: TYPE_FP32 dims: 1 } output { name: "OUT" data_type: TYPE_FP32 dims: 1 }'


def write(repository, name, config):
    version = repository / name / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(MODEL)
    (version.parent / "config.pbtxt").write_text(f'backend: "python" {TENSORS} {config}')


def test_label_file_that_is_named_and_not_there_fails_the_load(tmp_path):
    write(tmp_path / "models", "labelled", "")
    config = tmp_path / "models" / "labelled" / "config.pbtxt"
    config.write_text(config.read_text().replace("output {", 'output { label_filename: "labels.txt"'))

    with ServerProcess(tmp_path / "models", "--exit-on-error=false", work=tmp_path, wait="loaded") as server:
        [entry] = server.post("/v2/repository/index").json()

    assert entry["state"] == "UNAVAILABLE"
    assert "labels.txt" in entry["reason"]


def test_model_that_asks_for_a_repository_agent_is_refused_and_says_what_to_do(tmp_path):
    """Triton refuses it too, unless it finds the agent's library."""
    write(tmp_path / "models", "checked", 'model_repository_agents { agents { name: "checksum" } }')

    with ServerProcess(tmp_path / "models", "--exit-on-error=false", work=tmp_path, wait="loaded") as server:
        [entry] = server.post("/v2/repository/index").json()

    assert "asks for the repository agent 'checksum': these are native libraries" in entry["reason"]


@pytest.mark.parametrize(("retries", "state"), [(0, "UNAVAILABLE"), (1, "READY")])
def test_load_that_fails_is_tried_again_as_often_as_the_flag_says(tmp_path, retries, state):
    write(tmp_path / "models", "late", "")
    (tmp_path / "models" / "late" / "1" / "model.py").write_text(FAILS_ONCE)
    options = [f"--model-load-retry-count={retries}", "--exit-on-error=false", "--disable-auto-complete-config"]

    with ServerProcess(tmp_path / "models", *options, work=tmp_path, wait="loaded") as server:
        [entry] = server.post("/v2/repository/index").json()

    assert entry["state"] == state
