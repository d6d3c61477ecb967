"""What cannot be served is said when a model is loaded, not answered wrongly."""

import pytest
from support.model_files import python_config, write_files
from support.server import ServerProcess

FAILS_ONCE = """
def initialize(self, args):
    mark = os.path.join(args["model_repository"], "tried")
    if not os.path.exists(mark):
        open(mark, "w").close()
        raise RuntimeError("not yet")

def execute(self, requests):
    return []
"""


def write(repository, name, config, methods="def execute(self, requests): return []"):
    write_files(repository, name, python_config("IN FP32 1", "OUT FP32 1", config), methods)


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
    write(tmp_path / "models", "late", "", FAILS_ONCE)
    options = [f"--model-load-retry-count={retries}", "--exit-on-error=false", "--disable-auto-complete-config"]

    with ServerProcess(tmp_path / "models", *options, work=tmp_path, wait="loaded") as server:
        [entry] = server.post("/v2/repository/index").json()

    assert entry["state"] == state
