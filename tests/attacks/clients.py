"""Clients that do not behave: they send bytes as they like, and expect to be disconnected."""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import Iterable, Iterator

from support.server import HOST

_TIMEOUT = 240


@contextlib.contextmanager
def connected(port: int) -> Iterator[socket.socket]:
    """A connection to a port of the server; each wait on it is bounded."""
    with socket.create_connection((HOST, port), timeout=_TIMEOUT) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield connection


def send_until_refused(connection: socket.socket, parts: Iterable[bytes]) -> bool:
    """Send *parts* until there are no more, or the server has closed the connection; returns whether all were sent.

    What the server sends meanwhile is read and dropped, as a server may stop reading from a client that does not read.
    """
    try:
        for part in parts:
            rest = memoryview(part)
            while rest:
                readable, writable, _ = select.select([connection], [connection], [], _TIMEOUT)
                if readable and not connection.recv(1 << 16):
                    return False
                if writable:
                    rest = rest[connection.send(rest[: 1 << 16]) :]
                assert readable or writable, f"the server has neither read nor written for {_TIMEOUT} s"
    except (BrokenPipeError, ConnectionResetError):
        return False
    return True


def read_to_end(connection: socket.socket) -> bytes:
    """What the server sends until it closes the connection."""
    received = bytearray()
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(1 << 16):
            received += part
    return bytes(received)
