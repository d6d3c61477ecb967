"""A minimal gRPC call over one HTTP/2 connection, because client libraries use more CPU than the servers."""

from __future__ import annotations

import itertools
import socket
import struct
from collections.abc import Callable, Iterator

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GOAWAY, _WINDOW = 0, 1, 3, 4, 6, 7, 8
_END_STREAM, _END_HEADERS, _ACK = 1, 4, 1
_INITIAL_WINDOW = 4
_MOST = (1 << 31) - 1
_FIRST_WINDOW = (1 << 16) - 1
_HEAD = 9
_MESSAGE_HEAD = 5
_BUFFER = 1 << 16
_OUR_STREAM = 1


class CallError(Exception):
    """The call ended with an error."""


def call(connection: socket.socket, path: str, request: bytes, first: Callable[[], None]) -> list[bytes]:
    """Send one message and END_STREAM; returns the messages that the server sends before it ends the stream.

    Args:
        connection: A new connection.
        path: `/package.Service/Method`.
        request: The message.
        first: Called when the first data has arrived.

    Raises:
        CallError: If the stream is reset, or the connection ends.
    """
    opened = _frame(_SETTINGS, 0, 0, struct.pack(">HI", _INITIAL_WINDOW, _MOST))
    opened += _frame(_WINDOW, 0, 0, struct.pack(">I", _MOST - _FIRST_WINDOW))  # no later updates
    opened += _frame(_HEADERS, _END_HEADERS, _OUR_STREAM, _headers(path))
    message = struct.pack(">BI", 0, len(request)) + request
    connection.sendall(_PREFACE + opened + _frame(_DATA, _END_STREAM, _OUR_STREAM, message))
    parts: list[bytes] = []
    for kind, flags, payload in _frames(connection):
        if kind == _DATA:
            if not parts:
                first()
            parts.append(payload)
        elif kind in (_SETTINGS, _PING) and not flags & _ACK:
            connection.sendall(_frame(kind, _ACK, 0, payload if kind == _PING else b""))
        elif kind in (_RESET, _GOAWAY):
            raise CallError(f"{path} was reset: {payload!r}")
        if kind in (_DATA, _HEADERS) and flags & _END_STREAM:
            return list(_messages(b"".join(parts)))
    raise CallError(f"{path}: the connection ended before the call")


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">IBI", len(payload) << 8 | kind, flags, stream) + payload


def _headers(path: str) -> bytes:
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": "localhost",
        "te": "trailers",
        "content-type": "application/grpc",
    }
    strings = itertools.chain.from_iterable(fields.items())
    encoded = [bytes([len(text)]) + text.encode() for text in strings]
    # Literal header fields without indexing: no compression state on either side.
    return b"".join(b"\0" + name + value for name, value in zip(encoded[::2], encoded[1::2], strict=True))


def _frames(connection: socket.socket) -> Iterator[tuple[int, int, bytes]]:
    data = b""
    while received := connection.recv(_BUFFER):
        data = data + received if data else received
        position, size = 0, len(data)
        while size - position >= _HEAD:
            begun, flags, _ = struct.unpack_from(">IBI", data, position)
            end = position + _HEAD + (begun >> 8)
            if end > size:
                break
            yield begun & 0xFF, flags, data[position + _HEAD : end]
            position = end
        data = data[position:]


def _messages(data: bytes) -> Iterator[bytes]:
    position = 0
    while position < len(data):
        (size,) = struct.unpack_from(">I", data, position + 1)
        position += _MESSAGE_HEAD + size
        yield data[position - size : position]
