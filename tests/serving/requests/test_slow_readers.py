"""Clients that do not read as fast as a decoupled model sends: it is held back, and nothing is lost."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path

import numpy as np
import pytest
from serving.repositories import infer, repository, values
from support.server import ServerProcess
from support.waiting import until
from tritonclient.grpc import InferenceServerClient, InferInput

RESPONSES, ELEMENTS = 400, 25_000  # 100 KB as binary


def stream(server: ServerProcess, responses: int) -> socket.socket:
    body = json.dumps({"IN": [responses, ELEMENTS]}).encode()
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    client.settimeout(60)
    client.connect(("127.0.0.1", server.http_port))
    client.sendall(
        b"POST /v2/models/floods/generate_stream HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b"
        % (len(body), body)
    )
    return client


def settled(progress: Path) -> str:
    """What the model has written when it writes no more."""
    seen: list[str] = []

    def stands_still() -> bool:
        seen.append(progress.read_text() if progress.exists() else "")
        return len(seen) > 10 and bool(seen[-1]) and len(set(seen[-10:])) == 1

    until(stands_still, "the model to be held back")
    return seen[-1]


def test_a_model_is_held_back_until_its_client_reads_again(tmp_path):
    models = repository(tmp_path / "models", ["floods"])
    progress = models / "floods" / "1" / "progress"
    with ServerProcess(models, work=tmp_path) as server, stream(server, RESPONSES) as client:
        held_at = int(settled(progress))
        assert held_at < RESPONSES
        received = bytearray()
        while not received.endswith(b"0\r\n\r\n"):
            data = client.recv(1 << 20)
            assert data, "the stream was cut"
            received += data
        assert received.count(b"data: ") == RESPONSES
        until(lambda: progress.read_text() == "done", "the end of the model")


def test_a_model_that_is_held_back_learns_that_its_client_has_disconnected(tmp_path):
    models = repository(tmp_path / "models", ["floods"])
    progress = models / "floods" / "1" / "progress"
    with ServerProcess(models, work=tmp_path) as server:
        with stream(server, RESPONSES):
            settled(progress)
        until(lambda: progress.read_text() == "cancelled", "the model to notice")


def sizes(server: ServerProcess) -> dict[int, int]:
    """Bytes of host and guests that are theirs alone, with what they share counted in parts."""
    return {process.pid: process.memory_full_info().pss for process in server.processes()}


@pytest.mark.endurance
def test_a_gigabyte_for_a_client_that_does_not_read_takes_little_memory_and_delays_no_request(tmp_path):
    responses, elements = 2500, 100_000
    models = repository(tmp_path / "models", ["floods", "identity"])
    progress = models / "floods" / "1" / "progress"
    reading = threading.Event()
    received: list[float] = []

    def take(result, error):
        assert reading.wait(200)
        assert error is None, error
        if result.get_response().outputs:
            array = result.as_numpy("OUT")
            received.append(float(array[0]) if (array == array[0]).all() else -1)

    with ServerProcess(models, work=tmp_path) as server, InferenceServerClient(server.grpc_url) as client:
        before = sizes(server)
        client.start_stream(take)
        tensor = InferInput("IN", [2], "FP32")
        tensor.set_data_from_numpy(np.array([responses, elements], np.float32))
        client.async_stream_infer("floods", [tensor])
        held_at = int(settled(progress))
        grown = {pid: size - before[pid] for pid, size in sizes(server).items()}
        assert sum(grown.values()) < 120 << 20, grown
        assert held_at < responses / 4
        for _ in range(20):
            assert values(infer(server, "identity", 1, 2)) == [1, 2]
        reading.set()
        until(lambda: progress.read_text() == "done" and len(received) == responses, "all responses", 200)
        client.stop_stream()
    assert received == list(range(responses))
