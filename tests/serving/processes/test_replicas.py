"""Models whose instances are in several processes of the server: what clients and models see of it."""

from __future__ import annotations

import http.client
import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import numpy as np
import psutil
import pytest
import tritonclient.grpc
from serving.written import evaluate, evaluate_over, write_model
from support.client_inputs import input_of
from support.server import HOST, ServerProcess
from support.threads import in_thread
from support.waiting import until

PROCESSES = 3
CONNECTIONS = 45
INSTANCES = 4
GROUP = f"instance_group [{{ count: {INSTANCES} kind: KIND_CPU }}]\n"
PARENT = "__import__('os').getppid()"
PID = "__import__('os').getpid()"


@pytest.fixture(scope="module")
def models(work: Path) -> Path:
    return work / "models"


@pytest.fixture(scope="module")
def server(models: Path) -> Iterator[ServerProcess]:
    folder = models.parent
    write_model(models, "spread", config=GROUP)
    write_model(models, "single")
    options = (f"--processes={PROCESSES}", "--model-control-mode=explicit", "--load-model=*")
    with ServerProcess(models, *options, work=folder) as process:
        yield process


def ask(connection: http.client.HTTPConnection, code: str, model: str = "spread") -> str:
    return evaluate_over(connection, model, code)


def connections(stack: ExitStack, server: ServerProcess, count: int = CONNECTIONS) -> list[http.client.HTTPConnection]:
    made = [http.client.HTTPConnection(HOST, server.http_port, timeout=60) for _ in range(count)]
    return [stack.enter_context(closing(connection)) for connection in made]


def statistics(server: ServerProcess, model: str) -> dict[str, int]:
    (found,) = server.get(f"/v2/models/{model}/stats").json()["model_stats"]
    return {
        "inferences": found["inference_count"],
        "executions": found["execution_count"],
        "successes": found["inference_stats"]["success"]["count"],
        "failures": found["inference_stats"]["fail"]["count"],
    }


def make_slow(server: ServerProcess) -> None:
    """Have all processes know that requests take long: short ones wait where they are."""
    with ExitStack() as stack:
        made = connections(stack, server)
        for _ in range(6):
            for connection in made:
                ask(connection, "time.sleep(0.003)")
    statistics(server, "spread")


def guests(server: ServerProcess, name: str) -> list[psutil.Process]:
    """The guests of a model's instances."""
    found = []
    for each in server.children():
        with suppress(psutil.Error):  # it has exited since
            if any(word.startswith(f"{name}_0_") for word in each.cmdline()):
                found.append(each)
    return found


def test_instances_run_in_all_processes_of_the_server(server: ServerProcess) -> None:
    parents = Counter(each.ppid() for each in guests(server, "spread"))

    assert set(parents) == {each.pid for each in server.serving()}
    assert sum(parents.values()) == INSTANCES


def test_a_single_client_is_answered_by_the_process_that_it_is_connected_to(server: ServerProcess) -> None:
    with ExitStack() as stack:
        for connection in connections(stack, server):
            assert len({ask(connection, PID) for _ in range(20)}) == 1

        parents = {ask(connection, PARENT) for connection in connections(stack, server)}
    assert parents == {str(each.pid) for each in server.serving()}


def test_requests_on_one_connection_use_the_instances_of_all_processes(server: ServerProcess) -> None:
    """Each waits until all of them are being executed: they end only if no instance idles."""
    folder = server.work / "met"
    folder.mkdir()
    make_slow(server)
    code = (
        f"open('{folder}/' + str({PID}), 'w').close(); deadline = time.monotonic() + 30\n"
        f"while len(os.listdir('{folder}')) < {INSTANCES} and time.monotonic() < deadline: time.sleep(0.001)"
    )
    with tritonclient.grpc.InferenceServerClient(f"{HOST}:{server.grpc_port}") as client:
        value = input_of(tritonclient.grpc, "CODE", np.array([code.encode()], object))
        calls = [
            client.async_infer("spread", [value], lambda result, error: None, client_timeout=60)
            for _ in range(INSTANCES)
        ]
        until(lambda: len(list(folder.iterdir())) == INSTANCES, "all instances at work")
        del calls


