"""The sending half of a connection: responses of many streams to one socket.

Three things can hold a message back: the connection's window and the stream's window (`flow_control.py`), and a
transport whose buffer is full. What is held back waits in its stream's `SendBuffer`. Streams with unsent data queue
here and take turns of 256 KiB, so that one long response does not delay all others.

What is held back counts in the memory of requests (`request_budget.py`): that of each stream by itself, and what the
transport has of all of them.

Each call of `transport.write` is a system call, which costs as much as making a short response. So `FrameWriter`
collects what is written in one turn of the event loop and writes it at the end of that turn.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter

from naiad.core.turns import SHARE_SECONDS
from naiad.frontends.http2 import frames
from naiad.frontends.http2.field_blocks import FieldBlockEncoder, Fields
from naiad.frontends.http2.flow_control import SendFlow
from naiad.frontends.http2.frames import DATA, DEFAULT_FRAME_SIZE, END_HEADERS, END_STREAM, HEAD, HEADERS, Setting
from naiad.frontends.http2.send_buffer import Buffer, SendBuffer
from naiad.frontends.http2.settings import DEFAULT_TABLE_SIZE, peer_settings
from naiad.frontends.http2.stream import Stream
from naiad.frontends.request_budget import RequestBudget
from naiad.frontends.unread_bytes import unsent_bytes
from naiad.frontends.unread_responses import COUNTED_FROM, UnreadResponse

_JOIN_LIMIT = 1 << 16  # bytes of messages joined with the frames around them; above, the copy costs more
_TURN_SIZE = 1 << 18  # bytes that a stream may send before the next one in the queue
# Fewer bytes of a queued message are a fragment: they do not count as an answer. A client that opens a window byte by
# byte has its response in as many pieces (CVE-2019-9511).
_FRAGMENT_SIZE = 1 << 12
_HIGH_WATER = 1 << 16  # bytes that the kernel has not taken of a client that does not read: asyncio's own number


@dataclass(slots=True, eq=False)
class FrameWriter:
    """Writes frames to a transport, those of one turn of the event loop together.

    For the budget, it is the `Reader` of what the transport has.
    """

    _loop: asyncio.AbstractEventLoop
    _budget: RequestBudget
    transport: asyncio.Transport | None = None  # None outside of a connection, when writes do nothing
    is_paused: bool = False  # whether the transport's buffer is full, or has the rest of a long response
    _unread: UnreadResponse | None = None  # while the transport is paused
    _pending: list[bytes] = field(default_factory=list)
    _pending_size: int = 0

    def open(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        # Resumed only when it is empty: a few bytes may keep the memory of a long tensor.
        transport.set_write_buffer_limits(_HIGH_WATER, 0)

    def close(self) -> None:
        self.transport = None
        self._release()

    def disconnect(self) -> None:
        """Close the connection without GOAWAY (see `Reader`); write nothing more, which uvloop takes for an error."""
        transport = self.transport
        self.close()
        if transport is not None:
            transport.abort()

    def pause(self) -> None:
        """Write only what is short: the client does not read."""
        self.is_paused = True
        if self.transport is not None and self._unread is None:
            self._unread = self._budget.open_unread(self, self.transport.get_write_buffer_size())

    def resume(self) -> None:
        """Write everything: the kernel has all that was written."""
        self.is_paused = False
        self._release()
        if self.transport is not None:
            self.transport.set_write_buffer_limits(_HIGH_WATER, 0)

    def hold(self, size: int) -> None:
        """Count a response of *size* bytes, whose end was just written, until the kernel has all of it."""
        transport = self.transport
        if transport is None or not transport.get_write_buffer_size():
            return
        if not self.is_paused:
            transport.set_write_buffer_limits(0)  # which calls `pause`, and `resume` when it is empty
        if self._unread is not None:
            self._unread.resize(self._unread.size + size)

    @property
    def waiting(self) -> int:
        return 0 if self.transport is None else self.transport.get_write_buffer_size()

    def read_count(self) -> int:
        """Bytes that the client has read, up to a constant, while the transport is paused: see `Reader`."""
        return -self.unsent

    @property
    def unsent(self) -> int:
        """Bytes that were written and that the client's kernel has not acknowledged."""
        return unsent_bytes(self.transport)

    def _release(self) -> None:
        unread, self._unread = self._unread, None
        if unread is not None:
            unread.release()

    def write(self, data: bytes) -> None:
        """Write frames now, unless earlier ones wait for the end of the turn."""
        if self._pending:
            self.write_later(data)
        elif self.transport is not None:
            self.transport.write(data)

    def write_later(self, data: bytes) -> None:
        if not self._pending:
            self._loop.call_soon(self.flush)
        self._pending.append(data)
        self._pending_size += len(data)
        if self._pending_size > _JOIN_LIMIT:
            self.flush()

    def write_parts(self, parts: Sequence[Buffer]) -> None:
        """Write long parts now, without joining them, behind what waits."""
        self.flush()
        if self.transport is not None:
            self.transport.writelines(parts)

    def flush(self) -> None:
        pending, self._pending = self._pending, []
        self._pending_size = 0
        if pending and self.transport is not None:
            self.transport.write(pending[0] if len(pending) == 1 else b"".join(pending))


