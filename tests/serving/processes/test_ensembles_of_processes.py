"""Requests to an ensemble are executed by the process that they arrive at, if it has instances of all of its models."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import Future
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from serving.ensembles.ensembles import write_ensemble, write_function, write_model
from serving.frontends.killing import serving
from serving.processes.reaching import connection_of_each
from support.server import ServerProcess
from support.threads import in_thread
from support.waiting import until

PROCESSES = 3
GROUP = f"instance_group [{{ count: {PROCESSES} kind: KIND_CPU }}]\n"
ONE_PROCESS = 'parameters { key: "ONE_PROCESS" value { string_value: "true" } }\n'
TENSORS = 'input { name: "IN" data_type: TYPE_INT64 dims: -1 }\noutput { name: "OUT" data_type: TYPE_INT64 dims: -1 }\n'
ADDS_PROCESS = "np.append(x, os.getppid())"
WAITS = """
def answer(self, request):
    folder = {folder!r}
    open(os.path.join(folder, "begun"), "w").close()
    while not os.path.exists(os.path.join(folder, "go")):
        time.sleep(0.01)
    return self.output(np.append(self.input(request), os.getppid()))
"""
ASKED = """
def is_ready(self):
    return not os.path.exists(os.path.join({folder!r}, f"unready-{{os.getppid()}}"))

def answer(self, request):
    return self.output(self.input(request))
"""
FAILS = """
def answer(self, request):
    raise ValueError("no such thing")
