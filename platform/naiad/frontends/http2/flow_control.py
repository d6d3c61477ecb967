"""Flow control of HTTP/2 (section 6.9): who may send how much DATA. Pure; it neither reads nor writes.

Each direction has a window for each stream and one for the connection. A window is the number of bytes of DATA that the
sender may still send. A DATA frame subtracts its whole payload, padding included, from both windows. The receiver adds
to a window with WINDOW_UPDATE. No other frame type is subject to flow control, so HEADERS and RST_STREAM always pass.

`SendFlow` keeps what *we* may send: the peer's WINDOW_UPDATE frames open its windows. `ReceiveFlow` keeps what *the
peer* may send, and says which WINDOW_UPDATE to write. Streams keep their two windows as plain integers (see
`Stream`): an object for each window would be two allocations for each request.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from naiad.frontends.http2.frames import DEFAULT_WINDOW, MAX_WINDOW, ErrorCode, Http2ConnectionError, Http2StreamError
from naiad.frontends.http2.stream import Stream


@dataclass(slots=True)
class SendFlow:
    """What we may send."""

    window: int = DEFAULT_WINDOW  # the sum over all streams; SETTINGS never change it (section 6.9.2)
    initial_window: int = DEFAULT_WINDOW

    def try_consume(self, stream: Stream, size: int) -> bool:
        """Count *size* bytes that are sent on a stream; False, and nothing counted, where they may not be sent now."""
        if size > self.window or size > stream.send_window:
            return False
        self.window -= size
        stream.send_window -= size
        return True

    def available(self, stream: Stream) -> int:
        """Bytes that may be sent on a stream now; zero or negative for none."""
        return min(self.window, stream.send_window)

    def consume(self, stream: Stream, size: int) -> None:
        self.window -= size
        stream.send_window -= size

    def on_window_update(self, increment: int) -> None:
        """Open the connection's window; Http2ConnectionError for an increment of 0 (6.9), or 32 bits (6.9.1)."""
        if not increment:
            raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE with an increment of 0")
        self.window += increment
        if self.window > MAX_WINDOW:
            raise Http2ConnectionError(ErrorCode.FLOW_CONTROL_ERROR, "the connection's window exceeds 31 bits")

    @staticmethod
    def on_stream_window_update(stream: Stream, increment: int) -> None:
        """Open a stream's window; Http2StreamError where `on_window_update` ends the connection."""
        if not increment:
            raise Http2StreamError(stream.number, ErrorCode.PROTOCOL_ERROR)
        stream.send_window += increment
        if stream.send_window > MAX_WINDOW:
            raise Http2StreamError(stream.number, ErrorCode.FLOW_CONTROL_ERROR)

    def change_initial_window(self, size: int, streams: Iterable[Stream]) -> bool:
        """Apply SETTINGS_INITIAL_WINDOW_SIZE; return whether it differs from before.

        The setting also moves the windows of open streams, by the difference of the two sizes, even below zero (section
        6.9.2). Http2ConnectionError if one exceeds 31 bits.
        """
        change = size - self.initial_window
        if not change:
            return False
        self.initial_window = size
        for stream in streams:
            stream.send_window += change
            if stream.send_window > MAX_WINDOW:
                text = f"INITIAL_WINDOW_SIZE of {size} makes a stream's window exceed 31 bits"
                raise Http2ConnectionError(ErrorCode.FLOW_CONTROL_ERROR, text)
        return True


class ReceiveFlow:
    """What the peer may send.

    A window is opened again to its full size once less than half of it is left. Half: with less, a fast peer would stop
    and wait for a WINDOW_UPDATE that is still on its way; with more, the server would write one for every few frames.
    """

    __slots__ = ("_size", "_stream_size", "window")

    def __init__(self, size: int, stream_size: int) -> None:
        """Flow control with full windows: *size* bytes for the connection, *stream_size* for each stream."""
        self._size = size
        self._stream_size = stream_size
        self.window = size

    def consume(self, size: int) -> int:
        """Count *size* bytes of DATA on the connection; return the increment to announce, 0 for none.

        DATA counts here even where its stream no longer exists: the peer has counted it too, and if the two sides count
        differently, the connection stalls in the end (section 5.1, "closed"). Http2ConnectionError beyond the window.
        """
        self.window -= size
        if self.window >= self._size >> 1:
            return 0
        if self.window < 0:
            raise Http2ConnectionError(ErrorCode.FLOW_CONTROL_ERROR, "more DATA than the connection's window")
        increment = self._size - self.window
        self.window = self._size
        return increment

    def consume_on_stream(self, stream: Stream, size: int) -> int:
        """Count *size* bytes of DATA on a stream; return the increment. Http2StreamError beyond its window."""
        stream.receive_window -= size
        if stream.receive_window >= self._stream_size >> 1:
            return 0
        if stream.receive_window < 0:
            raise Http2StreamError(stream.number, ErrorCode.FLOW_CONTROL_ERROR)
        return self.reopen(stream)

    def reopen(self, stream: Stream) -> int:
        """Open a stream's window again if less than half is left; return the increment to announce, 0 for none.

        A paused stream keeps its small window: this is how back pressure of one call reaches its client while other
        calls of the connection go on.
        """
        if stream.is_paused or stream.is_half_closed or stream.receive_window >= self._stream_size >> 1:
            return 0
        increment = self._stream_size - stream.receive_window
        stream.receive_window = self._stream_size
        return increment
