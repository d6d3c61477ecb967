"""A client that reads its response slowly, on a real server."""

from __future__ import annotations

import http.client
from contextlib import closing

from conformance.running import MODELS
from support.server import ServerProcess

SIZE = 32 << 20  # more than the kernel keeps for a connection


def asked(server: ServerProcess, fill: bytes) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    """A connection whose response has begun."""
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=60)
    headers = {"Inference-Header-Content-Length": "0"}
    connection.request("POST", "/v2/models/identity_fp32/infer", fill * SIZE, headers)
    return connection, connection.getresponse()


def test_slow_reader_gets_its_own_answer_while_others_are_served(tmp_path):
    """The response is written from the guest's memory, which must not be freed before the last byte is sent."""
    repository = tmp_path / "repository"
    repository.mkdir()
    (repository / "identity_fp32").symlink_to(MODELS / "identity_fp32")
    with ServerProcess(repository, work=tmp_path) as server:
        connection, slow = asked(server, b"\x01")  # most of it does not fit into the socket's buffers
        with closing(connection):
            for fill in (b"\x02", b"\x03", b"\x04"):
                other, quick = asked(server, fill)
                with closing(other):
                    assert quick.read()[-SIZE:] == fill * SIZE
            assert slow.status == 200
            assert slow.read()[-SIZE:] == b"\x01" * SIZE