"""
EDGES = {"inputs": "X INT64 -1", "outputs": "Y INT64 -1"}


def write_models(models: Path) -> None:
    for name in ("a", "b"):
        write_function(models, name, ADDS_PROCESS, GROUP, TENSORS)
    write_function(models, "together", ADDS_PROCESS, GROUP + ONE_PROCESS, TENSORS)
    write_model(models, "waits", WAITS.format(folder=str(models.parent)), GROUP, TENSORS)
    write_model(models, "asked", ASKED.format(folder=str(models.parent)), GROUP, TENSORS)
    write_model(models, "fails", FAILS, GROUP, TENSORS)
    write_ensemble(models, "pair", "a IN=X > OUT=M", "b IN=M > OUT=Y", **EDGES)
    write_ensemble(models, "nested", "pair X=X > Y=M", "a IN=M > OUT=Y", **EDGES)
    write_ensemble(models, "mixed", "a IN=X > OUT=M", "together IN=M > OUT=Y", **EDGES)
    write_ensemble(models, "limited", "a IN=X > OUT=M", "b IN=M > OUT=Y", limit=1, **EDGES)
    write_ensemble(models, "waiting", "waits IN=X > OUT=M", "a IN=M > OUT=Y", **EDGES)
    write_ensemble(models, "asking", "asked IN=X > OUT=M", "a IN=M > OUT=Y", **EDGES)
    write_ensemble(models, "outer", "asking X=X > Y=M", "a IN=M > OUT=Y", **EDGES)
    write_ensemble(models, "failing", "a IN=X > OUT=M", "fails IN=M > OUT=Y", **EDGES)


@pytest.fixture
def models(tmp_path: Path) -> Path:
    write_models(tmp_path / "models")
    return tmp_path / "models"


@pytest.fixture(scope="module")
def shared_models(work: Path) -> Path:
    models = work / "models"
    write_models(models)
    return models


@pytest.fixture(scope="module")
def shared(shared_models: Path) -> Iterator[ServerProcess]:
    with server_of(shared_models) as process:
        yield process


def server_of(models: Path) -> ServerProcess:
    options = (f"--processes={PROCESSES}", "--model-control-mode=explicit", "--load-model=*")
    return ServerProcess(models, *options, work=models.parent)


def ask(connection: HTTPConnection, model: str, **more: Any) -> list[int] | str:
    """The values that an ensemble answers to 1, or its error."""
    tensor = {"name": "X", "datatype": "INT64", "shape": [1], "data": [1]}
    connection.request("POST", f"/v2/models/{model}/infer", json.dumps({"inputs": [tensor], **more}))
    response = connection.getresponse()
    body = json.loads(response.read())
    return body["outputs"][0]["data"] if response.status == 200 else str(body["error"])


def statistics(server: ServerProcess, model: str) -> dict[str, Any]:
    (found,) = server.get(f"/v2/models/{model}/stats").json()["model_stats"]
    return dict(found)


@pytest.mark.parametrize(("model", "steps"), [("pair", 2), ("nested", 3)])
def test_all_steps_run_in_the_process_that_the_request_arrives_at(
    shared: ServerProcess, model: str, steps: int
) -> None:
    with connection_of_each(shared) as connections:
        assert len(connections) == PROCESSES
        for pid, connection in connections.items():
            assert ask(connection, model) == [1, *[pid] * steps]


@pytest.mark.parametrize("model", ["mixed", "limited"])
def test_other_ensembles_run_in_the_coordinator(shared: ServerProcess, model: str) -> None:
    with connection_of_each(shared) as connections:
        for connection in connections.values():
            assert ask(connection, model)[-1] == shared.pid


def test_statistics_are_the_sums_of_all_processes(shared: ServerProcess) -> None:
    before = [statistics(shared, model) for model in ("pair", "b")]
    with connection_of_each(shared) as connections:
        for connection in connections.values():
            ask(connection, "pair")
    after = [statistics(shared, model) for model in ("pair", "b")]
    for old, new in zip(before, after, strict=True):
        assert new["inference_count"] - old["inference_count"] == PROCESSES
        assert new["inference_stats"]["success"]["count"] - old["inference_stats"]["success"]["count"] == PROCESSES
        assert new["inference_stats"]["compute_infer"]["ns"] > old["inference_stats"]["compute_infer"]["ns"]
        assert new["last_inference"] >= old["last_inference"]


def test_the_error_of_a_step_is_that_of_the_ensemble_in_each_process(shared: ServerProcess) -> None:
    before = statistics(shared, "failing")["inference_stats"]["fail"]["count"]
    with connection_of_each(shared) as connections:
        answers = {ask(connection, "failing") for connection in connections.values()}
    assert all("ValueError: no such thing" in answer for answer in answers), answers
    assert statistics(shared, "failing")["inference_stats"]["fail"]["count"] == before + PROCESSES


def test_a_request_that_does_not_fit_is_refused_as_by_one_process(shared: ServerProcess) -> None:
    with connection_of_each(shared) as connections:
        answers = {ask(connection, "pair", outputs=[{"name": "Z"}]) for connection in connections.values()}
    assert answers == {"unexpected inference output 'Z' for model 'pair'"}


def begin_waiting(models: Path, connection: HTTPConnection) -> Future[list[int] | str]:
    """Send a request whose first step waits for `go`."""
    answer = in_thread(ask, connection, "waiting")
    until((models.parent / "begun").exists, "the step to begin")
    return answer


def state_of(server: ServerProcess, model: str) -> str:
    index = server.post("/v2/repository/index", {}).json()
    return next(str(each["state"]) for each in index if each["name"] == model)


def other_than(server: ServerProcess, connections: dict[int, HTTPConnection]) -> tuple[int, HTTPConnection]:
    return next((pid, connection) for pid, connection in connections.items() if pid != server.pid)


def test_an_unload_waits_for_requests_of_all_processes_and_none_takes_another_one(models: Path) -> None:
    with server_of(models) as server, connection_of_each(server) as connections:
        pid, connection = other_than(server, connections)
        answer = begin_waiting(models, connection)
        assert server.post("/v2/repository/models/waiting/unload", {"parameters": {}}).status == 200
        refusal = "Request for unknown model: 'waiting' has no available versions"
        idle = [each for number, each in connections.items() if number != pid]
        assert {str(ask(each, "waiting")) for each in idle} == {refusal}
        assert state_of(server, "waiting") == "UNLOADING"
        (models.parent / "go").touch()
        assert answer.result(60) == [1, pid, pid]
        assert {str(ask(each, "waiting")) for each in connections.values()} == {refusal}
        until(lambda: state_of(server, "waiting") == "UNAVAILABLE", "the end of the ensemble")
        assert server.post("/v2/repository/models/waiting/load", {}).status == 200
        for number, each in connections.items():
            assert ask(each, "waiting") == [1, number, number]


def test_requests_in_flight_end_before_the_server_does(models: Path) -> None:
    with server_of(models) as server, connection_of_each(server) as connections:
        pid, connection = other_than(server, connections)
        answer = begin_waiting(models, connection)
        os.kill(server.pid, signal.SIGTERM)
        server.wait_log("Waiting for in-flight requests to complete")
        (models.parent / "go").touch()
        assert answer.result(60) == [1, pid, pid]
        assert server.wait_exit(60) == 0


def test_the_process_after_one_that_was_killed_executes_ensembles_again(models: Path) -> None:
    with server_of(models) as server:
        with connection_of_each(server) as connections:
            for connection in connections.values():
                ask(connection, "pair")
            counted = statistics(server, "pair")["inference_count"]
            pid, _ = other_than(server, connections)
        os.kill(pid, signal.SIGKILL)
        until(lambda: len({each.pid for each in serving(server)} - {pid}) == PROCESSES, "another process")

        def is_whole() -> bool:
            with connection_of_each(server) as connections:
                return all(ask(connection, "pair") == [1, number, number] for number, connection in connections.items())

        until(is_whole, "the ensemble in the new process")
        assert statistics(server, "pair")["inference_count"] > counted


@pytest.mark.parametrize("model", ["asking", "outer"])
def test_an_ensemble_is_ready_if_the_guests_of_its_models_in_all_processes_say_so(
    shared: ServerProcess, shared_models: Path, model: str
) -> None:
    for pid in [each.pid for each in serving(shared)]:
        assert shared.get(f"/v2/models/{model}/ready").status == 200
        file = shared_models.parent / f"unready-{pid}"
        file.touch()
        assert shared.get(f"/v2/models/{model}/ready").status == 400
        file.unlink()
