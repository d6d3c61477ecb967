"""What the peer has set, checked."""

from __future__ import annotations

from naiad.frontends.http2.frames import (
    DEFAULT_FRAME_SIZE,
    DEFAULT_WINDOW,
    MAX_FRAME_SIZE,
    MAX_WINDOW,
    ConnectionProblem,
    ErrorCode,
    Setting,
    read_settings,
)

DEFAULT_TABLE_SIZE = 4096


class PeerSettings:
    """The peer's settings, as far as they concern a server that pushes nothing.

    Attributes:
        table_size: Bytes of fields that it remembers.
        frame_size: The longest payload it takes.
        window: Bytes it takes at first on each stream.
    """

    __slots__ = ("frame_size", "table_size", "window")

    def __init__(self) -> None:
        self.table_size = DEFAULT_TABLE_SIZE
        self.frame_size = DEFAULT_FRAME_SIZE
        self.window = DEFAULT_WINDOW

    def apply(self, payload: bytes) -> None:
        """Take over a SETTINGS frame.

        Raises:
            ConnectionProblem: If a value is none that may be set.
        """
        for key, value in read_settings(payload):
            if key == Setting.HEADER_TABLE_SIZE:
                self.table_size = value
            elif key == Setting.ENABLE_PUSH and value > 1:
                raise ConnectionProblem(ErrorCode.PROTOCOL_ERROR, f"ENABLE_PUSH is {value}")
            elif key == Setting.INITIAL_WINDOW_SIZE:
                if value > MAX_WINDOW:
                    raise ConnectionProblem(ErrorCode.FLOW_CONTROL_ERROR, f"INITIAL_WINDOW_SIZE is {value}")
                self.window = value
            elif key == Setting.MAX_FRAME_SIZE:
                if not DEFAULT_FRAME_SIZE <= value <= MAX_FRAME_SIZE:
                    raise ConnectionProblem(ErrorCode.PROTOCOL_ERROR, f"MAX_FRAME_SIZE is {value}")
                self.frame_size = value
