"""A server of three processes: what its clients see, and what becomes of a process that dies."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal

import numpy as np
import psutil
import pytest
from serving.frontends.killing import kill_under_load, others, reader_of, serving
from serving.repositories import infer, repository, values
from serving.written import document_of, write_model
from support.model_files import write_files
from support.server import HOST, ServerProcess, still_running
from support.waiting import until

COUNT = 3
CONNECTIONS = 45
"""The chance that the kernel gives none of them to one of three processes is one in 28 million."""
SIZES = (1, 256, 257, 5_000, 40_000, 700_000)
"""Elements of FP32: in messages; in the process's part of the segment; copied, and borrowed, from the guest's."""


@contextlib.contextmanager
def connections(server: ServerProcess, count: int = CONNECTIONS):
    with contextlib.ExitStack() as stack:
        made = [http.client.HTTPConnection(HOST, server.http_port, timeout=60) for _ in range(count)]
        for connection in made:
            stack.enter_context(contextlib.closing(connection))
            connection.connect()
        yield made


def ask(connection: http.client.HTTPConnection, method: str, path: str, body: bytes = b"", **headers: str):
    connection.request(method, path, body, headers)
    response = connection.getresponse()
    return response.status, response.read(), response.headers


def identity(connection: http.client.HTTPConnection, array: np.ndarray) -> bytes:
    """The tensor that the model `identity` returns, as bytes."""
    tensor = {"name": "IN", "datatype": "FP32", "shape": [array.size], "parameters": {"binary_data_size": array.nbytes}}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    status, body, headers = ask(
        connection,
        "POST",
        "/v2/models/identity/infer",
        head + array.tobytes(),
        **{"Inference-Header-Content-Length": str(len(head))},
    )
    assert status == 200, body
    return body[int(headers["Inference-Header-Content-Length"]) :]


@pytest.fixture(scope="module")
def server(work):
    models = repository(work / "models", ["identity", "repeats"])
    write_model(models, "code")
    options = (f"--processes={COUNT}", "--model-control-mode=explicit", "--load-model=*", "--ui=true")
    with ServerProcess(models, *options, work=work) as process:
        yield process


def test_connections_are_shared_by_the_processes(server):
    with connections(server) as made:
        for connection in made:
            assert ask(connection, "GET", "/v2/health/live")[0] == 200
        counts = [
            sum(each.status == psutil.CONN_ESTABLISHED for each in process.net_connections("tcp"))
            for process in serving(server)
        ]

    assert len(counts) == COUNT
    assert min(counts) > 0


def test_ps_and_top_show_which_process_is_which(server):
    found = {each.name(): [word for word in each.cmdline()[1:] if word] for each in others(server)}
    assert found == {f"process {number}": ["naiad-process", str(number)] for number in range(1, COUNT)}


@pytest.mark.parametrize("size", SIZES)
def test_tensors_of_every_size_arrive_and_come_back_whole(server, size):
    arrays = [np.random.default_rng(seed).random(size, np.float32) for seed in range(4)]
    with connections(server, 6) as made:
        for connection in made:
            for array in arrays:
                assert identity(connection, array) == array.tobytes()


def test_every_process_sees_a_model_unloaded_and_loaded_at_once(server):
    with connections(server) as made:
        for connection in made:
            assert ask(connection, "POST", "/v2/models/code/infer", b'{"inputs": []}')[0] == 400
            assert ask(connection, "GET", "/v2/models/code")[0] == 200
        assert server.post("/v2/repository/models/code/unload").status == 200
        assert {ask(connection, "GET", "/v2/models/code/ready")[0] for connection in made} == {400}
        assert {ask(connection, "GET", "/v2/models/code")[0] for connection in made} == {404}
        assert server.post("/v2/repository/models/code/load").status == 200
        assert {ask(connection, "GET", "/v2/models/code/ready")[0] for connection in made} == {200}
        assert {ask(connection, "GET", "/v2/models/code")[0] for connection in made} == {200}


def test_errors_of_several_processes_are_those_of_a_single_one(server):
    unknown = server.post("/v2/models/nothing/infer", {"inputs": []})
    missing = server.post("/v2/models/identity/infer", {"inputs": [], "id": "7"})

    assert (unknown.status, unknown.error) == (404, "Request for unknown model: 'nothing' is not found")
    assert missing.status == 400
    assert missing.error.startswith("[request id: 7] expected 1 inputs but got 0 inputs for model 'identity'")


def test_statistics_count_the_requests_of_all_processes(server):
    def count() -> int:
        return server.get("/v2/models/identity/stats").json()["model_stats"][0]["inference_count"]

    before = count()
    with connections(server) as made:
        for connection in made:
            identity(connection, np.ones(3, np.float32))

    assert count() == before + CONNECTIONS


def test_the_page_is_served_by_each_process_from_the_coordinators_state(server):
    with connections(server) as made:
        for connection in made:
            status, body, headers = ask(connection, "GET", "/ui")
            assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
            status, body, _ = ask(connection, "GET", "/ui/data/state")
            assert status == 200
            document = json.loads(body)
            assert {model["name"] for model in document["models"]} == {"identity", "repeats", "code"}
            assert all(model["serving"] == model["instances"] > 0 for model in document["models"])
        processes = {each["role"]: each for each in document["processes"]}
        assert set(processes) == {f"process {number}" for number in range(COUNT)}
        assert {each["pid"] for each in processes.values()} == {each.pid for each in serving(server)}
        each = [processes[f"process {number}"]["connections"] for number in range(COUNT)]
        assert min(each) > 0
        assert sum(each) >= CONNECTIONS


def test_a_process_that_exits_closes_its_connections_and_affects_no_others(tmp_path):
    models = repository(tmp_path / "models", ["identity"])
    write_model(models, "code")
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with ServerProcess(models, f"--processes={COUNT}", work=tmp_path) as server, connections(server) as made:
        assert values(infer(server, "identity", 1.0)) == [1.0]
        victim = others(server)[0]
        body = json.dumps(document_of(f"open({str(fifo)!r}).read()"))
        made[0].request("POST", "/v2/models/code/infer", body)
        writing = until(lambda: reader_of(fifo), "the model to read")
        victim.send_signal(signal.SIGKILL)
        server.wait_for(
            lambda: len(serving(server)) == COUNT and victim.pid not in [each.pid for each in serving(server)],
            "another process",
        )
        writing.close()  # the model ends, whether or not its client is there
        closed = answered = 0
        for connection in made[1:]:
            try:
                assert identity(connection, np.full(9_000, 3, np.float32)) == np.full(9_000, 3, np.float32).tobytes()
                answered += 1
            except (ConnectionError, http.client.HTTPException):
                closed += 1
        assert answered > 0
        assert closed > 0
        assert f"(pid {victim.pid}) exited (signal 9); another one starts in 0.1 s" in server.log
        for _ in range(8):
            assert values(infer(server, "identity", 2.0)) == [2.0]


def test_a_port_of_another_server_is_not_shared(server, tmp_path):
    other = ServerProcess(server._repositories, f"--processes={COUNT}", work=tmp_path, wait="")
    other.command = [
        each.replace(f"={other.http_port}", f"={server.http_port}") if each.startswith("--http-port") else each
        for each in other.command
    ]
    with other:
        assert other.wait_exit() == 1
        assert re.search(
            rf"cannot serve HTTP at {HOST}:{server.http_port}: Address already in use by process \d+ \(.*\); set another "
            "address or port with --http-address or --http-port",
            other.log,
        )
        assert "loading: " not in other.log  # before models are loaded, which may take minutes


def test_settings_of_the_log_hold_in_every_process(server):
    with connections(server) as made:
        for level, connection in enumerate(made, 1):
            body = json.dumps({"log_verbose_level": level}).encode()
            assert ask(connection, "POST", "/v2/logging", body)[0] == 200
            shown = {json.loads(ask(other, "GET", "/v2/logging")[1])["log_verbose_level"] for other in made}
            assert shown == {level}
        assert ask(made[0], "POST", "/v2/logging", b'{"log_verbose_level": 0}')[0] == 200


def test_no_process_outlives_the_coordinator(tmp_path):
    server = ServerProcess(repository(tmp_path / "models", ["identity"]), f"--processes={COUNT}", work=tmp_path)
    with server:
        assert values(infer(server, "identity", 1.0)) == [1.0]
        below = psutil.Process(server.pid).children(recursive=True)
        assert len(below) > COUNT
        os.kill(server.pid, signal.SIGKILL)
        assert still_running(below, 30) == []
        server.wait_exit()


def test_processes_start_while_models_load_and_end_with_a_server_that_is_stopped_meanwhile(tmp_path):
    models = tmp_path / "models"
    write_files(models, "slow", 'backend: "python"\n', "def initialize(self, args): time.sleep(60)")
    with ServerProcess(
        models, f"--processes={COUNT}", "--disable-auto-complete-config", work=tmp_path, wait=""
    ) as server:

        def started() -> list[psutil.Process]:
            children = psutil.Process(server.pid).children()
            return [each for each in children if "naiad-process" in each.cmdline()]

        server.wait_for(lambda: len(started()) == COUNT - 1, "the other processes to start")
        found = started()
        server.stop()
        assert [each for each in found if each.is_running() and each.status() != psutil.STATUS_ZOMBIE] == []


@pytest.mark.endurance
def test_processes_killed_under_load_lose_connections_only(tmp_path):
    """`NAIAD_KILL_SECONDS=300 pytest -k killed_under_load --timeout=400` runs it for five minutes."""
    seconds = float(os.environ.get("NAIAD_KILL_SECONDS", "4"))
    with ServerProcess(repository(tmp_path / "models", ["identity"]), f"--processes={COUNT}", work=tmp_path) as server:
        coordinator = psutil.Process(server.pid)
        infer(server, "identity", 1.0)
        descriptors = coordinator.num_fds()
        outcomes, kills = kill_under_load(server, seconds, COUNT)
        assert kills > 0
        assert outcomes["answered"] > 0
        assert set(outcomes) <= {"answered", "closed"}
        # A connection ends once, and a client can lose one to the backlog of a process beside it.
        server.wait_for(
            lambda: coordinator.num_fds() <= descriptors, "the coordinator to close what it had of dead processes"
        )
        server.wait_for(lambda: shared_memory(coordinator) < 64 << 20, "the memory of dead processes to be freed")
        print(f"{kills} kills: {dict(outcomes)}")


def shared_memory(process: psutil.Process) -> int:
    """Bytes of the anonymous segments that the other processes write to."""
    found = 0
    for region in process.memory_maps(grouped=False):
        if "-links" in region.path:
            found += region.rss
    return found
