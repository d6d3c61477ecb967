"""A change of `instance_group` alone, of a model whose instances are in several processes of the server."""

from __future__ import annotations

import http.client
import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import psutil
import pytest
from serving.processes.reaching import connection_of_each
from serving.written import CONFIG, RUNS_CODE, evaluate, write_model
from support.server import HOST, ServerProcess
from support.waiting import until

PROCESSES = 3
MODEL = """
def initialize(self, args):
    name, folder = args["model_instance_name"], os.path.dirname(os.path.dirname(args["model_repository"]))
    open(os.path.join(folder, "begun_" + name), "w").close()
    while os.path.exists(os.path.join(folder, "hold_" + name)): time.sleep(0.01)
    if os.path.exists(os.path.join(folder, "refuse_" + name)): raise RuntimeError(f"no {name}")

"""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    work = tmp_path_factory.mktemp("changed")
    (work / "models").mkdir()
    options = (f"--processes={PROCESSES}", "--model-control-mode=explicit")
    with ServerProcess(work / "models", *options, work=work) as running:
        yield running


@pytest.fixture
def server(shared: ServerProcess) -> Iterator[ServerProcess]:
    """A server in which a model `m` may be loaded; unloaded afterwards."""
    shared.begin_log()
    yield shared
    for path in shared.work.glob("*_m_0_*"):
        path.unlink(missing_ok=True)
    assert shared.post("/v2/repository/models/m/unload").status == 200
    until(lambda: not shared.children(), "all guests to end")


def groups(count: int) -> str:
    return f"instance_group [{{ count: {count} kind: KIND_CPU }}]\n"


def load(server: ServerProcess, count: int) -> str:
    """Have the model serve with that many instances; the error, if it cannot."""
    folder = server.work / "models" / "m"
    if folder.exists():
        (folder / "config.pbtxt").write_text(CONFIG + groups(count))
    else:
        write_model(server.work / "models", "m", MODEL + RUNS_CODE, config=groups(count))
    reply = server.post("/v2/repository/models/m/load")
    return "" if reply.status == 200 else str(reply.error)


def instances(server: ServerProcess) -> dict[str, tuple[int, int]]:
    """The process of the server and the guest of each instance."""
    found = {}
    for each in server.children():
        with suppress(psutil.Error):  # it has exited since
            names = [word for word in each.cmdline() if word.startswith("m_0_")]
            found.update({name: (each.ppid(), each.pid) for name in names})
    return found


def processes(server: ServerProcess) -> list[int]:
    """The processes by their numbers."""
    return [server.pid, *(each.pid for each in sorted(server.others(), key=lambda each: each.name()))]


def successes(server: ServerProcess) -> int:
    (found,) = server.get("/v2/models/m/stats").json()["model_stats"]
    return int(found["inference_stats"]["success"]["count"])


def ask(connection: http.client.HTTPConnection, code: str) -> str:
    document = {"inputs": [{"name": "CODE", "datatype": "BYTES", "shape": [1], "data": [code]}]}
    connection.request("POST", "/v2/models/m/infer", json.dumps(document))
    response = connection.getresponse()
    body = response.read()
    assert response.status == 200, body
    return str(json.loads(body)["outputs"][0]["data"][0])


class Load:
    """Clients that send requests one after the other, until it is closed; each answer has to be its own."""

    def __init__(self, server: ServerProcess, clients: int = 6) -> None:
        self._server = server
        self._is_ended = threading.Event()
        self.answered = 0
        self.problems: list[object] = []
        self._threads = [threading.Thread(target=self._run, args=(seed,)) for seed in range(clients)]
        for thread in self._threads:
            thread.start()

    def _run(self, seed: int) -> None:
        with closing(http.client.HTTPConnection(HOST, self._server.http_port, timeout=60)) as connection:
            number = seed
            while not self._is_ended.is_set():
                number += 100
                try:
                    answer = ask(connection, f"time.sleep(0.002) or {number}")
                except (AssertionError, OSError, http.client.HTTPException) as error:
                    self.problems.append(error)
                    return
                if answer != str(number):
                    self.problems.append((number, answer))
                self.answered += 1

    def close(self) -> None:
        self._is_ended.set()
        for thread in self._threads:
            thread.join(60)


