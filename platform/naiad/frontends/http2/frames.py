"""Frames of HTTP/2 (RFC 9113): their numbers, how they are built, what can be wrong with them. Pure functions."""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterable

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""What every client sends first (section 3.4)."""

HEAD = struct.Struct(">HBBBL")
"""Before each payload: its length in two parts (24 bits), kind, flags, stream."""
HEAD_SIZE = 9

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)

END_STREAM = ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
WITH_PRIORITY = 0x20

DEFAULT_FRAME_SIZE = 1 << 14
MAX_FRAME_SIZE = (1 << 24) - 1
DEFAULT_WINDOW = (1 << 16) - 1
MAX_WINDOW = (1 << 31) - 1
MAX_STREAM = (1 << 31) - 1

WINDOW_UPDATE_SIZE = 4
GOAWAY_SIZE = 8
"""At least: words may follow."""
_MOST_WORDS = 500
"""A frame of them shall be one that any peer takes, and what is wrong may repeat what the peer has sent."""
_PRIORITY_SIZE = 5
_SETTING = struct.Struct(">HL")
_NUMBER = struct.Struct(">L")


class ErrorCode(enum.IntEnum):
    """Why a stream or a connection ends (section 7)."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11
    INADEQUATE_SECURITY = 12
    HTTP_1_1_REQUIRED = 13


class Setting(enum.IntEnum):
    """Parameters of a connection (section 6.5.2)."""

    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


class ConnectionProblem(Exception):  # noqa: N818 - it is the peer's error, not ours
    """The peer broke the rules in a way that ends the connection.

    Attributes:
        code: Which rules.
        text: How, for whoever debugs the peer.
    """

    def __init__(self, code: ErrorCode, text: str) -> None:
        super().__init__(f"{code.name}: {text}")
        self.code = code
        self.text = text


class StreamProblem(Exception):  # noqa: N818
    """The peer broke the rules in a way that ends one stream.

    Attributes:
        stream: Its number.
        code: Which rules.
    """

    def __init__(self, stream: int, code: ErrorCode) -> None:
        super().__init__(f"stream {stream}: {code.name}")
        self.stream = stream
        self.code = code


def head(kind: int, flags: int, stream: int, size: int) -> bytes:
    """What stands before a payload of *size* bytes."""
    return HEAD.pack(size >> 8, size & 0xFF, kind, flags, stream)


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """A whole frame."""
    return head(kind, flags, stream, len(payload)) + payload


def headers(stream: int, block: bytes, *, ends: bool, most: int = DEFAULT_FRAME_SIZE) -> bytes:
    """The frames of a block of fields: HEADERS, and CONTINUATION as far as frames of *most* bytes are too short."""
    flags = END_STREAM if ends else 0
    if len(block) <= most:
        return frame(HEADERS, flags | END_HEADERS, stream, block)
    pieces = [block[start : start + most] for start in range(0, len(block), most)]
    frames = [frame(HEADERS, flags, stream, pieces[0])]
    frames += [frame(CONTINUATION, 0, stream, piece) for piece in pieces[1:-1]]
    frames.append(frame(CONTINUATION, END_HEADERS, stream, pieces[-1]))
    return b"".join(frames)


def reset(stream: int, code: ErrorCode) -> bytes:
    """RST_STREAM."""
    return frame(RST_STREAM, 0, stream, _NUMBER.pack(code))


def settings(values: Iterable[tuple[Setting, int]]) -> bytes:
    """SETTINGS."""
    return frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(key, value) for key, value in values))


SETTINGS_ACK = frame(SETTINGS, ACK, 0)


def ping(payload: bytes, *, is_answer: bool = False) -> bytes:
    """PING, or the answer to one."""
    return frame(PING, ACK if is_answer else 0, 0, payload)


def go_away(last: int, code: ErrorCode, text: str = "") -> bytes:
    """GOAWAY: streams up to *last* were or will be looked at."""
    return frame(GOAWAY, 0, 0, _NUMBER.pack(last) + _NUMBER.pack(code) + text.encode()[:_MOST_WORDS])


def window_update(stream: int, size: int) -> bytes:
    """WINDOW_UPDATE; of the connection where the stream is 0."""
    return frame(WINDOW_UPDATE, 0, stream, _NUMBER.pack(size))


def read_settings(payload: bytes) -> list[tuple[int, int]]:
    """The numbers and values of SETTINGS.

    Raises:
        ConnectionProblem: If the payload has a wrong length.
    """
    if len(payload) % _SETTING.size:
        raise ConnectionProblem(ErrorCode.FRAME_SIZE_ERROR, f"SETTINGS of {len(payload)} bytes")
    return list(_SETTING.iter_unpack(payload))


def content(kind: int, flags: int, payload_start: int, payload_end: int, data: bytes) -> tuple[int, int]:
    """Where the content of a DATA or HEADERS frame lies, without padding and priority.

    Raises:
        ConnectionProblem: If there is less in the frame than its flags say.
    """
    start, end = payload_start, payload_end
    if flags & PADDED:
        start += 1
    if kind == HEADERS and flags & WITH_PRIORITY:
        start += _PRIORITY_SIZE
    if start > end:
        raise ConnectionProblem(ErrorCode.FRAME_SIZE_ERROR, "a frame without what its flags say that it has")
    if flags & PADDED:
        end -= data[payload_start]
        if start > end:
            raise ConnectionProblem(ErrorCode.PROTOCOL_ERROR, "more padding than frame")
    return start, end
