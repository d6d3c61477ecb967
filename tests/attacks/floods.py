"""Floods of HTTP/2: what one client sends, and how the server ends it.

Each function yields the frames of one flood in portions. `Flooder` sends them on a connection of its own, for as long
as the server takes them.
"""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import hpack
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from support.server import HOST
from tritonclient.grpc import service_pb2

from naiad.frontends.http2 import frames
from naiad.frontends.http2.frames import ErrorCode, Setting

SERVICE = "/inference.GRPCInferenceService/"
_PORTION = 1 << 16
"""Bytes of frames that are made, and sent, at a time."""
_TIMEOUT = 240


class GoAway(NamedTuple):
    """The server's last frame."""

    code: ErrorCode
    text: str


class Flooder:
    """A connection that sends what it is told and reads all that comes.

    Attributes:
        sent: Bytes that the server's kernel has taken.
        go_away: The server's GOAWAY, once it has come.
        resets: How many streams the server has reset.
        is_closed: Whether the server has closed the connection.
        has_response: Whether a response has begun.
        is_complete: Whether a response has ended.
    """

    def __init__(self, port: int, settings: Iterable[tuple[Setting, int]] = ()) -> None:
        self.socket = socket.create_connection((HOST, port), timeout=_TIMEOUT)
        self.sent = self.resets = 0
        self.go_away: GoAway | None = None
        self.is_closed = False
        self.has_response = self.is_complete = False
        self._acknowledged: set[bytes] = set()
        self._received = b""
        self.send([frames.PREFACE + frames.settings(settings)])

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()

    def send(self, parts: Iterable[bytes]) -> bool:
        """Send *parts*, and read meanwhile; returns whether the server took them all."""
        for part in parts:
            rest = memoryview(part)
            while rest:
                if self.is_closed:
                    return False
                readable, writable, _ = select.select([self.socket], [self.socket], [], _TIMEOUT)
                assert readable or writable, f"the server has neither read nor written for {_TIMEOUT} s"
                if readable:
                    self._receive()
                if writable and self.go_away is None:
                    try:
                        count = self.socket.send(rest[:_PORTION])
                    except OSError:  # closed by the server: what it sent before may still be here
                        while not self.is_closed:
                            self._receive()
                        return False
                    self.sent += count
                    rest = rest[count:]
                elif self.go_away is not None:
                    return False
        return True

    def open_windows(self) -> None:
        """Let the server send as much as HTTP/2 can express."""
        most = frames.MAX_WINDOW - frames.DEFAULT_WINDOW
        self.send([frames.settings([(Setting.INITIAL_WINDOW_SIZE, frames.MAX_WINDOW)]) + frames.window_update(0, most)])

    def synchronize(self) -> None:
        """Read until the server has handled all that was sent, or has closed the connection."""
        payload = b"%08d" % len(self._acknowledged)
        self.send([frames.ping(payload)])
        self.read_until(lambda: payload in self._acknowledged)

    def read_until(self, condition: Callable[[], object]) -> None:
        """Read until a condition is true, or the server has closed the connection."""
        while not self.is_closed and not condition():
            assert select.select([self.socket], [], [], _TIMEOUT)[0], f"the server has not written for {_TIMEOUT} s"
            self._receive()

    def _receive(self) -> None:
        try:
            received = self.socket.recv(1 << 18)
        except OSError:
            received = b""
        self.is_closed = self.is_closed or not received
        data, position = self._received + received, 0
        while len(data) - position >= frames.HEAD_SIZE:
            high, low, kind, flags, _ = frames.HEAD.unpack_from(data, position)
            start, end = position + frames.HEAD_SIZE, position + frames.HEAD_SIZE + (high << 8 | low)
            if end > len(data):
                break
            position = end
            if kind == frames.GOAWAY:
                _, code = struct.unpack_from(">LL", data, start)
                self.go_away = GoAway(ErrorCode(code), data[start + 8 : end].decode())
            elif kind == frames.HEADERS:
                self.has_response = True
                self.is_complete = self.is_complete or flags & frames.END_STREAM != 0
            elif kind == frames.RST_STREAM:
                self.resets += 1
            elif kind == frames.PING and flags & frames.ACK:
                self._acknowledged.add(data[start:end])
        self._received = data[position:]


def request_fields(method: str) -> tuple[tuple[str, str], ...]:
    """The fields of a call of one method."""
    return (
        (":method", "POST"),
        (":scheme", "http"),
        (":path", SERVICE + method),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
    )


