"""The receiving half of a connection: bytes to frames, content of requests to those who want it, within windows.

What it costs a request is what counts here: frames are read where they lie. Long DATA is read straight to where its
receiver wants it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from naiad.frontends.http2 import frames
from naiad.frontends.http2.frames import (
    DATA,
    DEFAULT_FRAME_SIZE,
    END_STREAM,
    HEAD,
    HEAD_SIZE,
    HEADERS,
    MAX_STREAM,
    MAX_WINDOW,
    PADDED,
    PREFACE,
    WINDOW_UPDATE,
    WINDOW_UPDATE_SIZE,
    ConnectionProblem,
    ErrorCode,
    StreamProblem,
)
from naiad.frontends.http2.limits import Limits
from naiad.frontends.http2.sender import Sending
from naiad.frontends.http2.stream import Stream

_DIRECT = 1 << 15
"""What is left of a DATA frame is read straight to its receiver from this size."""


class Receiving(Sending):
    """Takes frames out of what arrives, and content out of DATA frames."""

    def __init__(self, limits: Limits) -> None:
        super().__init__()
        self._limits = limits
        self._is_over = False
        # What has come of a frame that is not all here, and how many bytes of it have not.
        self._rest: bytes | bytearray = b""
        self._missing = 0
        self._read: Callable[[bytes], None] = self._read_preface
        self._receive_window = limits.window
        self._last = 0
        self._early: OrderedDict[int, None] = OrderedDict()
        # A block of fields that goes on in the next frame: its stream, whether it ends that, its pieces.
        self._begun: tuple[int, bool, list[bytes]] | None = None
        # A DATA frame that is not all here.
        self._data_left = 0
        self._data_ends = False
        self._data_stream: Stream | None = None

    # -- frames -------------------------------------------------------------------------------------------------

    def _read_preface(self, data: bytes) -> None:
        if not data.startswith(PREFACE[: len(data)]):
            self._turn_away()
            return
        if len(data) < len(PREFACE) + HEAD_SIZE:
            self._rest, self._missing = data, 1
            return
        self._greeted()
        if data[len(PREFACE) + 3] != frames.SETTINGS:
            raise ConnectionProblem(ErrorCode.PROTOCOL_ERROR, "the first frame is not SETTINGS")
        self._read = self._read_frames
        self._read(data[len(PREFACE) :])

    def _read_frames(self, data: bytes) -> None:
        position, size = 0, len(data)
        missing = HEAD_SIZE
        if self._data_left:
            position = self._more_data(data)
        while size - position >= HEAD_SIZE and not self._is_over:
            high, low, kind, flags, number = HEAD.unpack_from(data, position)
            length = high << 8 | low
            number &= MAX_STREAM
            start = position + HEAD_SIZE
            end = start + length
            if length > self._limits.frame_size:
                raise ConnectionProblem(ErrorCode.FRAME_SIZE_ERROR, f"a frame of {length} bytes")
            if end > size:
                if kind == DATA and length > DEFAULT_FRAME_SIZE and not flags & PADDED and self._begun is None:
                    self._begin_data(number, flags, data, start, length)
                    return
                missing += length
                break
            try:
                self._frame(kind, flags, number, data, start, end)
            except StreamProblem as problem:
                self._break_off(problem)
            position = end
        if position < size:
            self._rest = data[position:]
            self._missing = missing - (size - position)
        else:
            self._rest = b""

    def _gather(self, piece: memoryview) -> None:
        """Take more of a frame: what has come of it is copied once it is all here, however small the pieces are."""
        self._missing -= len(piece)
        if self._missing <= 0:
            self._read(b"".join((self._rest, piece)))
        elif isinstance(self._rest, bytes):
            self._rest = bytearray(self._rest) + piece
        else:
            self._rest += piece

    def _frame(self, kind: int, flags: int, number: int, data: bytes, start: int, end: int) -> None:
        if self._begun is not None:
            self._continue(kind, flags, number, data[start:end])
        elif kind == DATA:
            self._data(flags, number, data, start, end)
        elif kind == HEADERS:
            self._headers(flags, number, data, start, end)
        elif kind == WINDOW_UPDATE and end - start == WINDOW_UPDATE_SIZE:
            self._window_update(number, int.from_bytes(data[start:end], "big") & MAX_WINDOW)
        else:
            self._other(kind, flags, number, data[start:end])

    # -- DATA ---------------------------------------------------------------------------------------------------

    def _data(self, flags: int, number: int, data: bytes, start: int, end: int) -> None:
        stream = self._count(number, end - start)
        if flags & PADDED:
            start, end = frames.content(DATA, flags, start, end, data)
        ended = bool(flags & END_STREAM)
        if start == end and not ended:
            self._spend()
        if stream is not None:
            self._note(stream, end - start, ended=ended)
            stream.receiver.received(data, start, end, ended)

    def _begin_data(self, number: int, flags: int, data: bytes, start: int, length: int) -> None:
        """A long DATA frame of which the beginning is here."""
        self._rest = b""
        self._data_left = length
        self._data_ends = bool(flags & END_STREAM)
        try:
            self._data_stream = self._count(number, length)
            if self._data_stream is not None:
                self._note(self._data_stream, length, ended=self._data_ends)
        except StreamProblem as problem:
            self._data_stream = None
            self._break_off(problem)
        self._more_data(data, start)

    def _more_data(self, data: bytes, start: int = 0) -> int:
        """Deliver more of a DATA frame; return where that is over."""
        end = start + min(self._data_left, len(data) - start)
        self._data_left -= end - start
        stream = self._data_stream
        if not self._data_left:
            self._data_stream = None
        if stream is not None and stream.is_open:
            stream.receiver.received(data, start, end, self._data_ends and not self._data_left)
        return end

    def _room(self) -> memoryview | None:
        """Where the receiver of a long DATA frame wants the rest of it."""
        stream = self._data_stream
        if self._data_left < _DIRECT or stream is None or not stream.is_open:
            return None
        return stream.receiver.room(self._data_left)

    def _filled(self, size: int) -> None:
        """More of a DATA frame was read to where it belongs."""
        stream = self._data_stream
        if stream is not None and stream.is_open:
            stream.receiver.filled(size)
        self._data_left -= size
        if not self._data_left:
            self._data_left = 0
            self._more_data(b"")

    def _count(self, number: int, size: int) -> Stream | None:
        """Count content into the windows; None where nobody wants it any more."""
        self._receive_window -= size
        if self._receive_window < self._limits.window >> 1:
            if self._receive_window < 0:
                raise ConnectionProblem(ErrorCode.FLOW_CONTROL_ERROR, "more than the connection's window")
            self._write(frames.window_update(0, self._limits.window - self._receive_window))
            self._receive_window = self._limits.window
        stream = self.streams.get(number)
        if stream is None:
            self._check_known(number, "DATA")
            if number not in self._early:
                raise StreamProblem(number, ErrorCode.STREAM_CLOSED)
            return None
        if stream.is_half_closed:
            raise StreamProblem(number, ErrorCode.STREAM_CLOSED)
        stream.receive_window -= size
        if stream.receive_window < self._limits.stream_window >> 1:
            if stream.receive_window < 0:
                raise StreamProblem(number, ErrorCode.FLOW_CONTROL_ERROR)
            self._replenish(stream)
        return stream

    def _note(self, stream: Stream, size: int, *, ended: bool) -> None:
        """Hold the content against what the request said about it."""
        if stream.expected >= 0:
            if size > stream.expected or (ended and size < stream.expected):
                raise StreamProblem(stream.number, ErrorCode.PROTOCOL_ERROR)
            stream.expected -= size
        if ended:
            stream.is_half_closed = True

    def _replenish(self, stream: Stream) -> None:
        if not stream.is_held and not stream.is_half_closed:
            self._write(frames.window_update(stream.number, self._limits.stream_window - stream.receive_window))
            stream.receive_window = self._limits.stream_window

    def hold(self, stream: Stream, *, is_held: bool) -> None:
        """Take no more content on a stream than its window lets through, or take it again."""
        stream.is_held = is_held
        if not is_held and stream.is_open and stream.receive_window < self._limits.stream_window >> 1:
            self._replenish(stream)

    def _check_known(self, number: int, name: str) -> None:
        """End the connection of a client that names a stream it has not opened."""
        if number > self._last or not number & 1:
            raise ConnectionProblem(ErrorCode.PROTOCOL_ERROR, f"{name} on stream {number}, which is not open")

    # -- for the whole connection -------------------------------------------------------------------------------

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._is_over:  # nothing may follow a GOAWAY that is meant
            self._put(data)

    def _turn_away(self) -> None:
        """What came is no preface."""
        raise NotImplementedError

    def _greeted(self) -> None:
        """The preface is here."""
        raise NotImplementedError

    def _headers(self, flags: int, number: int, data: bytes, start: int, end: int) -> None:
        """A HEADERS frame."""
        raise NotImplementedError

    def _continue(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        """The frame after one with part of a block of fields."""
        raise NotImplementedError

    def _window_update(self, number: int, size: int) -> None:
        """The client takes more: of stream *number*, or of all together where that is 0."""
        raise NotImplementedError

    def _other(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        """A frame of any other kind."""
        raise NotImplementedError

    def _break_off(self, problem: StreamProblem) -> None:
        """End a stream whose client broke a rule."""
        raise NotImplementedError

    def _spend(self, count: int = 1) -> None:
        """Count a frame that brings nothing, or the work of several."""
        raise NotImplementedError
