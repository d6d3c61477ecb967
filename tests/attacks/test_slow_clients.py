"""Clients that hold connections open: with heads and bodies that never end, without reading, or too many of them."""

from __future__ import annotations

import contextlib
import json
import select
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from attacks.clients import connected, read_to_end
from attacks.conftest import warm_up
from attacks.watching import attacked_server, watched
from support.server import HOST, ServerProcess
from support.waiting import until

_FLAGS = (
    "--client-timeout=1",
    "--http-keepalive-timeout=1",
    "--processes=1",
)
_FEW = (
    "--max-connections=60",
    "--max-connections-per-address=40",
    "--processes=1",  # they share the limits in equal parts, and get connections in any parts
)


@pytest.fixture(scope="module")
def server(repository: Path, work: Path) -> Iterator[ServerProcess]:
    """A server with short time limits."""
    with attacked_server(repository, *_FLAGS, work=work) as started:
        warm_up(started)
        yield started


@pytest.fixture(scope="module")
def exclusive(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server for few connections, which stay open while a busy machine makes them: its time limits are long."""
    with attacked_server(repository, *_FEW, work=tmp_path_factory.mktemp("exclusive")) as started:
        warm_up(started)
        yield started


def timed_out(server: ServerProcess, limit: str) -> int:
    return metric(server, f'naiad_connections_timed_out_total{{limit="{limit}"}}')


def metric(server: ServerProcess, name: str) -> int:
    with contextlib.closing(socket.create_connection((HOST, server.metrics_port))) as connection:
        connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        for line in read_to_end(connection).decode().splitlines():
            if line.startswith(f"{name} "):
                return int(float(line.split()[-1]))
    raise AssertionError(f"no metric {name}")


def status_and_error(received: bytes) -> tuple[int, str]:
    head, _, body = received.partition(b"\r\n\r\n")
    assert b"\r\nConnection: close" in head
    return int(head.split()[1]), json.loads(body)["error"]


def drip(connection: socket.socket, part: bytes) -> bytes:
    """Send *part* again and again, slowly, until the server responds; its response."""
    for _ in range(1000):
        if select.select([connection], [], [], 0.05)[0]:
            return connection.recv(1 << 16)
        connection.sendall(part)
    raise AssertionError("the server waits for the end of a head that does not end")


def test_heads_that_do_not_end_are_answered_with_408(server: ServerProcess) -> None:
    """There were no time limits: such a connection was kept for ever."""
    before = timed_out(server, "header")
    with contextlib.ExitStack() as stack, watched(server) as seen:
        clients = [stack.enter_context(connected(server.http_port)) for _ in range(20)]
        for client in clients:
            client.sendall(b"POST /v2/models/identity/infer HTTP/1.1\r\nHost: localhost\r\n")
        for client in clients:
            assert status_and_error(drip(client, b"X-Slow: a\r\n")) == (
                408,
                "cannot read the request: its head was not complete within 1 s (--client-timeout)",
            )
    seen.assert_others_served()
    seen.assert_memory(16 << 20)
    assert timed_out(server, "header") - before == 20


def test_bodies_that_stall_are_answered_with_408(server: ServerProcess) -> None:
    with connected(server.http_port) as client:
        client.sendall(
            b"POST /v2/models/identity/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n64\r\n"
        )
        assert status_and_error(read_to_end(client)) == (
            408,
            "cannot read the request: no byte of its body arrived within 1 s (--client-timeout)",
        )


def test_idle_connections_are_closed_without_a_response(server: ServerProcess) -> None:
    before = timed_out(server, "keepalive")
    with connected(server.http_port) as client, connected(server.http_port) as silent:
        client.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert read_to_end(client).count(b"HTTP/1.1 ") == 1
        assert read_to_end(silent) == b""
    assert timed_out(server, "keepalive") - before == 1


def test_clients_that_do_not_read_are_disconnected(server: ServerProcess) -> None:
    before = timed_out(server, "send")
    with connected(server.http_port) as client:
        size = 32 << 20  # more than the kernel keeps for a connection
        client.sendall(
            b"POST /v2/models/bytes/infer HTTP/1.1\r\nHost: localhost\r\nInference-Header-Content-Length: 0\r\n"
            b"Content-Length: %d\r\n\r\n" % size
        )
        client.sendall(bytes(size))
        until(lambda: timed_out(server, "send") > before, "the client to be disconnected")


def test_connections_beyond_the_limit_of_an_address_are_refused(exclusive: ServerProcess) -> None:
    until(lambda: metric(exclusive, "naiad_connections_open") == 0, "earlier connections to end")
    refused = metric(exclusive, 'naiad_connections_refused_total{limit="address"}')
    with contextlib.ExitStack() as stack:
        kept = [stack.enter_context(connected(exclusive.http_port)) for _ in range(40)]
        until(lambda: metric(exclusive, "naiad_connections_open") == 40, "connections to be accepted")
        with connected(exclusive.http_port) as client:
            status, error = status_and_error(read_to_end(client))
        assert status == 503
        assert error == (
            f"cannot accept the connection: 40 are open from {HOST}, the limit of --max-connections-per-address; "
            "use one of them or close it"
        )
        assert metric(exclusive, 'naiad_connections_refused_total{limit="address"}') - refused == 1
        kept[0].close()
        exclusive.wait_health("live")  # a place for another connection


def test_grpc_connections_beyond_the_limit_are_refused(exclusive: ServerProcess) -> None:
    """With GOAWAY, whose reason gRPC's clients show."""
    until(lambda: metric(exclusive, "naiad_connections_open") == 0, "earlier connections to end")
    with contextlib.ExitStack() as stack:
        for _ in range(40):
            stack.enter_context(connected(exclusive.grpc_port))
        until(lambda: metric(exclusive, "naiad_connections_open") == 40, "connections to be accepted")
        with connected(exclusive.grpc_port) as client:
            assert b"cannot accept the connection: 40 are open from" in read_to_end(client)