class Requests:
    """Field blocks of requests to one method, encoded for one connection."""

    def __init__(self, method: str) -> None:
        encoder, fields = hpack.Encoder(), request_fields(method)
        self._first, self._later = encoder.encode(fields), encoder.encode(fields)

    def begin(self, stream: int, *, ends: bool = False) -> bytes:
        """HEADERS of a request; streams are opened in their order, beginning with 1."""
        return frames.headers(stream, self._first if stream == 1 else self._later, ends=ends)


def message(content: bytes) -> bytes:
    """A message of gRPC with its prefix."""
    return struct.pack(">BL", 0, len(content)) + content


def data(stream: int, content: bytes, *, ends: bool = False) -> bytes:
    """A DATA frame."""
    return frames.frame(frames.DATA, frames.END_STREAM if ends else 0, stream, content)


def infer_message(model: str = "identity", size: int = 1, identity: str = "") -> bytes:
    """A request to a model that returns its input of *size* numbers."""
    request = service_pb2.ModelInferRequest(model_name=model, id=identity)
    request.inputs.add(name="INPUT0", datatype="FP32", shape=[size])
    request.raw_input_contents.append(bytes(4 * size))
    return request.SerializeToString()


def repeated(one: bytes, total: int) -> Iterator[bytes]:
    """*total* bytes of the same frame."""
    many = one * (_PORTION // len(one) + 1)
    for _ in range(total // len(many) + 1):
        yield many


def joined(parts: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes in portions worth a system call."""
    portion = bytearray()
    for part in parts:
        portion += part
        if len(portion) >= _PORTION:
            yield bytes(portion)
            portion.clear()
    yield bytes(portion)


# -- the floods -------------------------------------------------------------------------------------------------------


def huffman(size: int) -> Iterator[bytes]:
    """Blocks with one long field, compressed by Huffman's code."""
    coder = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH)
    for form in (b"a", b"\xff", b"0a#"):  # codes of 5 bits, of 26, and mixed
        value = coder.encode(form * (16_000 // len(form)))
        block = b"\x00\x01x" + hpack.hpack.encode_integer(len(value), 7).replace(b"\x7f", b"\xff", 1) + value
        yield from _blocks(block, size // 3, first_stream={b"a": 1, b"\xff": 100_001, b"0a#": 200_001}[form])


def churn(size: int) -> Iterator[bytes]:
    """Blocks whose fields all enter the dynamic table, and push others out of it."""
    fields = b"".join(
        b"\x40\x01" + bytes([97 + index % 26]) + b"\x01" + bytes([97 + index // 26 % 26]) for index in range(1500)
    )
    yield from _blocks(fields, size)


def indexed(size: int) -> Iterator[bytes]:
    """Blocks of fields of one byte each."""
    yield from _blocks(b"\x82" * 1500 + b"\x00\x01x\x01y", size)


def _blocks(block: bytes, size: int, first_stream: int = 1) -> Iterator[bytes]:
    """Requests on streams of their own, each with other bytes in its last field, so that none is known by its bytes."""

    def requests() -> Iterator[bytes]:
        count = size // (len(block) + 20) + 1
        for number in range(count):
            unique = b"\x00\x01u\x08%08d" % (number + first_stream)
            yield frames.headers(first_stream + 2 * number, block + unique, ends=True)

    yield from joined(requests())


def one_byte_data(size: int) -> Iterator[bytes]:
    """A message in DATA frames of one byte."""
    yield Requests("ModelInfer").begin(1) + data(1, struct.pack(">BL", 0, 1 << 30))
    yield from repeated(data(1, b"x"), size)


def padded_data(size: int) -> Iterator[bytes]:
    """A message in DATA frames of one byte and some padding."""
    yield Requests("ModelInfer").begin(1) + data(1, struct.pack(">BL", 0, 1 << 30))
    yield from repeated(frames.frame(frames.DATA, frames.PADDED, 1, b"\x03x" + bytes(3)), size)


def empty_data(size: int) -> Iterator[bytes]:
    yield Requests("ModelInfer").begin(1)
    yield from repeated(data(1, b""), size)


def stream_windows(size: int) -> Iterator[bytes]:
    yield Requests("ModelInfer").begin(1)
    yield from repeated(frames.window_update(1, 1), size)


def connection_windows(size: int) -> Iterator[bytes]:
    yield from repeated(frames.window_update(0, 1), size)


def windows_of_ended_streams(size: int) -> Iterator[bytes]:
    yield Requests("ServerLive").begin(1) + data(1, message(b""), ends=True)
    yield from repeated(frames.window_update(1, 1), size)


def settings(size: int) -> Iterator[bytes]:
    yield from repeated(frames.settings(()), size)


def settings_that_move_windows(size: int) -> Iterator[bytes]:
    """SETTINGS that change the windows of 10,000 streams, to and fro."""
    requests = Requests("ModelInfer")
    yield from joined(requests.begin(number) for number in range(1, 20_001, 2))
    both = [frames.settings([(Setting.INITIAL_WINDOW_SIZE, value)]) for value in (1, 2)]
    yield from repeated(b"".join(both), size)


def long_settings(size: int) -> Iterator[bytes]:
    yield from repeated(frames.settings([(Setting.MAX_HEADER_LIST_SIZE, 1)] * 170_000), size)


def pings(size: int) -> Iterator[bytes]:
    yield from repeated(frames.ping(bytes(8)), size)


def ping_acknowledgements(size: int) -> Iterator[bytes]:
    yield from repeated(frames.ping(bytes(8), is_ack=True), size)


def priorities(size: int) -> Iterator[bytes]:
    yield from repeated(frames.frame(frames.PRIORITY, 0, 1, bytes(4) + b"\x01"), size)


def unknown_frames(size: int) -> Iterator[bytes]:
    yield from repeated(frames.frame(0x77, 0, 0), size)


def rapid_reset(size: int) -> Iterator[bytes]:
    """CVE-2023-44487: requests that are cancelled at once."""
    requests = Requests("ModelInfer")
    cancel = ErrorCode.CANCEL
    yield from joined(requests.begin(number) + frames.reset(number, cancel) for number in range(1, size // 12, 2))


def rapid_reset_of_inferences(size: int) -> Iterator[bytes]:
    """The same with complete requests, which reach the model."""
    requests, content = Requests("ModelInfer"), message(infer_message())
    parts = (
        requests.begin(number) + data(number, content, ends=True) + frames.reset(number, ErrorCode.CANCEL)
        for number in range(1, size // 50, 2)
    )
    yield from joined(parts)


def resets_of_ended_streams(size: int) -> Iterator[bytes]:
    yield Requests("ServerLive").begin(1) + data(1, message(b""), ends=True)
    yield from repeated(frames.reset(1, ErrorCode.CANCEL), size)


def made_you_reset_by_windows(size: int) -> Iterator[bytes]:
    """CVE-2025-8671: WINDOW_UPDATE of nothing makes the server reset the stream."""
    requests = Requests("ModelInfer")
    yield from joined(requests.begin(number) + frames.window_update(number, 0) for number in range(1, size // 12, 2))


def made_you_reset_by_overflow(size: int) -> Iterator[bytes]:
    """CVE-2025-8671: a window beyond 31 bits."""
    requests, most = Requests("ModelInfer"), frames.MAX_WINDOW
    yield from joined(requests.begin(number) + frames.window_update(number, most) for number in range(1, size // 12, 2))


def made_you_reset_by_data(size: int) -> Iterator[bytes]:
    """CVE-2025-8671: DATA behind the end of the request."""
    requests = Requests("ModelInfer")
    content = message(infer_message())
    parts = (
        requests.begin(number) + data(number, content, ends=True) + data(number, b"x")
        for number in range(1, size // 50, 2)
    )
    yield from joined(parts)


def made_you_reset_by_headers(size: int) -> Iterator[bytes]:
    """CVE-2025-8671: trailers that do not end the request."""
    requests = Requests("ModelInfer")
    yield from joined(
        requests.begin(number) + frames.headers(number, b"", ends=False) for number in range(1, size // 12, 2)
    )


def refused_streams(size: int) -> Iterator[bytes]:
    """More streams than are allowed."""
    requests = Requests("ModelInfer")
    yield from joined(requests.begin(number) for number in range(1, size // 6, 2))


def continuations(size: int) -> Iterator[bytes]:
    """CVE-2024-27316: a field block without end."""
    yield frames.frame(frames.HEADERS, 0, 1, b"\x82")
    yield from repeated(frames.frame(frames.CONTINUATION, 0, 1, b"\x82"), size)


def empty_continuations(size: int) -> Iterator[bytes]:
    yield frames.frame(frames.HEADERS, 0, 1, b"\x82")
    yield from repeated(frames.frame(frames.CONTINUATION, 0, 1), size)


def long_headers(size: int) -> Iterator[bytes]:
    """HEADERS of a megabyte."""
    yield from repeated(frames.frame(frames.HEADERS, frames.END_HEADERS, 1, bytes(1 << 20)), size)
