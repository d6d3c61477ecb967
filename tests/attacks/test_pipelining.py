"""Clients that send requests without waiting for responses."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor

import pytest
from attacks.clients import connected, read_to_end, send_until_refused
from attacks.watching import watched
from support.server import ServerProcess

LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
CHUNKED = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
LAST = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


@pytest.mark.parametrize(
    ("request_bytes", "connections"),
    [
        pytest.param(LIVE, 6, id="by heads, on 6 connections"),
        pytest.param(LIVE, 1, id="by heads, on one connection", marks=pytest.mark.endurance),
        pytest.param(CHUNKED, 1, id="by the parser, on one connection", marks=pytest.mark.endurance),
        pytest.param(CHUNKED, 6, id="by the parser, on 6 connections", marks=pytest.mark.endurance),
    ],
)
def test_pipelined_requests_leave_time_for_others(
    server: ServerProcess, request_bytes: bytes, connections: int
) -> None:
    """One connection that sent 2.6 MB/s of them made others wait for 5.6 of 6 s."""
    count = 60_000 // connections
    with contextlib.ExitStack() as stack, watched(server) as seen:
        clients = [stack.enter_context(connected(server.http_port)) for _ in range(connections)]
        with ThreadPoolExecutor(connections) as threads:
            sent = threads.map(send_until_refused, clients, [[request_bytes * count, LAST]] * connections)
            assert all(sent)
            list(threads.map(read_to_end, clients))
    seen.assert_others_served()
    seen.assert_memory(16 << 20)