def test_metrics_have_the_counts_and_the_guests_of_all_processes(server: ServerProcess) -> None:
    evaluate(server, "spread", "1")
    text = server.metrics()
    successes = statistics(server, "spread")["successes"]

    assert f'nv_inference_request_success{{model="spread",version="1"}} {successes}' in text
    assert f'naiad_guests_alive{{model="spread",version="1"}} {INSTANCES}' in text


def test_models_in_any_process_can_ask_for_statistics_and_control_models(server: ServerProcess) -> None:
    with ExitStack() as stack:
        for connection in connections(stack, server, 12):
            assert ask(connection, "pb_utils.is_model_ready('single')") == "True"
            assert ask(connection, "pb_utils.load_model('single')") == "None"


def test_a_load_ends_when_all_processes_serve_the_new_version(server: ServerProcess, models: Path) -> None:
    for number in range(3):
        write_model(models, "changing", f"def execute(self, requests):\n    number = {number}\n" + ANSWER, config=GROUP)
        assert server.post("/v2/repository/models/changing/load").status == 200
        with ExitStack() as stack:
            assert {ask(each, "", "changing") for each in connections(stack, server)} == {str(number)}
    assert server.post("/v2/repository/models/changing/unload").status == 200
    until(lambda: not guests(server, "changing"), "no guest of a model that was unloaded")
    with ExitStack() as stack:
        for connection in connections(stack, server, 8):
            connection.request("POST", "/v2/models/changing/infer", b"{}")
            response = connection.getresponse()
            assert (response.status, json.loads(response.read())["error"]) == (
                404,
                "Request for unknown model: 'changing' has no available versions",
            )


ANSWER = """\
    return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([str(number).encode()], object))])
            for _ in requests]
"""


def test_guests_of_other_processes_ignore_the_same_signals_as_others(server: ServerProcess) -> None:
    code = "[line for line in open('/proc/self/status') if line.startswith('SigIgn')][0]"
    with ExitStack() as stack:
        found = {ask(each, code) for each in connections(stack, server)}
        found |= {evaluate(server, "single", code)}

    assert len(found) == 1


def test_a_killed_process_is_replaced_with_its_instances_and_its_counts_stay(server: ServerProcess) -> None:
    with ExitStack() as stack:
        for connection in connections(stack, server):
            ask(connection, "1")
    before = statistics(server, "spread")
    victim = server.others()[0]
    os.kill(victim.pid, signal.SIGKILL)
    with ExitStack() as stack:  # siblings serve on; the kernel may still give connections to the one that exits
        answered = 0
        while answered < 5:
            try:
                answered += ask(connections(stack, server, 1)[0], "1") == "1"
            except (ConnectionError, http.client.HTTPException):
                continue
    assert statistics(server, "spread")["successes"] >= before["successes"] + 5
    until(lambda: len(guests(server, "spread")) == INSTANCES, "all instances again")
    alive = f'naiad_guests_alive{{model="spread",version="1"}} {INSTANCES}'
    until(lambda: alive in server.metrics(), "the coordinator to know of them")
    parents = {each.ppid() for each in guests(server, "spread")}
    assert parents == {each.pid for each in server.serving()}
    assert victim.pid not in parents
    assert 'reason="process exit"' in server.metrics()


def test_requests_of_threads_get_their_own_answers(server: ServerProcess) -> None:
    def run(seed: int) -> None:
        with ExitStack() as stack:
            (connection,) = connections(stack, server, 1)
            for number in range(seed * 1000, seed * 1000 + 50):
                assert ask(connection, f"time.sleep(0.001) or {number}") == str(number)

    for client in [in_thread(run, seed) for seed in range(12)]:
        client.result(120)