@dataclass(slots=True, eq=False)
class Sender:
    """Sends responses as far as flow control and the transport allow. Implements `ResponseSender`."""

    _writer: FrameWriter
    _streams: Mapping[int, Stream]
    _on_response_sent: Callable[[Stream], None]  # the transport has its whole response
    _defer: Callable[[Callable[[], None]], None]
    _budget: RequestBudget
    flow: SendFlow = field(default_factory=SendFlow)
    count: int = 0  # of field sections and pieces of data (gRPC's ping rules need it)
    fragments: int = 0  # how many of these are fragments
    _frame_size: int = DEFAULT_FRAME_SIZE  # of the peer
    _encoder: FieldBlockEncoder = field(default_factory=FieldBlockEncoder)
    _queue: deque[Stream] = field(default_factory=deque)
    _is_sending: bool = False
    _is_deferred: bool = False  # the share of a turn is used up: what is queued is sent in a later one

    # -- responses ----------------------------------------------------------------------------------------------

    def send_response(
        self, stream: Stream, fields: Fields, parts: Sequence[Buffer], size: int, trailers: Fields
    ) -> None:
        """Send a whole response, all of whose fields are constant.

        The usual case: the message fits into one frame and into both windows. Then HEADERS, DATA and trailers are made
        and written at once, without a `SendBuffer`.
        """
        if not stream.is_open:
            return
        writer = self._writer
        if writer.is_paused or size > self._frame_size or not self.flow.try_consume(stream, size):
            self.send_headers(stream, fields, is_constant=True, ends=False)
            self.send_data(stream, parts, size, None)
            self.send_trailers(stream, trailers, is_constant=True)
            return
        number = stream.number
        self.count += 1
        first = self._encoder.encode_constant(fields)
        last = self._encoder.encode_constant(trailers)
        pieces = [
            HEAD.pack(0, len(first), HEADERS, END_HEADERS, number)
            + first
            + HEAD.pack(size >> 8, size & 255, DATA, 0, number),
            *parts,
            HEAD.pack(0, len(last), HEADERS, END_HEADERS | END_STREAM, number),
            last,
        ]
        if size > _JOIN_LIMIT:
            writer.write_parts(pieces)
            writer.hold(size)
        elif len(self._streams) == 1:  # no other response can join this one: write it without a detour over the loop
            writer.write(b"".join(pieces))
        else:
            writer.write_later(b"".join(pieces))
        self._on_response_sent(stream)

    def send_headers(self, stream: Stream, fields: Fields, *, is_constant: bool, ends: bool) -> None:
        if not stream.is_open:
            return
        self.count += 1
        encoder = self._encoder
        block = encoder.encode_constant(fields) if is_constant else encoder.encode_once(fields)
        self._writer.write(frames.headers(stream.number, block, ends=ends, max_frame_size=self._frame_size))
        if ends:
            self._on_response_sent(stream)

    def send_data(self, stream: Stream, parts: Sequence[Buffer], size: int, marker: object) -> None:
        """Send a message, or queue what may not be sent yet."""
        if not stream.is_open:
            return
        if (
            size <= _JOIN_LIMIT
            and size <= self._frame_size
            and not stream.unsent_data
            and not self._writer.is_paused
            and self.flow.try_consume(stream, size)
        ):
            self.count += 1
            self._writer.write_later(b"".join([HEAD.pack(size >> 8, size & 255, DATA, 0, stream.number), *parts]))
            if marker is not None:
                stream.handler.on_sent(marker)
            return
        if stream.unsent_data is None:
            stream.unsent_data = SendBuffer()
        stream.unsent_data.put(parts, size, marker)
        self._enqueue(stream)
        self.send_queued()
        unsent = stream.unsent_data  # None if the stream has ended meanwhile
        if unsent:
            if unsent.unread is None and unsent.memory >= COUNTED_FROM:
                unsent.unread = self._budget.open_unread(stream)
            unsent.count()

    def send_trailers(self, stream: Stream, trailers: Fields, *, is_constant: bool) -> None:
        if not stream.unsent_data:
            self.send_headers(stream, trailers, is_constant=is_constant, ends=True)
        else:
            stream.unsent_trailers = trailers, is_constant

    # -- what opens windows -------------------------------------------------------------------------------------

    def apply_settings(self, payload: bytes) -> bool:
        """Apply the peer's SETTINGS; return whether the windows of open streams moved.

        Nothing is sent: the caller first acknowledges the SETTINGS, then calls `send_queued`. Clients apply new windows
        when they see the acknowledgement and end a connection that uses them earlier.
        """
        settings = peer_settings(payload)
        self._frame_size = settings.get(Setting.MAX_FRAME_SIZE, self._frame_size)
        self._encoder.on_table_size(settings.get(Setting.HEADER_TABLE_SIZE, DEFAULT_TABLE_SIZE))
        window = settings.get(Setting.INITIAL_WINDOW_SIZE, self.flow.initial_window)
        if not self.flow.change_initial_window(window, self._streams.values()):
            return False
        for stream in self._streams.values():
            if stream.unsent_data and stream.send_window > 0:
                self._enqueue(stream)
        return True

    def on_window_update(self, increment: int) -> None:
        self.flow.on_window_update(increment)
        if self._queue:
            self.send_queued()

    def on_stream_window_update(self, stream: Stream, increment: int) -> None:
        self.flow.on_stream_window_update(stream, increment)
        if stream.unsent_data and stream.send_window > 0:
            self._enqueue(stream)
            self.send_queued()

    # -- turns --------------------------------------------------------------------------------------------------

    def _enqueue(self, stream: Stream) -> None:
        if not stream.is_queued:
            stream.is_queued = True
            self._queue.append(stream)

    def send_queued(self) -> None:
        """Send what is queued, as far as that may be, for a share of the turn.

        A client that reads as fast as this sends never lets the transport's buffer become full. Handlers called from
        within the loop may send more. Such a nested call returns at once: the loop that runs already takes what it has
        queued.
        """
        if self._is_sending or self._is_deferred:
            return
        self._is_sending = True
        deadline = 0.0
        try:
            while self._queue and not self._writer.is_paused:
                stream = self._queue.popleft()
                stream.is_queued = False
                if stream.is_open and stream.unsent_data and not self._take_turn(stream, stream.unsent_data):
                    break
                if not self._queue:
                    break
                now = perf_counter()
                if not deadline:
                    deadline = now + SHARE_SECONDS
                elif now >= deadline:
                    self._is_deferred = True
                    self._defer(self._resume)
                    break
        finally:
            self._is_sending = False

    def _resume(self) -> None:
        self._is_deferred = False
        self.send_queued()

    def _take_turn(self, stream: Stream, unsent: SendBuffer) -> bool:
        """Send some data of a stream; False where the connection's window is used up."""
        allowed = min(self.flow.available(stream), _TURN_SIZE)
        pieces, size, markers = unsent.take(stream.number, allowed, self._frame_size)
        if pieces:
            self.count += 1
            if size < _FRAGMENT_SIZE:
                self.fragments += 1
            self.flow.consume(stream, size)
            if size <= _JOIN_LIMIT:
                self._writer.write_later(b"".join(pieces))
            else:
                self._writer.write_parts(pieces)
        # Of a response that took one turn nothing is counted, but the last of it, in the transport, may keep all of it.
        held = unsent.kept if unsent.unread is None else unsent.unread.size
        unsent.count()
        if not unsent and size > _JOIN_LIMIT and held >= COUNTED_FROM:  # shorter rests were copied, and keep nothing
            self._writer.hold(held)
        if unsent:
            # A stream whose own window is empty waits for a WINDOW_UPDATE rather than for its turn.
            if stream.send_window > 0:
                self._enqueue(stream)
        elif stream.unsent_trailers is not None:
            fields, is_constant = stream.unsent_trailers
            self.send_headers(stream, fields, is_constant=is_constant, ends=True)
        for marker in markers:
            if stream.is_open:
                stream.handler.on_sent(marker)
        return self.flow.window > 0
