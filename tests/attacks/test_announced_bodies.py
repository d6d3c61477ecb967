"""Clients that announce much and send nothing: the server allocates nothing, and answers what it can without a body."""

from __future__ import annotations

import contextlib
import struct

import pytest
from attacks.clients import connected, read_to_end, send_until_refused
from attacks.floods import request_fields
from attacks.watching import harmless
from frontends.http2.peer import Peer
from support.server import ServerProcess

GIB = 1 << 30
_LITTLE = 48 << 20
"""What a server's memory may grow by without a reason: caches, and what the allocator keeps."""


def head(path: str, size: int, *headers: str) -> bytes:
    return "\r\n".join(
        [f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Length: {size}", *headers, "", ""]
    ).encode()


INFER = "/v2/models/bytes/infer"
BINARY = "Inference-Header-Content-Length: 100"


def answer(connection) -> bytes:
    """Status and text of the response before the server closes."""
    received = read_to_end(connection)
    return received.partition(b"\r\n")[0] + b" " + received.rpartition(b"\r\n\r\n")[2]


@pytest.mark.parametrize(
    ("path", "headers", "expected"),
    [
        ("/v2/nothing", (), b'HTTP/1.1 404 Not Found {"error":"Not Found"}'),
        ("/v2/nothing", ("Expect: 100-continue",), b'HTTP/1.1 404 Not Found {"error":"Not Found"}'),
        ("/v2/health/live", (), b'HTTP/1.1 405 Method Not Allowed {"error":"Method Not Allowed"}'),
        (
            "/v2/models/nobody/infer",
            (),
            b'HTTP/1.1 404 Not Found {"error":"Request for unknown model: \'nobody\' is not found"}',
        ),
    ],
)
def test_body_for_a_request_that_cannot_succeed_is_not_read(server: ServerProcess, path, headers, expected) -> None:
    with harmless(server, _LITTLE), connected(server.http_port) as connection:
        connection.sendall(head(path, GIB, *headers) + b"x" * 300_000)
        assert answer(connection) == expected


@pytest.mark.parametrize("headers", [(), (BINARY,), ("Expect: 100-continue",)])
def test_announced_bodies_allocate_nothing(server: ServerProcess, headers) -> None:
    with harmless(server, _LITTLE), contextlib.ExitStack() as stack:
        for _ in range(8):
            connection = stack.enter_context(connected(server.http_port))
            connection.sendall(head(INFER, 8 * GIB, *headers) + b"x")
        for _ in range(20):
            assert server.get("/v2/health/live").status == 200


def test_chunks_of_two_bytes_are_joined_as_they_arrive(server: ServerProcess) -> None:
    chunks = b"2\r\nab\r\n" * 20_000
    with harmless(server, _LITTLE), connected(server.http_port) as connection:
        connection.sendall(f"POST {INFER} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        assert send_until_refused(connection, [chunks] * 100)


def test_announced_messages_allocate_little(server: ServerProcess) -> None:
    beginning = struct.pack(">BL", 0, 2**30) + b"x"
    with harmless(server, _LITTLE):
        peer = Peer(server.grpc_port)
        for stream in range(1, 601, 2):
            peer.request(stream, fields=request_fields("ModelInfer"))
            peer.data(stream, beginning)
        assert peer.is_alive()
        peer.close()
