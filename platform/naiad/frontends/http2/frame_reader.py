"""Bytes to frames. Pure: no socket, no event loop, no state of streams; the clock is handed in.

`Http2FrameReader.feed` takes bytes as they arrive, cut anywhere, and calls its handler once for each frame. The reader
checks what a frame alone shows: the preface, lengths, flags, padding, which frame types belong on streams, and that
nothing interrupts a field block. What depends on the state of a stream is the handler's job.

Three properties make it fast:

* Frames are read in place, within the received bytes. The handler gets `(data, start, end)`; a whole request that
  arrives in one read is never copied into a buffer of the reader.
* An incomplete frame is collected in a bytearray and joined once, when it is complete. A client that sends a frame of
  1 MiB in small pieces does not make the server copy the beginning again with each piece.
* DATA longer than 16 KiB is delivered as it arrives, in chunks, and its rest may be read from the socket straight to
  its destination: `data_left` says how much may bypass `feed`, and `on_direct_read` counts it.

A few kilobytes may hold hundreds of frames, and each may be a request. So `feed` handles frames for
`SHARE_SECONDS` only (see `turns.py`). It keeps the rest, and `resume` continues with it.

The handler is called rather than handed a list of frames because an object for each frame costs more than parsing it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

from naiad.core.turns import SHARE_SECONDS
from naiad.frontends.http2 import frames
from naiad.frontends.http2.frames import (
    ACK,
    CONTINUATION,
    DATA,
    DEFAULT_FRAME_SIZE,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEAD,
    HEAD_SIZE,
    HEADERS,
    MAX_STREAM,
    MAX_WINDOW,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    WINDOW_UPDATE_SIZE,
    WITH_PRIORITY,
    ErrorCode,
    Http2ConnectionError,
    Http2StreamError,
)
from naiad.frontends.http2.limits import Http2Limits

_CHUNK_SIZE = 1 << 15  # bytes of a long DATA frame that are delivered at once: they may be thousands of messages
# So many bytes of frames are handled between looks at the clock, which cost a third of a microsecond on some machines:
# they have less work than a share of the turn, unless they are SETTINGS. Most reads have a single request and are
# shorter.
_UNCLOCKED_SIZE = 512
_MAX_PADDING = 256  # bytes by which padding lengthens a frame, with its length
_PRIORITY_SIZE = 5
# Payload sizes of frame types that have only one.
_FIXED_SIZES = {PING: 8, RST_STREAM: 4, WINDOW_UPDATE: WINDOW_UPDATE_SIZE, PRIORITY: 5}
_BLOCK_TYPES = {HEADERS, CONTINUATION}
_STREAM_TYPES = {RST_STREAM, PRIORITY}  # DATA, HEADERS and WINDOW_UPDATE are checked where they are read
_CONNECTION_TYPES = {SETTINGS, PING, GOAWAY}  # types that must be on stream 0


class FrameHandler(Protocol):
    """What is called for each frame. Any callback may raise the two protocol errors of `frames`."""

    def on_preface(self) -> None:
        """The client's preface is complete, and the head of its first frame is here."""

    def on_other_protocol(self) -> None:
        """The first bytes are not HTTP/2's preface. Nothing else is called afterwards."""

    def on_headers(self, number: int, block: bytes, ended: bool) -> None:  # noqa: FBT001 - called for each request
        """A complete field block; CONTINUATION frames are already joined."""

    def on_data(self, number: int, size: int, data: bytes, start: int, end: int, ended: bool) -> None:  # noqa: FBT001 - called for each DATA frame, keywords cost more
        """A DATA frame with the content `data[start:end]`; *size*, with padding, counts for flow control."""

    def on_data_begin(self, number: int, size: int, ended: bool) -> None:  # noqa: FBT001 - as `on_data`
        """A long DATA frame of *size* bytes; its content follows by `on_data_chunk`."""

    def on_data_chunk(self, data: bytes, start: int, end: int, is_last: bool) -> None:  # noqa: FBT001 - as `on_data`
        """More content of the long DATA frame; *is_last* at the end of the frame."""

    def on_window_update(self, number: int, increment: int) -> None:
        """WINDOW_UPDATE; stream 0 is the connection."""

    def on_reset(self, number: int) -> None:
        """RST_STREAM."""

    def on_settings(self, payload: bytes) -> None:
        """SETTINGS."""

    def on_ping(self, payload: bytes, *, is_ack: bool) -> None:
        """PING, or the acknowledgement of one."""

    def on_ignored_frame(self) -> None:
        """A frame that needs no reaction: PRIORITY, GOAWAY, an acknowledgement of SETTINGS, an unknown type."""

    def on_stream_error(self, error: Http2StreamError) -> None:
        """A callback raised an error that ends one stream; reading continues with the next frame."""


