"""A target that does what a test tells it, for what real servers do seldom: silence, lost connections, other answers."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator

Handler = Callable[[socket.socket, bytes], bool]
"""Answers one request, given its bytes; returns whether the connection goes on."""


def read_request(connection: socket.socket) -> bytes:
    """One whole request; empty at the end of the connection."""
    data = b""
    while b"\r\n\r\n" not in data:
        received = connection.recv(65536)
        if not received:
            return b""
        data += received
    head, _, body = data.partition(b"\r\n\r\n")
    sizes = [line.split(b":")[1] for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
    while len(body) < int(sizes[0]):
        body += connection.recv(65536)
    return head + b"\r\n\r\n" + body


def answer(connection: socket.socket, status: int = 200, body: object = None, *, close: bool = False) -> bool:
    """Respond with JSON; by default with a response without outputs."""
    content = body if isinstance(body, bytes) else json.dumps({"outputs": []} if body is None else body).encode()
    end = "connection: close\r\n" if close else ""
    head = f"HTTP/1.1 {status} Status\r\ncontent-length: {len(content)}\r\n{end}\r\n"
    connection.sendall(head.encode() + content)
    return not close


class ScriptedTarget:
    """Listens on loopback; the first connection's first request goes to the first handler, and so on.

    The last handler answers all further requests.

    Attributes:
        address: Host and port.
        requests: All requests so far.
        connections: The number of accepted connections.
    """

    def __init__(self, *handlers: Handler, context: ssl.SSLContext | None = None) -> None:
        self.requests: list[bytes] = []
        self.connections = 0
        self._handlers = list(handlers)
        self._context = context
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            thread = threading.Thread(target=self._serve, args=(connection,))
            self._threads.append(thread)
            self._open.append(connection)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            if self._context is not None:
                connection = self._context.wrap_socket(connection, server_side=True)
                self._open.append(connection)
            with connection:
                while request := read_request(connection):
                    self.requests.append(request)
                    handler = self._handlers.pop(0) if len(self._handlers) > 1 else self._handlers[0]
                    if not handler(connection, request):
                        return


@contextlib.contextmanager
def scripted(*handlers: Handler, context: ssl.SSLContext | None = None) -> Iterator[ScriptedTarget]:
    """A target for one test."""
    target = ScriptedTarget(*handlers, context=context)
    try:
        yield target
    finally:
        target.close()
