"""SETTINGS of both ends (section 6.5): what the peer has set, and what the server announces."""

from __future__ import annotations

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


def peer_settings(payload: bytes) -> dict[int, int]:
    """What a peer has set, by identifiers, unknown ones included (6.5.2); Http2ConnectionError for bad values."""
    settings = read_settings(payload)
    for key, value in settings:
        if key == Setting.ENABLE_PUSH and value > 1:
            raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, f"ENABLE_PUSH is {value}")
        if key == Setting.INITIAL_WINDOW_SIZE and value > MAX_WINDOW:
            raise Http2ConnectionError(ErrorCode.FLOW_CONTROL_ERROR, f"INITIAL_WINDOW_SIZE is {value}")
        if key == Setting.MAX_FRAME_SIZE and not DEFAULT_FRAME_SIZE <= value <= MAX_FRAME_SIZE:
            raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, f"MAX_FRAME_SIZE is {value}")
    return dict(settings)


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
