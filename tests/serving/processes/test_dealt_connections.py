"""Limits on the connections of a server with several processes."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.server import ServerProcess

REQUEST = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.mark.parametrize("flag", ["--max-connections=6", "--max-connections-per-address=6"])
def test_a_server_of_two_processes_accepts_as_many_connections_as_the_limit_says(tmp_path: Path, flag: str) -> None:
    (tmp_path / "models").mkdir()
    with ServerProcess(tmp_path / "models", "--processes=2", flag, work=tmp_path) as server:
        for _ in range(5):
            with ExitStack() as stack:
                answers = []
                for _ in range(8):
                    client = stack.enter_context(socket.create_connection(("127.0.0.1", server.http_port)))
                    client.sendall(REQUEST)
                    answers.append(client.recv(1000)[:12])
                shares = [
                    line for line in server.metrics().splitlines() if line.startswith("naiad_process_connections")
                ]
            assert answers == [b"HTTP/1.1 200"] * 6 + [b"HTTP/1.1 503"] * 2
            assert [share.rpartition(" ")[2] for share in shares] == ["3", "3"]
            server.wait_for(lambda: "\nnaiad_connections_open 0" in server.metrics(), "all connections to end")
