"""SETTINGS of both ends (section 6.5): what the peer has set, and what the server announces."""

from __future__ import annotations

from dataclasses import dataclass

from naiad.frontends.http2 import frames
from naiad.frontends.http2.frames import (
    DEFAULT_FRAME_SIZE,
    DEFAULT_WINDOW,
    MAX_FRAME_SIZE,
    MAX_WINDOW,
    ErrorCode,
    Http2ConnectionError,
    Setting,
    read_settings,
)
from naiad.frontends.http2.limits import Http2Limits

DEFAULT_TABLE_SIZE = 4096  # bytes of HPACK's dynamic table, until a peer sets another size


@dataclass(slots=True)
class PeerSettings:
    """The peer's settings, as far as they concern a server that never pushes."""

    table_size: int = DEFAULT_TABLE_SIZE  # bytes of the peer's dynamic table (HPACK, RFC 7541)
    frame_size: int = DEFAULT_FRAME_SIZE
    initial_window: int = DEFAULT_WINDOW

    def apply(self, payload: bytes) -> None:
        """Apply a SETTINGS payload, without unknown settings (section 6.5.2); Http2ConnectionError for bad values."""
        for key, value in read_settings(payload):
            if key == Setting.HEADER_TABLE_SIZE:
                self.table_size = value
            elif key == Setting.ENABLE_PUSH and value > 1:
                raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, f"ENABLE_PUSH is {value}")
            elif key == Setting.INITIAL_WINDOW_SIZE:
                if value > MAX_WINDOW:
                    raise Http2ConnectionError(ErrorCode.FLOW_CONTROL_ERROR, f"INITIAL_WINDOW_SIZE is {value}")
                self.initial_window = value
            elif key == Setting.MAX_FRAME_SIZE:
                if not DEFAULT_FRAME_SIZE <= value <= MAX_FRAME_SIZE:
                    raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, f"MAX_FRAME_SIZE is {value}")
                self.frame_size = value


def server_preface(limits: Http2Limits) -> bytes:
    """The server's first frames: its SETTINGS, and a WINDOW_UPDATE that enlarges the connection's window.

    SETTINGS_INITIAL_WINDOW_SIZE changes the windows of streams alone (section 6.9.2), hence the second frame.
    """
    own = (
        (Setting.MAX_CONCURRENT_STREAMS, limits.streams),
        (Setting.INITIAL_WINDOW_SIZE, limits.stream_window),
        (Setting.MAX_FRAME_SIZE, limits.frame_size),
        (Setting.MAX_HEADER_LIST_SIZE, limits.fields_size),
    )
    return frames.settings(own) + frames.window_update(0, limits.window - DEFAULT_WINDOW)
