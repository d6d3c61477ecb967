"""Frames of HTTP/2: constants, builders and the two kinds of protocol errors. Pure functions.

Section numbers in this package are those of RFC 9113, unless another document is named. A frame is a head of nine bytes
(section 4.1: 24 bits of length, 8 of type, 8 of flags, one reserved bit, 31 bits of stream identifier) and a payload.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterable

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"  # the first bytes of every client (section 3.4)

HEAD = struct.Struct(">HBBBL")  # length in two parts (`struct` has no 24-bit integer), type, flags, stream identifier
HEAD_SIZE = 9

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)

END_STREAM = ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
WITH_PRIORITY = 0x20

DEFAULT_FRAME_SIZE = 1 << 14  # until a peer sets another, and the smallest one it may set (section 6.5.2)
MAX_FRAME_SIZE = (1 << 24) - 1
DEFAULT_WINDOW = (1 << 16) - 1  # both windows of a new connection, until the peer changes them (section 6.9.2)
MAX_WINDOW = (1 << 31) - 1  # no window may exceed this (section 6.9.1)
MAX_STREAM = (1 << 31) - 1

WINDOW_UPDATE_SIZE = 4
GOAWAY_SIZE = 8  # the smallest payload of GOAWAY; debug data may follow
# Bytes of debug data in GOAWAY. Error texts of hpack can repeat what the peer sent, up to a whole field block; the
# frame has to fit into the smallest SETTINGS_MAX_FRAME_SIZE.
_MAX_DEBUG_DATA = 500
_PRIORITY_SIZE = 5
_SETTING = struct.Struct(">HL")
_NUMBER = struct.Struct(">L")


class ErrorCode(enum.IntEnum):
    """Error codes of RST_STREAM and GOAWAY (section 7)."""

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
    """Identifiers of settings (section 6.5.2)."""

    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


class Http2ConnectionError(Exception):
    """The peer broke the protocol; the connection ends with GOAWAY (section 5.4.1)."""

    def __init__(self, code: ErrorCode, text: str) -> None:
        super().__init__(f"{code.name}: {text}")
        self.code = code
        self.text = text  # its debug data, for the developer of the peer


class Http2StreamError(Exception):
    """The peer broke the protocol on one stream, which ends with RST_STREAM; the connection stays (section 5.4.2)."""

    def __init__(self, stream: int, code: ErrorCode) -> None:
        super().__init__(f"stream {stream}: {code.name}")
        self.stream = stream
        self.code = code


def head(kind: int, flags: int, stream: int, size: int) -> bytes:
    """The head of a frame with a payload of *size* bytes."""
    return HEAD.pack(size >> 8, size & 0xFF, kind, flags, stream)


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """A whole frame."""
    return head(kind, flags, stream, len(payload)) + payload


def headers(stream: int, block: bytes, *, ends: bool, max_frame_size: int = DEFAULT_FRAME_SIZE) -> bytes:
    """The frames of a field block: HEADERS, then CONTINUATION where the block exceeds *max_frame_size* bytes."""
    flags = END_STREAM if ends else 0
    if len(block) <= max_frame_size:
        return frame(HEADERS, flags | END_HEADERS, stream, block)
    pieces = [block[start : start + max_frame_size] for start in range(0, len(block), max_frame_size)]
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


def ping(payload: bytes, *, is_ack: bool = False) -> bytes:
    """PING, or its acknowledgement."""
    return frame(PING, ACK if is_ack else 0, 0, payload)


def go_away(last: int, code: ErrorCode, text: str = "") -> bytes:
    """GOAWAY: requests on streams above *last* were not processed and may be sent again (section 6.8)."""
    return frame(GOAWAY, 0, 0, _NUMBER.pack(last) + _NUMBER.pack(code) + text.encode()[:_MAX_DEBUG_DATA])


def window_update(stream: int, increment: int) -> bytes:
    """WINDOW_UPDATE; stream 0 means the connection's window."""
    return frame(WINDOW_UPDATE, 0, stream, _NUMBER.pack(increment))


def read_settings(payload: bytes) -> list[tuple[int, int]]:
    """The identifiers and values of a SETTINGS frame, in its order; Http2ConnectionError if its length is wrong."""
    if len(payload) % _SETTING.size:
        raise Http2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, f"SETTINGS with {len(payload)} bytes")
    return list(_SETTING.iter_unpack(payload))


def strip_padding(kind: int, flags: int, start: int, end: int, data: bytes) -> tuple[int, int]:
    """The bounds of a payload without padding and priority (6.1, 6.2); Http2ConnectionError if its flags need more."""
    content_start, content_end = start, end
    if flags & PADDED:
        content_start += 1
    if kind == HEADERS and flags & WITH_PRIORITY:
        content_start += _PRIORITY_SIZE
    if content_start > content_end:
        raise Http2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, "a payload shorter than its flags require")
    if flags & PADDED:
        content_end -= data[start]
        if content_start > content_end:
            raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, "padding longer than the payload")
    return content_start, content_end