def test_instances_are_added_and_removed_in_all_processes_while_the_others_serve(server: ServerProcess) -> None:
    assert load(server, 2) == ""
    with closing(Load(server)) as clients:
        until(lambda: clients.answered > 20, "requests")
        counted, before = successes(server), instances(server)
        assert set(before) == {"m_0_0", "m_0_1"}
        for count in (5, 4, 1, 4):
            server.begin_log()
            assert load(server, count) == ""
            until(lambda count=count: len(instances(server)) == count, f"{count} instances")
            now, stay = instances(server), {f"m_0_{number}" for number in range(min(count, len(before)))}
            assert {name: now[name] for name in stay} == {name: before[name] for name in stay}
            parents = [parent for parent, _ in now.values()]
            assert sorted(parents.count(pid) for pid in processes(server)) == sorted(
                len(range(number, count, PROCESSES)) for number in range(PROCESSES)
            )
            assert server.get("/v2/models/m/config").json()["instance_group"][0]["count"] == count
            added, removed = sorted(set(now) - set(before)), sorted(set(before) - set(now))
            server.wait_log(
                f"instances of 'm' version 1: added: {', '.join(added) or 'none'}; "
                f"removed: {', '.join(removed) or 'none'}"
            )
            assert counted <= (counted := successes(server)), "statistics go backwards"
            before = now
            answered = clients.answered
            until(lambda answered=answered: clients.answered > answered + 20, "requests")
    assert clients.problems == []
    assert successes(server) == clients.answered
    assert "loading: m:1" in server.log


def test_the_only_instance_in_another_process_is_replaced_when_the_model_gets_more(server: ServerProcess) -> None:
    """The coordinator then has the first one, so it is loaded again; no request fails."""
    write_model(server.work / "models", "other")  # in the coordinator
    assert server.post("/v2/repository/models/other/load").status == 200
    assert load(server, 1) == ""
    assert server.post("/v2/repository/models/other/unload").status == 200
    ((parent, guest),) = instances(server).values()
    assert parent != server.pid
    with closing(Load(server)) as clients:
        assert load(server, PROCESSES) == ""
    assert clients.problems == []
    until(lambda: guest not in {each.pid for each in server.children()}, "the guest that was replaced to end")
    found = instances(server)
    assert (len(found), {parent for parent, _ in found.values()}) == (PROCESSES, set(processes(server)))


def test_a_model_that_is_back_at_one_instance_is_not_started_again_when_it_gets_more(server: ServerProcess) -> None:
    assert load(server, PROCESSES) == ""
    assert load(server, 1) == ""
    until(lambda: len(instances(server)) == 1, "the other instances to end")
    (only,) = instances(server).values()
    assert load(server, PROCESSES) == ""
    found = instances(server)
    assert found["m_0_0"] == only
    assert {parent for parent, _ in found.values()} == set(processes(server))
    with connection_of_each(server) as made:
        for pid, connection in made.items():
            assert ask(connection, "os.getppid()") == str(pid)


def test_what_cannot_be_started_in_one_process_leaves_all_as_they_were(server: ServerProcess) -> None:
    assert load(server, 2) == ""
    before = instances(server)
    (server.work / "refuse_m_0_4").touch()
    with closing(Load(server, 2)) as clients:
        assert "no m_0_4" in load(server, 6)
        until(lambda: instances(server) == before, "the instances that were added to end")
        assert server.get("/v2/models/m/config").json()["instance_group"][0]["count"] == 2
        (server.work / "refuse_m_0_4").unlink()
        assert load(server, 6) == ""
    assert clients.problems == []
    assert {name: instances(server)[name] for name in before} == before
    assert len(instances(server)) == 6


