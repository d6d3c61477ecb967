"""A client of HTTP/2 that sends exactly the frames which a test passes."""

from __future__ import annotations

import socket
import struct
from typing import NamedTuple

import hpack

from naiad.frontends.http2 import frames

REQUEST = (
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/echo"),
    (":authority", "here"),
    ("te", "trailers"),
)


def to(path: str) -> tuple[tuple[str, str], ...]:
    """The fields of a request for *path*."""
    return tuple((name, path if name == ":path" else value) for name, value in REQUEST)


HOLD, FLOW = to("/hold"), to("/flow")


class Frame(NamedTuple):
    kind: int
    flags: int
    stream: int
    payload: bytes

    @property
    def number(self) -> int:
        """The last number of the payload: an error code, or an increment."""
        return int.from_bytes(self.payload[-4:], "big")


class GoAway(NamedTuple):
    last: int
    code: frames.ErrorCode
    text: str


class Peer:
    """One connection."""

    def __init__(self, port: int, *, preface: bytes = frames.PREFACE + frames.settings(())):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        # Otherwise, the kernel keeps the second of two small writes until the first is acknowledged: 40 ms.
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self.socket.makefile("rb")
        self._encoder = hpack.Encoder()
        self._decoder = hpack.Decoder()
        self.send(preface)

    def close(self) -> None:
        self._file.close()
        self.socket.close()

    def send(self, *data: bytes) -> None:
        self.socket.sendall(b"".join(data))

    def block(self, fields=REQUEST) -> bytes:
        return self._encoder.encode(fields)

    def request(self, stream: int, *, fields=REQUEST, ends: bool = False) -> None:
        self.send(frames.headers(stream, self.block(fields), ends=ends))

    def call(self, stream: int, content: bytes, *, fields=REQUEST, ends: bool = True) -> None:
        """Send a request with its content at once: between two sends a busy machine may take any time."""
        data = frames.frame(frames.DATA, frames.END_STREAM if ends else 0, stream, content)
        self.send(frames.headers(stream, self.block(fields), ends=False), data)

    def data(self, stream: int, content: bytes, *, ends: bool = False) -> None:
        self.send(frames.frame(frames.DATA, frames.END_STREAM if ends else 0, stream, content))

    def read(self) -> Frame | None:
        """The next frame; None at the end of the connection."""
        head = self._file.read(frames.HEAD_SIZE)
        if len(head) < frames.HEAD_SIZE:
            return None
        high, low, kind, flags, stream = frames.HEAD.unpack(head)
        return Frame(kind, flags, stream, self._file.read(high << 8 | low))

    def until(self, kind: int, *, stream: int | None = None) -> Frame:
        """The next frame of a kind."""
        while True:
            frame = self.read()
            assert frame is not None, f"the connection ended before a frame of kind {kind}"
            if frame.kind == kind and stream in {None, frame.stream}:
                return frame

    def fields(self, block: bytes) -> dict[str, str]:
        return dict(self._decoder.decode(block))

    def go_away(self) -> GoAway:
        """The next GOAWAY."""
        payload = self.until(frames.GOAWAY).payload
        last, code = struct.unpack(">LL", payload[:8])
        return GoAway(last, frames.ErrorCode(code), payload[8:].decode())

    def calmed(self) -> str:
        """The text of the GOAWAY that ends the connection of a client which costs too much."""
        away = self.go_away()
        assert away.code == frames.ErrorCode.ENHANCE_YOUR_CALM
        return away.text

    def reset(self) -> tuple[int, int]:
        """Stream and code of the next RST_STREAM."""
        frame = self.until(frames.RST_STREAM)
        return frame.stream, frame.number

    def is_closed(self) -> bool:
        """Whether the connection ends; frames before its end are skipped."""
        while True:
            try:
                if self.read() is None:
                    return True
            except ConnectionResetError:
                return True

    def response(self, stream: int) -> tuple[dict[str, str], bytes, dict[str, str]]:
        """Headers, content and trailers of a response; trailers are empty where the headers ended it."""
        head = self._of(stream)
        fields = self.fields(head.payload)
        content = b""
        while not head.flags & frames.END_STREAM:
            frame = self._of(stream)
            if frame.kind == frames.HEADERS:
                return fields, content, self.fields(frame.payload)
            content += frame.payload
        return fields, content, {}

    def is_alive(self) -> bool:
        """Whether the connection still works: a ping is acknowledged."""
        self.send(frames.ping(b"alive?!?"))
        while (frame := self.read()) is not None:
            if frame == (frames.PING, frames.ACK, 0, b"alive?!?"):
                return True
        return False

    def _of(self, stream: int) -> Frame:
        while True:
            frame = self.read()
            assert frame is not None, "the connection ended before the response"
            assert frame.kind != frames.GOAWAY, frame
            if frame.stream == stream and frame.kind in {frames.DATA, frames.HEADERS, frames.RST_STREAM}:
                assert frame.kind != frames.RST_STREAM, frame
                return frame
            if frame.kind == frames.HEADERS:
                self.fields(frame.payload)  # may change the table that later blocks refer to
