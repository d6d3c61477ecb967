"""Calls between models whose instances are in several processes of the server: which instance executes them."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from serving.processes.callers import PARENT, ask, rings, run_together, write_runner
from serving.processes.reaching import connection_of_each
from serving.written import evaluate
from support.server import ServerProcess
from support.threads import in_thread
from support.waiting import until

TWO = "instance_group [{ count: 2 kind: KIND_CPU }]\n"
"""One instance in each process."""
LONG = 600_000
"""Bytes of a tensor that takes a bridge."""


IN_COORDINATOR = 'parameters { key: "ONE_PROCESS" value { string_value: "true" } }\n'


@pytest.fixture(scope="module")
def models(work: Path) -> Path:
    return work / "models"


@pytest.fixture(scope="module")
def server(models: Path) -> Iterator[ServerProcess]:
    for name in ("a", "b", "c"):
        write_runner(models, name, TWO)
    write_runner(models, "single", IN_COORDINATOR)
    options = ("--processes=2", "--model-control-mode=explicit", "--load-model=*", "--ui=true")
    with ServerProcess(models, *options, work=models.parent) as process:
        yield process


@pytest.fixture(scope="module")
def other(server: ServerProcess) -> Iterator[http.client.HTTPConnection]:
    """A connection to the process beside the coordinator."""
    with connection_of_each(server) as connections:
        yield connections[server.others()[0].pid]


@pytest.fixture
def met(tmp_path: Path) -> Path:
    folder = tmp_path / "met"
    folder.mkdir()
    return folder


def know_route(connection: http.client.HTTPConnection, server: ServerProcess, model: str) -> None:
    """Have the other process know where calls of *model* go: the first one goes to the coordinator."""
    own = str(server.others()[0].pid)
    caller = "b" if model == "a" else "a"
    until(lambda: ask(connection, f"call({model!r}, {PARENT!r})", caller) == own, "a call within the process")


def guests_of(server: ServerProcess, name: str, parent: int) -> list[int]:
    """The guest of a model in a process; none while it is being restarted."""
    found = []
    for each in server.children():
        with suppress(psutil.Error):  # it has exited since
            if each.ppid() == parent and any(word.startswith(f"{name}_0_") for word in each.cmdline()):
                found.append(each.pid)
    return found


def counts(server: ServerProcess, model: str) -> tuple[int, int]:
    """Successes and failures of a model."""
    (found,) = server.get(f"/v2/models/{model}/stats").json()["model_stats"]
    return found["inference_stats"]["success"]["count"], found["inference_stats"]["fail"]["count"]


def test_a_call_goes_to_an_idle_instance_in_the_process_of_its_caller(
    server: ServerProcess, other: http.client.HTTPConnection
) -> None:
    know_route(other, server, "b")
    own = str(server.others()[0].pid)

    assert [ask(other, f"call('b', {PARENT!r})") for _ in range(20)] == [own] * 20


def test_a_call_goes_to_another_process_where_that_of_its_caller_has_no_idle_instance(
    server: ServerProcess, other: http.client.HTTPConnection
) -> None:
    know_route(other, server, "b")
    there = str(server.pid)

    assert ask(other, f"call('a', {PARENT!r})") == there  # the caller has the only instance of its process
    assert ask(other, f"call('single', {PARENT!r})") == there
    nested = f"call('b', {PARENT!r})"
    assert ask(other, f"call('b', {nested!r})") == repr(there)


def test_calls_are_counted_once_whoever_executes_them(server: ServerProcess, other: http.client.HTTPConnection) -> None:
    know_route(other, server, "c")

    def made() -> int:
        edges = server.get("/ui/data/graph").json()["edges"]
        return sum(each["count"] for each in edges if (each["kind"], each["from"], each["to"]) == ("call", "a", "c"))

    successes, failures = counts(server, "c")
    # What is counted is reported when statistics are asked for.
    before = made()
    for _ in range(5):
        ask(other, "call('c', '1')")
        evaluate(server, "single", "call('c', '1')")
    assert counts(server, "c") == (successes + 10, failures)
    assert made() == before + 5


def test_long_tensors_of_calls_within_a_process_go_through_bridges(
    server: ServerProcess, other: http.client.HTTPConnection
) -> None:
    know_route(other, server, "b")
    process = server.others()[0].pid
    text = f"'x' * {LONG}"
    expected = [LONG + 2] * 6

    assert ask(other, f"[len(call('b', {text!r})) for _ in range(6)]") == expected
    (there,) = guests_of(server, "b", process)
    assert "bridge" in Path(f"/proc/{there}/maps").read_text()
    assert ask(other, f"[len(call('b', '1 #' + {text})) for _ in range(6)]") == [1] * 6


def test_calls_go_on_while_the_called_model_is_loaded_again(
    server: ServerProcess, other: http.client.HTTPConnection, models: Path
) -> None:
    write_runner(models, "again", TWO)
    assert server.post("/v2/repository/models/again/load").status == 200
    stop = threading.Event()

    def run() -> int:
        count = 0
        while not stop.is_set():
            assert ask(other, "[call('again', '7') for _ in range(20)]") == ["7"] * 20
            count += 1
        return count

    answered = in_thread(run)
    try:
        for number in range(3):
            write_runner(models, "again", TWO + f'parameters {{ key: "n" value {{ string_value: "{number}" }} }}\n')
            assert server.post("/v2/repository/models/again/load").status == 200
    finally:
        stop.set()
    assert answered.result(60)


# -- deadlocks ----------------------------------------------------------------------------------------------------


def test_a_cycle_through_a_call_within_a_process_is_found(
    server: ServerProcess, other: http.client.HTTPConnection, met: Path
) -> None:
    """Both instances of `a` call `b`, each in its process, and both instances of `b` call `a`: all of them are blocked."""
    know_route(other, server, "b")
    with connection_of_each(server) as connections:
        parts = {}
        for name, connection in (("here", connections[server.pid]), ("there", other)):
            inner = f"meet({str(met)!r}, {name!r}, 2) or call('a', '1')"
            parts[name] = (connection, "a", f"call('b', {inner!r})")
        found = run_together(parts)
    refused = rings(found)
    assert len(refused) == 1, found  # the other call is answered by the instance that the error has freed
    assert refused[0] <= {"a_0_0", "a_0_1", "b_0_0", "b_0_1"}
    assert sorted(ask(other, "1", model) for model in "ab") == [1, 1]