class Blocked:
    """A request that an instance executes until it is released."""

    def __init__(self, connection: http.client.HTTPConnection, folder: Path) -> None:
        self._begun, self._end = folder / "begun", folder / "end"
        code = (
            f"open({str(self._begun)!r}, 'w').close() or "
            f"[time.sleep(0.002) for _ in iter(lambda: os.path.exists({str(self._end)!r}), True)] and os.getppid()"
        )
        self.answers: list[str] = []
        self._thread = threading.Thread(target=lambda: self.answers.append(ask(connection, code)))
        self._thread.start()
        until(self._begun.exists, "the request to be executed")

    def release(self) -> str:
        self._end.touch()
        self._thread.join(60)
        (answer,) = self.answers
        return answer


def test_requests_of_a_process_that_loses_its_instances_end_before_these(server: ServerProcess, tmp_path: Path) -> None:
    assert load(server, 2) == ""
    with connection_of_each(server) as made:
        other = processes(server)[1]
        blocked = Blocked(made[other], tmp_path)
        (server.work / "models" / "m" / "config.pbtxt").write_text(CONFIG + groups(1))
        reply = server.post("/v2/repository/models/m/load")
        assert reply.headers["naiad-replaced-instances"] == "ending"
        assert evaluate(server, "m", "os.getppid()") == str(server.pid), "the model serves on"
        assert set(instances(server)) == {"m_0_0", "m_0_1"}
        assert blocked.release() == str(other)
        until(lambda: set(instances(server)) == {"m_0_0"}, "the removed instance to end")
        assert ask(made[other], "os.getppid()") == str(server.pid)
    assert successes(server) == 3


def test_a_process_that_exits_during_a_change_is_followed_by_one_with_the_new_instances(server: ServerProcess) -> None:
    """Process 1 has started its new instance when it is killed; that of process 2 begins to serve much later."""
    assert load(server, 3) == ""
    before, (_, first, second) = instances(server), processes(server)
    hold = server.work / "hold_m_0_5"
    hold.touch()
    with connection_of_each(server) as made:
        loading = Loading(made[server.pid], server, 6)
        check_change_with_exit(server, loading, hold, first)
    found = instances(server)
    for name in ("m_0_0", "m_0_2"):
        assert found[name] == before[name]
    third = processes(server)[1]
    assert {name for name, (parent, _) in found.items() if parent == third} == {"m_0_1", "m_0_4"}
    assert {name for name, (parent, _) in found.items() if parent == second} == {"m_0_2", "m_0_5"}
    until(lambda: server.get("/v2/models/m/ready").status == 200, "the model to be ready")
    with connection_of_each(server) as made:
        answers = {pid: {ask(each, "os.getppid()") for _ in range(4)} for pid, each in made.items()}
        assert answers == {pid: {str(pid)} for pid in processes(server)}


class Loading:
    """A load over a connection to the coordinator: it goes on when another process exits."""

    def __init__(self, connection: http.client.HTTPConnection, server: ServerProcess, count: int) -> None:
        (server.work / "models" / "m" / "config.pbtxt").write_text(CONFIG + groups(count))
        self.statuses: list[int] = []
        self._connection = connection
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        self._connection.request("POST", "/v2/repository/models/m/load")
        response = self._connection.getresponse()
        response.read()
        self.statuses.append(response.status)

    def end(self) -> list[int]:
        self._thread.join(60)
        return self.statuses


def check_change_with_exit(server: ServerProcess, loading: Loading, hold: Path, first: int) -> None:
    until(lambda: all((server.work / f"begun_m_0_{n}").exists() for n in (3, 4, 5)), "new instances to start")
    until(lambda: "'m_0_4' is ready" in server.log, "the instance to be ready")
    os.kill(first, signal.SIGKILL)
    until(lambda: len(processes(server)) == PROCESSES and processes(server)[1] != first, "another process")
    until(lambda: instances(server).get("m_0_1", (0, 0))[0] == processes(server)[1], "its instance as it was")
    assert loading.statuses == []
    hold.unlink()
    assert loading.end() == [200]
    until(lambda: len(instances(server)) == 6, "all instances")
