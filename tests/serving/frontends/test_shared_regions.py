"""Regions of clients' shared memory on a server of several processes."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import secrets
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import pytest
import tritonclient.utils.shared_memory as shm
from serving.frontends.killing import others
from serving.processes.reaching import connection_of_each
from serving.written import write_model
from support.server import ServerProcess
from support.waiting import until

WAITS = """
def execute(self, requests):
    responses = []
    for request in requests:
        data = pb_utils.get_input_tensor_by_name(request, "CODE").as_numpy()
        path = json.loads(request.parameters()).get("wait")
        if path:
            open(path + ".begun", "w").close()
            while not os.path.exists(path):
                time.sleep(0.005)
        responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", data)]))
    return responses
"""
TEXT = np.frombuffer(b"\x05\0\0\0hello", np.uint8)
SIZE = len(TEXT)


@pytest.fixture(scope="module")
def server(work) -> Iterator[ServerProcess]:
    file = write_model(work / "models", "waits", WAITS)
    file.write_text("import json\n" + file.read_text())
    with ServerProcess(work / "models", "--processes=3", "--allow-client-shm=true", work=work) as process:
        yield process


@pytest.fixture
def region():
    """A region of 8 KiB: its key and its handle; it begins with one string."""
    key = f"/naiad_test_{secrets.token_hex(6)}"
    handle = shm.create_shared_memory_region("r", key, 8192)
    shm.set_shared_memory_region(handle, [TEXT])
    yield key, handle
    shm.destroy_shared_memory_region(handle)


@pytest.fixture(params=[(0, 1), (1, 0), (1, 2)], ids=["coordinator first", "coordinator second", "without it"])
def pair(request) -> tuple[int, int]:
    """The numbers of two processes."""
    return request.param


@contextlib.contextmanager
def connections(server: ServerProcess) -> Iterator[list[http.client.HTTPConnection]]:
    """A connection to each of the three processes, the coordinator first."""
    with connection_of_each(server) as found:
        yield [found.pop(server.pid), *found.values()]


def ask(connection: http.client.HTTPConnection, method: str, path: str, document: object = None):
    connection.request(method, path, None if document is None else json.dumps(document).encode())
    response = connection.getresponse()
    body = response.read()
    return response.status, json.loads(body) if body else None


def register(connection: http.client.HTTPConnection, name: str, key: str):
    return ask(connection, "POST", f"/v2/systemsharedmemory/region/{name}/register", {"key": key, "byte_size": 8192})


def unregister(connection: http.client.HTTPConnection, name: str = ""):
    path = f"region/{name}/unregister" if name else "unregister"
    return ask(connection, "POST", f"/v2/systemsharedmemory/{path}")


def names(connection: http.client.HTTPConnection) -> list[str]:
    return [each["name"] for each in ask(connection, "GET", "/v2/systemsharedmemory/status")[1]]


def infer(connection: http.client.HTTPConnection, name: str, *, offset: int = 4096, wait: str = ""):
    """Have the model return the region's string, to an offset of the region."""
    there = {"shared_memory_region": name, "shared_memory_byte_size": SIZE}
    document = {
        "inputs": [{"name": "CODE", "datatype": "BYTES", "shape": [1], "parameters": there}],
        "outputs": [{"name": "OUT", "parameters": {**there, "shared_memory_offset": offset}}],
        "parameters": {"wait": wait} if wait else {},
    }
    return ask(connection, "POST", "/v2/models/waits/infer", document)


def contents(handle, offset: int) -> bytes:
    return shm.get_contents_as_numpy(handle, np.uint8, [SIZE], offset=offset).tobytes()


def test_a_region_that_a_process_uses_can_be_unregistered_through_none(server, pair, region, tmp_path):
    key, handle = region
    gate = tmp_path / "gate"
    with connections(server) as made, ThreadPoolExecutor(1) as pool:
        one, two = (made[number] for number in pair)
        assert register(two, "r", key)[0] == 200
        assert register(one, "free", key)[0] == 200
        pending = pool.submit(infer, one, "r", wait=str(gate))
        until(Path(f"{gate}.begun").exists, "the model to wait", 30)

        refusal = {"error": "Cannot unregister shared memory region 'r', it is currently in use."}
        assert unregister(two, "r") == (500, refusal)
        assert names(two) == ["free", "r"]
        assert unregister(two) == (
            500,
            {"error": "Failed to unregister the following system shared memory regions: r ,"},
        )
        assert names(two) == ["r"]
        with ThreadPoolExecutor(1) as other:  # the process that does not use it has it back
            again = other.submit(infer, two, "r", offset=2048)
            gate.touch()
            assert again.result(30)[0] == 200
        assert pending.result(30)[0] == 200
        assert unregister(two, "r") == (200, None)
        assert names(one) == names(two) == []
        missing = (404, {"error": "Unable to find shared memory region: 'r'"})
        assert infer(one, "r") == infer(two, "r") == missing
    assert contents(handle, 4096) == contents(handle, 2048) == TEXT.tobytes()


def test_registering_and_unregistering_by_many_at_once_leaves_nothing_behind(server, pair, region):
    """Requests that come while their region is unregistered are served or find no region; none is in between."""
    key, _ = region
    outcomes = set()
    with connections(server) as made, ThreadPoolExecutor(2) as pool:
        one, two = (made[number] for number in pair)

        def change(connection):
            for _ in range(60):
                outcomes.add(("register", register(connection, "r", key)[0]))
                outcomes.add(("unregister", unregister(connection, "r")[0]))

        changing = pool.submit(change, one)
        while not changing.done():
            status, document = infer(two, "r")
            outcomes.add(("infer", status))
            assert status == 200 or document == {"error": "Unable to find shared memory region: 'r'"}
        changing.result()
        assert unregister(one) == (200, None)
        assert names(one) == names(two) == []
    assert outcomes <= {
        ("register", 200),
        ("register", 400),
        ("unregister", 200),
        ("unregister", 500),
        ("infer", 200),
        ("infer", 404),
    }


def test_a_process_that_was_restarted_knows_the_regions(server, region):
    key, handle = region
    with connections(server) as (one, *_):
        assert register(one, "r", key)[0] == 200
    before = {process.pid for process in others(server)}
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    until(lambda: len({process.pid for process in others(server)} - before) == 2, "both to be restarted", 30)
    with connections(server) as made:
        for offset, connection in enumerate(made, start=1):
            assert infer(connection, "r", offset=1024 * offset) == (200, {**infer(connection, "r")[1]})
            assert contents(handle, 1024 * offset) == TEXT.tobytes()
        assert unregister(made[0]) == (200, None)


def test_a_process_that_is_stopped_may_use_any_region(server, region):
    """What it uses is not known, so nothing is unregistered; it goes on with what it had."""
    key, _ = region
    with connections(server) as (_, one, two):
        assert register(one, "r", key)[0] == 200
        [stopped] = [
            process
            for process in others(server)
            if any(each.raddr and each.raddr.port == two.sock.getsockname()[1] for each in process.net_connections())
        ]
        stopped.suspend()
        try:
            assert unregister(one, "r")[0] == 500
        finally:
            stopped.resume()
        assert infer(two, "r")[0] == infer(one, "r")[0] == 200
        assert unregister(one, "r") == (200, None)
        assert psutil.pid_exists(stopped.pid)
