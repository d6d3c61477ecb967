"""Clients that do not read as fast as a decoupled model sends: it is held back, and nothing is lost."""

from __future__ import annotations

import json
import socket
from pathlib import Path

from serving.repositories import repository
from support.server import ServerProcess
from support.waiting import until

RESPONSES, ELEMENTS = 400, 25_000  # 100 KB as binary


def stream(server: ServerProcess, responses: int) -> socket.socket:
    body = json.dumps({"IN": [responses, ELEMENTS]}).encode()
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    client.settimeout(20)
    client.connect(("127.0.0.1", server.http_port))
    client.sendall(
        b"POST /v2/models/floods/generate_stream HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%b"
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


def test_a_model_is_held_back_by_a_client_that_does_not_read_and_goes_on_with_it(tmp_path):
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


def test_a_model_that_is_held_back_hears_that_its_client_has_gone(tmp_path):
    models = repository(tmp_path / "models", ["floods"])
    progress = models / "floods" / "1" / "progress"
    with ServerProcess(models, work=tmp_path) as server:
        with stream(server, RESPONSES):
            settled(progress)
        until(lambda: progress.read_text() == "cancelled", "the model to notice")
