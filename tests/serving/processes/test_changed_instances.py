"""A change of `instance_group` alone, of a model whose instances are in several processes of the server."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import psutil
import pytest
from serving.written import CONFIG, evaluate_over, write_model
from support.server import HOST, ServerProcess
from support.threads import in_thread
from support.waiting import until

PROCESSES = 3


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    (tmp_path / "models").mkdir()
    options = (f"--processes={PROCESSES}", "--model-control-mode=explicit")
    with ServerProcess(tmp_path / "models", *options, work=tmp_path) as running:
        yield running


def groups(count: int) -> str:
    return f"instance_group [{{ count: {count} kind: KIND_CPU }}]\n"


def load(server: ServerProcess, count: int) -> str:
    """Have the model serve with that many instances; the error, if it cannot."""
    folder = server.work / "models" / "m"
    if folder.exists():
        (folder / "config.pbtxt").write_text(CONFIG + groups(count))
    else:
        write_model(server.work / "models", "m", config=groups(count))
    reply = server.post("/v2/repository/models/m/load")
    return "" if reply.status == 200 else str(reply.error)


def guests(server: ServerProcess) -> list[tuple[str, int, int]]:
    """The instance, the process of the server and the guest of each; of a version that is being replaced, too."""
    found = []
    for each in server.children():
        with suppress(psutil.Error):  # it has exited since
            found += [(word, each.ppid(), each.pid) for word in each.cmdline() if word.startswith("m_0_")]
    return found


def instances(server: ServerProcess, count: int) -> dict[str, tuple[int, int]]:
    """The process of the server and the guest of each instance, once there are so many."""
    found = until(lambda: each if len(each := guests(server)) == count else None, f"{count} instances")
    return {name: (parent, guest) for name, parent, guest in found}


def processes(server: ServerProcess) -> list[int]:
    """The processes by their numbers."""
    return [server.pid, *(each.pid for each in sorted(server.others(), key=lambda each: each.name()))]


def ask(connection: http.client.HTTPConnection, code: str) -> str:
    return evaluate_over(connection, "m", code)


class Load:
    """Clients that send requests one after the other, until it is closed; each answer has to be its own."""

    def __init__(self, server: ServerProcess, clients: int = 6) -> None:
        self._server = server
        self._is_ended = threading.Event()
        self.answered = 0
        self.problems: list[object] = []
        self._clients = [in_thread(self._run, seed) for seed in range(clients)]

    def _run(self, seed: int) -> None:
        with closing(http.client.HTTPConnection(HOST, self._server.http_port, timeout=60)) as connection:
            number = seed
            while not self._is_ended.is_set():
                number += 100
                answer = ask(connection, f"time.sleep(0.002) or {number}")
                if answer != str(number):
                    self.problems.append((number, answer))
                self.answered += 1

    def close(self) -> None:
        self._is_ended.set()
        for client in self._clients:
            client.result(60)


def test_no_request_is_lost_while_the_count_of_a_model_changes(server: ServerProcess) -> None:
    """With fewer instances than processes all of them are in the coordinator, else some in each: it is loaded again."""
    assert load(server, 1) == ""
    before = instances(server, 1)
    with closing(Load(server)) as clients:
        until(lambda: clients.answered > 20, "requests")
        for count in (2, 3, 5, 1):
            server.begin_log()
            assert load(server, count) == ""
            now = instances(server, count)
            parents = [parent for parent, _ in now.values()]
            expected = [
                len(range(number, count, PROCESSES)) if count >= PROCESSES else (count if number == 0 else 0)
                for number in range(PROCESSES)
            ]
            assert parents.count(server.pid) == expected[0]
            assert sorted(map(parents.count, processes(server))) == sorted(expected)
            is_in_place = count == 2
            assert ("instances of 'm' version 1: added: m_0_1; removed: none" in server.log) == is_in_place
            assert (now["m_0_0"] == before["m_0_0"]) == is_in_place
            assert server.get("/v2/models/m/config").json()["instance_group"][0]["count"] == count
            answered, before = clients.answered, now
            until(lambda answered=answered: clients.answered > answered + 20, "requests")
    assert clients.problems == []