@dataclass(slots=True, eq=False)
class Http2FrameReader:
    """Parses what one peer sends."""

    _handler: FrameHandler
    _limits: Http2Limits
    clock: Callable[[], float] = perf_counter
    data_left: int = 0  # bytes still to come of a long DATA frame; 0 outside of one
    has_rest: bool = False  # whether received bytes are kept that `resume` has to handle
    # Received bytes that are handled in a later turn, from a position on.
    _rest: bytes = b""
    _rest_position: int = 0
    _has_preface: bool = False
    _is_stopped: bool = False
    # The bytes of an incomplete frame, and at least how many more it needs.
    _partial: bytes | bytearray = b""
    _missing: int = 0
    # A field block that CONTINUATION frames continue (section 4.3).
    _block: list[bytes] | None = None
    _block_stream: int = 0
    _block_ends_stream: bool = False

    def stop(self) -> None:
        """Call nothing any more, also for frames that are already here."""
        self._is_stopped = True
        self.has_rest = False
        self._rest = b""

    def feed(self, received: bytes | memoryview) -> None:
        """Parse what arrived, or as much of it as fits into a share of the turn. A view is only read during this call.

        After Http2ConnectionError, by which the peer broke the protocol, the reader must not be fed any more.
        """
        if self._is_stopped:
            return
        if self.has_rest:
            self.keep(received)
            return
        if self._partial:
            self._missing -= len(received)
            if self._missing > 0:
                if isinstance(self._partial, bytes):
                    self._partial = bytearray(self._partial)
                self._partial += received
                return
            data = b"".join((self._partial, received))
            self._partial = b""
        else:
            data = bytes(received)
        if not self._has_preface:
            if not self._read_preface(data):
                return
            position = len(PREFACE)
        else:
            position = 0
        self._read_frames(data, position)

    def keep(self, received: bytes | memoryview) -> None:
        if not self._is_stopped:
            self._rest = b"".join((memoryview(self._rest)[self._rest_position :], received))
            self._rest_position = 0
            self.has_rest = True

    def resume(self) -> None:
        data, position = self._rest, self._rest_position
        self._rest, self._rest_position, self.has_rest = b"", 0, False
        if not position:  # nothing of it was parsed: it may continue a frame
            self.feed(data)
        elif not self._is_stopped:
            self._read_frames(data, position)

    def on_direct_read(self, size: int) -> None:
        """Count *size* bytes of a long DATA frame that were read from the socket to their destination."""
        self.data_left -= size
        if not self.data_left:
            self._handler.on_data_chunk(b"", 0, 0, True)

    def _read_preface(self, data: bytes) -> bool:
        """Check the client's preface (section 3.4): a fixed text, then SETTINGS. False until both have arrived."""
        if not data.startswith(PREFACE[: len(data)]):
            self._is_stopped = True
            self._handler.on_other_protocol()
            return False
        if len(data) < len(PREFACE) + HEAD_SIZE:
            self._partial, self._missing = data, 1
            return False
        self._has_preface = True
        self._handler.on_preface()
        if data[len(PREFACE) + 3] != SETTINGS:
            raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, "the first frame is not SETTINGS")
        return True

    def _read_frames(self, data: bytes, position: int) -> None:
        handler, size = self._handler, len(data)
        missing = HEAD_SIZE
        deadline = 0.0
        next_look = position + _UNCLOCKED_SIZE
        kind = DATA
        while not self._is_stopped:
            if self.data_left:
                if position == size:
                    break
                position = self._deliver_data(data, position)
            else:
                if size - position < HEAD_SIZE:
                    break
                high, low, kind, flags, number = HEAD.unpack_from(data, position)
                length = high << 8 | low
                number &= MAX_STREAM  # the highest bit is reserved and must be ignored (section 4.1)
                start = position + HEAD_SIZE
                end = start + length
                if length > self._limits.settings_size:  # the least of the bounds on a frame
                    self._check_length(kind, length)
                if end > size:
                    if kind == DATA and length > DEFAULT_FRAME_SIZE and not flags & PADDED and self._block is None:
                        self._begin_data(number, flags, length)
                        position = start
                        continue
                    missing += length
                    break
                try:
                    if self._block is not None:
                        self._continue_block(kind, flags, number, data[start:end])
                    elif kind == DATA:
                        if flags & PADDED:
                            start, content_end = frames.strip_padding(DATA, flags, start, end, data)
                            handler.on_data(number, length, data, start, content_end, flags & END_STREAM != 0)
                        else:
                            handler.on_data(number, length, data, start, end, flags & END_STREAM != 0)
                    elif kind == HEADERS:
                        self._read_headers(flags, number, data, start, end)
                    elif kind == WINDOW_UPDATE and length == WINDOW_UPDATE_SIZE:
                        handler.on_window_update(number, int.from_bytes(data[start:end], "big") & MAX_WINDOW)
                    else:
                        self._read_control(kind, flags, number, data[start:end])
                except Http2StreamError as error:
                    handler.on_stream_error(error)
                position = end
            if position < size and (position >= next_look or kind == SETTINGS):
                next_look = position + _UNCLOCKED_SIZE
                now = self.clock()
                if not deadline:
                    deadline = now + SHARE_SECONDS
                elif now >= deadline and not self._is_stopped:
                    self._rest, self._rest_position, self.has_rest = data, position, True
                    return
        if position < size:
            self._partial = data[position:]
            self._missing = missing - (size - position)
        else:
            self._partial = b""

    def _check_length(self, kind: int, length: int) -> None:
        """Reject a frame that is longer than the limits allow by its head, before the rest of it is kept."""
        limits = self._limits
        if length > limits.frame_size:
            raise Http2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, f"a frame of {length} bytes")
        if kind == SETTINGS and length > limits.settings_size:
            raise Http2ConnectionError(ErrorCode.ENHANCE_YOUR_CALM, f"SETTINGS of {length} bytes")
        if kind in _BLOCK_TYPES and length > limits.block_size + _MAX_PADDING + _PRIORITY_SIZE:
            text = f"a field block of {length} bytes is too long"
            raise Http2ConnectionError(ErrorCode.ENHANCE_YOUR_CALM, text)

    # -- DATA longer than what is here (section 6.1) ------------------------------------------------------------

    def _begin_data(self, number: int, flags: int, length: int) -> None:
        self.data_left = length
        try:
            self._handler.on_data_begin(number, length, flags & END_STREAM != 0)
        except Http2StreamError as error:
            self._handler.on_stream_error(error)

    def _deliver_data(self, data: bytes, start: int) -> int:
        """Deliver a chunk of a long DATA frame; return where it ends in *data*."""
        end = start + min(self.data_left, len(data) - start, _CHUNK_SIZE)
        self.data_left -= end - start
        self._handler.on_data_chunk(data, start, end, not self.data_left)
        return end

    # -- field blocks (sections 4.3, 6.2, 6.10) -----------------------------------------------------------------

    def _read_headers(self, flags: int, number: int, data: bytes, start: int, end: int) -> None:
        if not number & 1:  # clients use odd identifiers (section 5.1.1)
            raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, f"HEADERS on stream {number}")
        if flags & (PADDED | WITH_PRIORITY):
            start, end = frames.strip_padding(HEADERS, flags, start, end, data)
        if not flags & END_HEADERS:
            self._block, self._block_stream = [data[start:end]], number
            self._block_ends_stream = flags & END_STREAM != 0
            return
        if end - start > self._limits.block_size:
            text = f"a field block of {end - start} bytes is too long"
            raise Http2ConnectionError(ErrorCode.ENHANCE_YOUR_CALM, text)
        self._handler.on_headers(number, data[start:end], flags & END_STREAM != 0)

    def _continue_block(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        block = self._block
        assert block is not None
        if kind != CONTINUATION or number != self._block_stream:
            raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, "a field block is interrupted by another frame")
        block.append(payload)
        limits = self._limits
        if len(block) > limits.continuations or sum(map(len, block)) > limits.block_size:
            raise Http2ConnectionError(ErrorCode.ENHANCE_YOUR_CALM, "a field block does not end")
        if flags & END_HEADERS:
            self._block = None
            self._handler.on_headers(number, b"".join(block), self._block_ends_stream)

    # -- all other frames ---------------------------------------------------------------------------------------

    def _read_control(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        size, handler = len(payload), self._handler
        if size != _FIXED_SIZES.get(kind, size) or (kind == GOAWAY and size < frames.GOAWAY_SIZE):
            raise Http2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, f"a frame of type {kind} with {size} bytes")
        if (kind in _STREAM_TYPES and not number) or (kind in _CONNECTION_TYPES and number):
            raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, f"a frame of type {kind} on stream {number}")
        if kind == RST_STREAM:
            handler.on_reset(number)
        elif kind == PING:
            handler.on_ping(payload, is_ack=flags & ACK != 0)
        elif kind == SETTINGS:
            if not flags & ACK:
                handler.on_settings(payload)
            elif payload:
                text = f"an acknowledgement of SETTINGS with {size} bytes"
                raise Http2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, text)
            else:
                handler.on_ignored_frame()
        elif kind in {PUSH_PROMISE, CONTINUATION}:  # clients never push; no field block is open here
            raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, f"an unexpected frame of type {kind}")
        else:
            # PRIORITY is deprecated (section 5.3.2), unknown types must be ignored (section 5.5). After GOAWAY the peer
            # opens no streams, but those that are open complete (section 6.8).
            handler.on_ignored_frame()
