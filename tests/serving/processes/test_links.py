"""Requests that a process whose instance is busy sends to another one: over the link between both."""

from __future__ import annotations

import http.client
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
from serving.frontends.killing import kill_under_load, others
from serving.processes.reaching import connection_of_each
from serving.repositories import repository
from serving.written import document_of, write_model
from support.server import ServerProcess
from support.threads import in_thread
from support.waiting import until

PROCESSES = 3
GROUP = f"instance_group [{{ count: {PROCESSES} kind: KIND_CPU }}]\n"
"""One instance in each process."""
PARENT = "__import__('os').getppid()"
SIZES = (1, 300, 5_000, 700_000, 3_000_000)
"""Elements of FP32: in messages; in shared memory and copied; borrowed; copied in slices."""


@pytest.fixture(scope="module")
def server(work: Path) -> Iterator[ServerProcess]:
    models = repository(work / "models", ["identity"], identity=GROUP)
    write_model(models, "code", config=GROUP)
    options = (f"--processes={PROCESSES}", "--model-control-mode=explicit", "--load-model=*")
    with ServerProcess(models, *options, work=work) as process:
        yield process


def numbered(server: ServerProcess) -> list[psutil.Process]:
    """The processes by their numbers."""
    return [psutil.Process(server.pid), *sorted(others(server), key=lambda each: each.name())]


def ask(connection: http.client.HTTPConnection, code: str) -> tuple[int, str]:
    connection.request("POST", "/v2/models/code/infer", json.dumps(document_of(code)))
    response = connection.getresponse()
    document = json.loads(response.read())
    if response.status != 200:
        return response.status, document["error"]
    return 200, document["outputs"][0]["data"][0]


STUCK_SECONDS = 0.01
"""See `_STUCK_NS` of `naiad.engine.serving.requests_in_flight`."""


class Busy:
    """A request that an instance executes until it is told to end."""

    def __init__(self, connection: http.client.HTTPConnection, folder: Path, name: str) -> None:
        self._begun, self._end = folder / f"{name}.begun", folder / f"{name}.end"
        code = (
            f"open('{self._begun}', 'w').write(str({PARENT}))\n"
            f"while not os.path.exists('{self._end}'): time.sleep(0.002)"
        )
        self._answer = in_thread(ask, connection, code)
        until(lambda: self._begun.exists() and self._begun.read_text(), "the instance to begin")
        # Before that, the next request takes it for one of those that end soon, and waits for its instance.
        until(lambda: time.time() - self._begun.stat().st_mtime > 10 * STUCK_SECONDS, "it to count as a long request")

    @property
    def process(self) -> int:
        """The id of the process that has the instance."""
        return int(self._begun.read_text())

    def end(self) -> tuple[int, str]:
        self._end.touch()
        return self._answer.result(60)


def test_a_request_goes_to_another_process_while_the_instance_here_is_busy(
    server: ServerProcess, tmp_path: Path
) -> None:
    pids = {each.pid for each in numbered(server)}
    with connection_of_each(server) as one, connection_of_each(server) as two:
        for here in pids:
            busy = Busy(one[here], tmp_path, f"busy {here}")
            assert busy.process == here
            status, there = ask(two[here], PARENT)
            assert (status, int(there) in pids - {here}) == (200, True)
            assert busy.end() == (200, "done")


@pytest.mark.parametrize("size", SIZES)
def test_tensors_of_every_size_pass_over_each_link(server: ServerProcess, size: int) -> None:
    array = np.random.default_rng(size).random(size, np.float32)
    tensor = {"name": "IN", "datatype": "FP32", "shape": [size], "parameters": {"binary_data_size": array.nbytes}}
    head = json.dumps({"id": "x", "inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    with connection_of_each(server) as made:
        for connection in [*made.values()] * 3:
            headers = {"Inference-Header-Content-Length": str(len(head))}
            connection.request("POST", "/v2/models/identity/infer", head + array.tobytes(), headers)
            response = connection.getresponse()
            body = response.read()
            assert response.status == 200, body[:200]
            end = int(response.headers["Inference-Header-Content-Length"])
            assert json.loads(body[:end])["id"] == "x"
            assert body[end:] == array.tobytes()


def test_statistics_and_process_counts_have_each_request_once(server: ServerProcess) -> None:
    def counts() -> tuple[int, float]:
        successes = server.get("/v2/models/code/stats").json()["model_stats"][0]["inference_stats"]["success"]["count"]
        lines = [each for each in server.metrics().splitlines() if each.startswith("naiad_process_requests_total{")]
        return successes, sum(float(each.rpartition(" ")[2]) for each in lines)

    before = counts()
    with connection_of_each(server) as made:
        for connection in [*made.values()] * 4:
            assert ask(connection, "1") == (200, "1")
    assert counts() == (before[0] + 4 * PROCESSES, before[1] + 4 * PROCESSES)


@pytest.mark.endurance
def test_processes_killed_under_load_lose_connections_and_requests_that_they_had_only(tmp_path: Path) -> None:
    """`NAIAD_KILL_SECONDS=300 pytest -k killed_under_load` runs it longer."""
    seconds = float(os.environ.get("NAIAD_KILL_SECONDS", "4"))
    models = repository(tmp_path / "models", ["identity"], identity=GROUP)
    with ServerProcess(models, f"--processes={PROCESSES}", work=tmp_path) as server:
        outcomes, kills = kill_under_load(server, seconds, PROCESSES)
        is_lost: Callable[[str], bool] = lambda each: "which had it, has exited; send it again" in each  # noqa: E731
        assert kills > 0
        assert outcomes["answered"] > 0
        assert {each for each in outcomes if not is_lost(each)} <= {"answered", "closed"}
        server.wait_health("ready")
        print(f"{kills} kills: {dict(outcomes)}")
