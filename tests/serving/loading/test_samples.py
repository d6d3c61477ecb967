"""Models that are each broken, or odd, in one named way, on one server: none harms another, and each is told why."""

from __future__ import annotations

import re

import pytest
from serving.repositories import SAMPLES, index, infer, repository, states, values
from support.model_files import write_files
from support.server import ServerProcess

UNAVAILABLE = {
    "raises_in_initialize": r"Internal: RuntimeError: weights are missing\n\nAt:\n  .*raises_in_initialize/1/model\.py\(3\): initialize\n",
    "bad_syntax": r"Internal: SyntaxError: .*",
    "no_class": r"Internal: AttributeError: module .* has no attribute 'TritonPythonModel'",
    "exits_in_initialize": r"Internal: Stub process 'exits_in_initialize_0' is not healthy. Reason: pid \d+ exited with status 9 while it started\..*\nlicence server unreachable",
}
HANGS = "hangs_in_initialize"
NAMES = {path.name for path in SAMPLES.iterdir()} - {HANGS}


@pytest.fixture(scope="module")
def server(work):
    models = repository(work / "models", NAMES)
    write_files(models, "bad_syntax", "", "class TritonPythonModel:\n    def execute(self, requests)\n")
    options = ("--exit-on-error=false", "--strict-readiness=false")
    with ServerProcess(models, *options, work=work, wait="loaded") as running:
        running.wait_for(
            lambda: not states(running) & {"", "LOADING", "UNKNOWN"}, "every model to be loaded or refused"
        )
        yield running


def message(server, model: str, *sent: float) -> str:
    reply = infer(server, model, *(sent or (1,)))
    assert reply.status == 500, reply.body
    return reply.error


@pytest.mark.parametrize("model", UNAVAILABLE)
def test_model_that_cannot_start_is_unavailable_with_its_reason(server, model):
    entry = index(server)[model]
    assert entry["state"] == "UNAVAILABLE"
    assert re.match(UNAVAILABLE[model], entry["reason"], re.DOTALL), entry["reason"]


def test_models_beside_broken_ones_serve(server):
    assert values(infer(server, "identity", 1, 2.5)) == [1, 2.5]
    ready = {name for name, entry in index(server).items() if entry["state"] == "READY"}
    assert ready == NAMES - set(UNAVAILABLE)


def test_model_that_hangs_while_it_starts_is_unavailable_with_its_reason(tmp_path):
    """On a server of its own: where twenty models start at once, a second may be too short for one that hangs not."""
    options = ("--exit-on-error=false", "--backend-config=python,stub-timeout-seconds=1")
    with ServerProcess(repository(tmp_path / "models", [HANGS]), *options, work=tmp_path, wait="loaded") as server:
        server.wait_for(lambda: states(server) == {"UNAVAILABLE"}, "it to be given up")
        text = rf"Internal: Stub process '{HANGS}_0' is not healthy. Reason: it made no progress for 1 s .*stub-timeout-seconds"
        assert re.match(text, index(server)[HANGS]["reason"], re.DOTALL), index(server)


def test_exception_in_execute_is_logged_with_its_traceback(server):
    message(server, "raises_in_execute")
    server.wait_log('raise ValueError(\\"no answer to that')


@pytest.mark.parametrize(("code", "status"), list(enumerate([400, 500, 404, 400, 503, 501, 400, 400])))
def test_error_of_one_request_has_the_status_of_its_code(server, code, status):
    reply = infer(server, "per_request_error_codes", code)
    assert (reply.status, reply.error) == (status, f"code {code}")


def test_files_beside_a_model_hide_no_module_of_python_or_of_the_stub(server):
    assert values(infer(server, "path_pollution", 0)) == [1, 1, 1, 1]


def test_modules_beside_a_model_are_imported_absolutely_and_relatively(server):
    assert values(infer(server, "sibling_imports", 0)) == [2, 2, 3]


def test_model_may_work_through_processes_of_its_own(server):
    assert values(infer(server, "spawns_children", 1, 2, 3)) == [2, 4, 6]


def test_configuration_is_completed_in_a_process_of_its_own(server):
    assert values(infer(server, "auto_completes", 0)) == [0]
    assert [entry["name"] for entry in server.get("/v2/models/auto_completes").json()["inputs"]] == ["IN"]
    assert server.log.count("completing") == 1


@pytest.mark.parametrize(
    "words",
    ["first line", "second line", "words to stderr", "WARNING:my.model:words to logging", "words to the server"],
)
def test_every_line_of_a_guest_is_logged_with_model_version_instance_and_pid(server, words):
    server.wait_log(words)
    [line] = [line for line in server.log.splitlines() if line.endswith(f'] {words}"')]
    assert re.search(r'"\[prints_and_logs v1 prints_and_logs_0 pid \d+\] ', line), line


def test_level_of_what_a_model_logs_is_kept(server):
    server.wait_log("bad words to the server")
    [line] = [line for line in server.log.splitlines() if "bad words" in line]
    assert line.startswith("E"), line
