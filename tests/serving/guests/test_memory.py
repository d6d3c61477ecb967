"""What requests leave in memory: nothing, in the host and in the guest."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
from pathlib import Path

import numpy as np
import psutil
import pytest
from serving.repositories import repository
from support.server import HOST, ServerProcess
from support.threads import in_thread

MIB = 1 << 20
PATH = "/v2/models/identity/infer"


def ask(connection: http.client.HTTPConnection, body: bytes) -> bytes:
    """The one tensor of an answer to one tensor, both as plain bytes."""
    connection.request("POST", PATH, body, {"Inference-Header-Content-Length": "0"})
    response = connection.getresponse()
    answer = response.read()
    assert response.status == 200, answer[:300]
    return answer[int(response.headers["Inference-Header-Content-Length"]) :]


def ask_into(connection: http.client.HTTPConnection, body: bytes, answer: memoryview) -> None:
    """As `ask`, but reads the tensor into *answer*: new memory for each of a thousand answers takes half of the time."""
    connection.request("POST", PATH, body, {"Inference-Header-Content-Length": "0"})
    response = connection.getresponse()
    assert response.status == 200
    response.read(int(response.headers["Inference-Header-Content-Length"]))
    received = 0
    while received < len(answer):
        count = response.readinto(answer[received:])
        assert count
        received += count
    assert not response.read()


def resident(server: ServerProcess) -> dict[str, float]:
    """MiB of host and guests: each process's own size, and what all of them take together.

    Together without files: how much of a library counts for a process depends on who else has loaded it by now, such
    as servers of tests that run at the same time.
    """
    processes = server.processes()
    sizes = {f"rss of {number}": process.memory_info().rss / MIB for number, process in enumerate(processes)}
    return {**sizes, "together": sum(map(own, processes)) / MIB}


def own(process: psutil.Process) -> int:
    """Bytes of its memory that no file is behind, with what it shares with others counted in parts."""
    text = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
    return sum(int(kilobytes) << 10 for kilobytes in re.findall(r"^Pss_(?:Anon|Shmem): +(\d+) kB$", text, re.MULTILINE))


def segments(server: ServerProcess) -> int:
    """Bytes behind the shared segments."""
    [guest] = server.children()
    return sum(entry.rss for entry in guest.memory_maps(grouped=False) if "memfd:naiad" in entry.path)


@pytest.fixture
def server(tmp_path):
    with ServerProcess(repository(tmp_path / "models", ["identity"]), work=tmp_path) as running:
        yield running


@pytest.mark.endurance
def test_thousand_requests_of_8_mb_leave_the_resident_size_where_it_was(server):
    body = np.arange(2 * MIB, dtype=np.float32).tobytes()
    assert len(body) == 8 * MIB
    answer = memoryview(bytearray(len(body)))
    with contextlib.closing(http.client.HTTPConnection(HOST, server.http_port)) as connection:
        for _ in range(50):
            assert ask(connection, body) == body
        before = resident(server)
        for _ in range(950):
            ask_into(connection, body, answer)
        after = resident(server)
    assert answer == body
    assert all(abs(after[name] - before[name]) < 4 for name in before), (before, after)


@pytest.mark.endurance
def test_connections_that_come_and_go_leave_nothing(server):
    """Many clients at once, each with a connection of its own, as load balancers make them."""
    body = bytes(MIB)

    def crowd() -> None:
        def work() -> None:
            for _ in range(20):
                with contextlib.closing(http.client.HTTPConnection(HOST, server.http_port)) as connection:
                    ask(connection, body)

        for worker in [in_thread(work) for _ in range(8)]:
            worker.result(60)

    crowd()
    before, descriptors = resident(server), psutil.Process(server.pid).num_fds()
    for _ in range(3):
        crowd()
    server.wait_for(lambda: psutil.Process(server.pid).num_fds() <= descriptors, "connections to be closed")
    after = resident(server)
    assert after["together"] - before["together"] < 16, (before, after)


def test_client_that_goes_away_amid_its_answer_gives_its_block_back(server):
    body = bytes(32 * MIB)
    for _ in range(4):
        connection = http.client.HTTPConnection(HOST, server.http_port)
        connection.request("POST", PATH, body, {"Inference-Header-Content-Length": "0"})
        assert connection.sock.recv(100).startswith(b"HTTP/1.1 200")
        connection.close()
    assert json.loads(server.get("/v2/models/identity/stats").body)["model_stats"][0]["inference_count"] == 4
    server.wait_for(lambda: segments(server) < MIB, "the segments to shrink")
