"""Requests that wait in a process behind one that takes unusually long move to a process that idles."""

from __future__ import annotations

import http.client
import json
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from serving.processes.reaching import connection_of_each
from serving.written import write_model
from support.server import ServerProcess
from support.waiting import until

PROCESSES = 3
GROUP = f"instance_group [{{ count: {PROCESSES} kind: KIND_CPU }}]\n"
DECOUPLED = "model_transaction_policy { decoupled: true }\n"
STREAMS = """
def execute(self, requests):
    for request in requests:
        what, number, folder = pb_utils.get_input_tensor_by_name(request, "CODE").as_numpy()[0].decode().split()
        sender = request.get_response_sender()
        if what == "hold":
            open(folder + "/begun" + number, "w").close()
            while not os.path.exists(folder + "/end"): time.sleep(0.002)
        for count in range(int(number) if what == "count" else 1):
            text = f"{os.getppid()} {count}".encode()
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([text], object))]))
            if request.is_cancelled():
                open(folder + "/cancelled", "w").close()
                break
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
PARENT = "os.getppid()"
USUAL = 30
"""After so many short requests, a process expects the next one to be short, and guests hold one request at a time."""

Connection = http.client.HTTPConnection


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server for one test alone: of a model that has executed many short requests, guests hold several at once."""
    work = tmp_path_factory.mktemp("moved")
    write_model(work / "models", "code", config=GROUP)
    write_model(work / "models", "streams", STREAMS, config=GROUP + DECOUPLED)
    with ServerProcess(work / "models", f"--processes={PROCESSES}", work=work) as process:
        yield process


def send(connection: Connection, code: str) -> None:
    """Send a request with its code as bytes after the document: long ones are read to where guests read them."""
    data = struct.pack("<I", len(code)) + code.encode()
    tensor = {"name": "CODE", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": len(data)}}
    head = json.dumps({"inputs": [tensor]}).encode()
    headers = {"Inference-Header-Content-Length": str(len(head))}
    connection.request("POST", "/v2/models/code/infer", head + data, headers)


def answer(connection: Connection) -> str:
    response = connection.getresponse()
    body = response.read()
    assert response.status == 200, body
    return str(json.loads(body)["outputs"][0]["data"][0])


def begin(connection: Connection, text: str) -> None:
    """Ask for a stream of responses."""
    connection.request("POST", "/v2/models/streams/generate_stream", json.dumps({"CODE": text}))


def events(connection: Connection) -> Iterator[tuple[int, int]]:
    """The process and the number of each response."""
    response = connection.getresponse()
    assert response.status == 200
    for line in response:
        if line.startswith(b"data: "):
            process, count = json.loads(line[6:])["OUT"].split()
            yield int(process), int(count)


def wait_briefly(path: Path) -> None:
    """Wait for a file without a pause: within 10 ms, the next request still takes the one before it for a usual one."""
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, path


def hold(connection: Connection, folder: Path) -> Callable[[], str]:
    """Send a request that ends when the returned function is called, in a process that expects a short one."""
    for _ in range(USUAL):
        send(connection, "1")
        assert answer(connection) == "1"
    begin_file = f"open('{folder}/begun', 'w').close()"
    ends = f"[time.sleep(0.002) for _ in iter(lambda: os.path.exists('{folder}/end'), True)]"
    send(connection, f"{begin_file} or {ends} and {PARENT}")
    wait_briefly(folder / "begun")

    def release() -> str:
        (folder / "end").touch()
        return answer(connection)

    return release


@pytest.mark.parametrize("size", [1, 3_000_000])
def test_a_request_behind_a_long_one_moves_to_a_process_that_idles(
    server: ServerProcess, tmp_path: Path, size: int
) -> None:
    with connection_of_each(server) as one, connection_of_each(server) as two:
        for pid in one:
            folder = tmp_path / str(pid)
            folder.mkdir()
            release = hold(one[pid], folder)
            send(two[pid], f"len('{'x' * size}') and {PARENT}")
            assert int(answer(two[pid])) in one.keys() - {pid}, "it did not wait for the long one"
            assert release() == str(pid)


def test_requests_behind_long_ones_move_until_all_processes_are_busy(server: ServerProcess, tmp_path: Path) -> None:
    with connection_of_each(server) as one, connection_of_each(server) as two, connection_of_each(server) as three:
        pid = server.others()[0].pid
        release = hold(one[pid], tmp_path)
        (other := tmp_path / "other").mkdir()
        names = [str(each) for each in one if each != pid]
        begun = f"open('{tmp_path}/' + str({PARENT}), 'w').close()"
        code = f"{begun} or [time.sleep(0.002) for _ in iter(lambda: os.path.exists('{other}/end'), True)] and {PARENT}"
        send(two[pid], code)
        send(three[pid], code)
        until(lambda: all((tmp_path / name).exists() for name in names), "both to be executed elsewhere")
        (other / "end").touch()
        assert sorted([answer(two[pid]), answer(three[pid])]) == sorted(names)
        assert release() == str(pid)


def hold_stream(connection: Connection, folder: Path) -> None:
    for _ in range(USUAL):
        begin(connection, f"count 1 {folder}")
        assert len(list(events(connection))) == 1
    begin(connection, f"hold 1 {folder}")
    wait_briefly(folder / "begun1")


def test_a_stream_that_has_moved_is_not_held_back_and_keeps_its_order(server: ServerProcess, tmp_path: Path) -> None:
    """A guest has to be told that responses were sent, before it sends so many of them."""
    count = 3_000
    with connection_of_each(server) as one, connection_of_each(server) as two:
        for number, pid in enumerate(one):
            folder = tmp_path / str(number)
            folder.mkdir()
            hold_stream(one[pid], folder)
            begin(two[pid], f"count {count} {folder}")
            found = list(events(two[pid]))
            assert [each for _, each in found] == list(range(count))
            assert {process for process, _ in found} < one.keys() - {pid}
            (folder / "end").touch()
            assert [process for process, _ in events(one[pid])] == [pid]


def test_a_stream_that_has_moved_is_cancelled_when_its_client_leaves(server: ServerProcess, tmp_path: Path) -> None:
    with connection_of_each(server) as one, connection_of_each(server) as two:
        for number, pid in enumerate(one):
            folder = tmp_path / str(number)
            folder.mkdir()
            hold_stream(one[pid], folder)
            begin(two[pid], f"count 100000000 {folder}")
            assert next(events(two[pid]))[0] != pid
            two[pid].close()
            until((folder / "cancelled").exists, "the model to learn of it")
            (folder / "end").touch()
            assert [process for process, _ in events(one[pid])] == [pid]
