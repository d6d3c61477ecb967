"""The sending half of a connection: answers of many streams, as far as windows and the socket take them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from naiad.frontends.http2 import frames
from naiad.frontends.http2.field_blocks import Fields, FieldWriter
from naiad.frontends.http2.frames import (
    DATA,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    HEAD,
    HEADERS,
    MAX_WINDOW,
    ConnectionProblem,
    ErrorCode,
    StreamProblem,
)
from naiad.frontends.http2.send_buffer import Buffer, Outbox
from naiad.frontends.http2.settings import PeerSettings
from naiad.frontends.http2.stream import Stream

_JOINED = 1 << 16
"""Messages up to this are written as one buffer with what is around them; so are the frames of one turn."""
_TURN = 1 << 18
"""Bytes that a stream may send before it is the next one's turn."""


class Sending:
    """Sends what streams have; what cannot be sent now waits, and each stream has its turn.

    Attributes:
        streams: Open streams by number.
        sends: How often fields or data were sent.
    """

    def __init__(self) -> None:
        self.streams: dict[int, Stream] = {}
        self.sends = 0
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        # Frames of this turn of the loop, which go together at its end.
        self._held: list[bytes] = []
        self._held_size = 0
        self._peer = PeerSettings()
        self._writer = FieldWriter()
        self._window = DEFAULT_WINDOW
        self._turns: deque[Stream] = deque()
        self._is_blocked = False
        self._is_pumping = False

    # -- for streams ----------------------------------------------------------------------------------------------

    def respond(self, stream: Stream, fields: Fields, parts: Sequence[Buffer], size: int, trailers: Fields) -> None:
        """Send a whole answer, all of whose fields are constant."""
        if not stream.is_open:
            return
        transport = self._transport
        fits = size <= self._window and size <= stream.send_window and size <= self._peer.frame_size
        if not fits or self._is_blocked or transport is None:
            self.start(stream, fields, is_constant=True, ends=False)
            self.send(stream, parts, size, None)
            self.finish(stream, trailers, is_constant=True)
            return
        number = stream.number
        self._window -= size
        self.sends += 1
        first = self._writer.constant(fields)
        last = self._writer.constant(trailers)
        pieces = [
            HEAD.pack(0, len(first), HEADERS, END_HEADERS, number)
            + first
            + HEAD.pack(size >> 8, size & 255, DATA, 0, number),
            *parts,
            HEAD.pack(0, len(last), HEADERS, END_HEADERS | END_STREAM, number),
            last,
        ]
        if size > _JOINED:
            self._flush()
            transport.writelines(pieces)
        elif len(self.streams) == 1:  # no other answer can come with it
            self._put(b"".join(pieces))
        else:
            self._put_soon(b"".join(pieces))
        self._done(stream)

    def start(self, stream: Stream, fields: Fields, *, is_constant: bool, ends: bool) -> None:
        """Send fields, the first of an answer or the last."""
        if not stream.is_open or self._transport is None:
            return
        self.sends += 1
        block = self._writer.constant(fields) if is_constant else self._writer.once(fields)
        self._put(frames.headers(stream.number, block, ends=ends, most=self._peer.frame_size))
        if ends:
            self._done(stream)

    def send(self, stream: Stream, parts: Sequence[Buffer], size: int, mark: object) -> None:
        """Send a message, at once if that may be; tell the receiver when it has left where there is a mark."""
        if not stream.is_open:
            return
        fits = size <= self._window and size <= stream.send_window and size <= self._peer.frame_size
        if fits and size <= _JOINED and not stream.outbox and not self._is_blocked and self._transport is not None:
            self._window -= size
            stream.send_window -= size
            self.sends += 1
            self._put_soon(b"".join([HEAD.pack(size >> 8, size & 255, DATA, 0, stream.number), *parts]))
            if mark is not None:
                stream.receiver.left(mark)
            return
        if stream.outbox is None:
            stream.outbox = Outbox()
        stream.outbox.put(parts, mark)
        self._queue(stream)
        self._pump()

    def finish(self, stream: Stream, trailers: Fields, *, is_constant: bool) -> None:
        """Send trailers once all messages are sent."""
        if not stream.outbox:
            self.start(stream, trailers, is_constant=is_constant, ends=True)
        else:
            stream.trailers = trailers, is_constant

    def reset(self, stream: Stream, code: ErrorCode) -> None:
        """Break a stream off."""
        if self._transport is not None:
            self._put(frames.reset(stream.number, code))
        self._forget(stream, is_reset=True)

    # -- windows, turns -------------------------------------------------------------------------------------------

    def _queue(self, stream: Stream) -> None:
        if not stream.is_queued:
            stream.is_queued = True
            self._turns.append(stream)

    def _pump(self) -> None:
        """Send what waits, as far as that may be: a loop, which calls from within it leave to it."""
        if self._is_pumping:
            return
        self._is_pumping = True
        try:
            while self._turns and not self._is_blocked and self._transport is not None:
                stream = self._turns.popleft()
                stream.is_queued = False
                if stream.is_open and stream.outbox and not self._turn_of(stream, self._transport):
                    break
        finally:
            self._is_pumping = False

    def _turn_of(self, stream: Stream, transport: asyncio.Transport) -> bool:
        """Send something of a stream; False where nothing may be sent on any."""
        assert stream.outbox is not None
        most = min(self._window, stream.send_window, _TURN)
        made, size, marks = stream.outbox.take(stream.number, most, self._peer.frame_size)
        if made:
            self.sends += 1
            self._window -= size
            stream.send_window -= size
            if size <= _JOINED:
                self._put_soon(b"".join(made))
            else:
                self._flush()
                transport.writelines(made)
        if stream.outbox:
            # Without a window of its own it waits for that, and not for its turn.
            if stream.send_window > 0:
                self._queue(stream)
        elif stream.trailers is not None:
            fields, is_constant = stream.trailers
            self.start(stream, fields, is_constant=is_constant, ends=True)
        for mark in marks:
            if stream.is_open:
                stream.receiver.left(mark)
        return self._window > 0

    def _opened(self, size: int) -> None:
        """The peer takes more on all streams."""
        if not size:
            raise ConnectionProblem(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE of nothing")
        self._window += size
        if self._window > MAX_WINDOW:
            raise ConnectionProblem(ErrorCode.FLOW_CONTROL_ERROR, "the window of the connection is too large")
        if self._turns:
            self._pump()

    def _opened_stream(self, stream: Stream, size: int) -> None:
        """The peer takes more on one stream."""
        if not size:
            raise StreamProblem(stream.number, ErrorCode.PROTOCOL_ERROR)
        stream.send_window += size
        if stream.send_window > MAX_WINDOW:
            raise StreamProblem(stream.number, ErrorCode.FLOW_CONTROL_ERROR)
        if stream.outbox and stream.send_window > 0:
            self._queue(stream)
            self._pump()

    def _peer_set(self, payload: bytes) -> None:
        """The peer has set something: windows of open streams move with their first size."""
        before = self._peer.window
        self._peer.apply(payload)
        self._writer.resize(self._peer.table_size)
        change = self._peer.window - before
        if not change:
            return
        for stream in self.streams.values():
            stream.send_window += change
            if stream.send_window > MAX_WINDOW:
                raise ConnectionProblem(ErrorCode.FLOW_CONTROL_ERROR, "INITIAL_WINDOW_SIZE makes a window too large")
            if stream.outbox and stream.send_window > 0:
                self._queue(stream)

    # -- the socket -----------------------------------------------------------------------------------------------

    def _put(self, data: bytes) -> None:
        """Write frames, behind those that wait for the end of the turn."""
        if self._held:
            self._put_soon(data)
        elif self._transport is not None:
            self._transport.write(data)

    def _put_soon(self, data: bytes) -> None:
        """Write frames with all others of this turn of the loop: each write costs as much as making a short answer."""
        if not self._held:
            self._loop.call_soon(self._flush)
        self._held.append(data)
        self._held_size += len(data)
        if self._held_size > _JOINED:
            self._flush()

    def _flush(self) -> None:
        """Write what waits for the end of the turn."""
        held, self._held = self._held, []
        self._held_size = 0
        if held and self._transport is not None:
            self._transport.write(held[0] if len(held) == 1 else b"".join(held))

    def pause_writing(self) -> None:
        """The client does not read."""
        self._is_blocked = True

    def resume_writing(self) -> None:
        """It does again."""
        self._is_blocked = False
        self._pump()

    # -- the end of streams ---------------------------------------------------------------------------------------

    def _done(self, stream: Stream) -> None:
        """The answer is sent. A client that still sends its request is told that nobody listens (RFC 9113, 8.1)."""
        if stream.is_half_closed:
            self._forget(stream, is_reset=False)
        else:
            self.reset(stream, ErrorCode.NO_ERROR)

    def _forget(self, stream: Stream, *, is_reset: bool) -> None:
        """A stream is over."""
        raise NotImplementedError
