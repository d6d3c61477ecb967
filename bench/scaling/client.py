"""A load generator of plain sockets and one epoll, for machines without `wrk`; and connections that stay idle."""

from __future__ import annotations

import contextlib
import itertools
import re
import resource
import select
import socket
import time
from collections.abc import Iterator, Sequence

_RECEIVE = 1 << 18
_TIMEOUT = 30.0
_OK = b"HTTP/1.1 200 "
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)
_BLANK = b"\r\n\r\n"
_SPARE_FILES = 256
_LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"


class FailedRequestError(Exception):
    """A response other than 200, or a connection that the server closed."""


class ResponseReader:
    """Finds the end of a response with a Content-Length.

    Attributes:
        is_done: Whether the response is complete.
    """

    def __init__(self) -> None:
        self._head = b""
        self._missing = -1  # bytes of the body; -1 while the head is incomplete
        self.is_done = False

    def feed(self, data: bytes) -> None:
        """Add received bytes.

        Raises:
            FailedRequestError: If the status is not 200, or the head has no length.
        """
        if self._missing < 0:
            self._head += data
            end = self._head.find(_BLANK)
            if end < 0:
                return
            length = _LENGTH.search(self._head, 0, end + 2)
            if not self._head.startswith(_OK) or length is None:
                raise FailedRequestError(f"the server answered {self._head[:300]!r}")
            self._missing = int(length[1]) - (len(self._head) - end - len(_BLANK))
        else:
            self._missing -= len(data)
        self.is_done = self._missing <= 0


class _Connection:
    def __init__(self, host: str, port: int) -> None:
        self.socket = socket.create_connection((host, port), timeout=_TIMEOUT)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.reader = ResponseReader()
        self.began = 0.0

    def send(self, request: bytes) -> None:
        """Begin an exchange. Blocks while the server reads: it needs no more than the request to respond."""
        self.reader = ResponseReader()
        self.began = time.perf_counter()
        self.socket.sendall(request)

    def receive(self) -> None:
        data = self.socket.recv(_RECEIVE)
        if not data:
            raise FailedRequestError("the server closed the connection")
        self.reader.feed(data)


def send(host: str, port: int, requests: Sequence[bytes], clients: int, seconds: float) -> tuple[list[float], float]:
    """Send requests in turn over *clients* connections; the latencies in seconds, and the seconds that all took.

    Raises:
        FailedRequestError: If a request fails.
    """
    latencies: list[float] = []
    turns = itertools.cycle(requests)
    with contextlib.ExitStack() as stack:
        poll = stack.enter_context(contextlib.closing(select.epoll()))
        connections = {}
        for _ in range(clients):
            connection = _Connection(host, port)
            stack.callback(connection.socket.close)
            connections[connection.socket.fileno()] = connection
            poll.register(connection.socket, select.EPOLLIN)
        began = time.perf_counter()
        for connection in connections.values():
            connection.send(next(turns))
        while time.perf_counter() - began < seconds:
            for number, _ in poll.poll(_TIMEOUT):
                connection = connections[number]
                connection.receive()
                if connection.reader.is_done:
                    latencies.append(time.perf_counter() - connection.began)
                    connection.send(next(turns))
        return latencies, time.perf_counter() - began


def raise_file_limit(files: int) -> int:
    """Raise this process's limit on open files, which servers inherit; the number of connections it has room for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # The server keeps a quarter of its files for other things than connections.
    wanted = (files + _SPARE_FILES) * 4 // 3
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return files if soft == resource.RLIM_INFINITY else min(files, soft * 3 // 4 - _SPARE_FILES)


@contextlib.contextmanager
def idle_connections(host: str, port: int, count: int) -> Iterator[None]:
    """Connections that have carried one request each and stay open."""
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            connection = _Connection(host, port)
            stack.callback(connection.socket.close)
            connection.send(_LIVE)
            while not connection.reader.is_done:
                connection.receive()
        yield
