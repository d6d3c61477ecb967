"""A client's connection: what its frames mean for its streams (RFC 9113)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from typing import Generic, Protocol, TypeVar, cast

from naiad.frontends.http2 import frames
from naiad.frontends.http2.field_blocks import FieldReader, Fields
from naiad.frontends.http2.frame_reader import Receiving
from naiad.frontends.http2.frames import (
    ACK,
    CONTINUATION,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    MAX_STREAM,
    PADDED,
    PING,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    WITH_PRIORITY,
    ConnectionProblem,
    ErrorCode,
    StreamProblem,
)
from naiad.frontends.http2.greeting import NOT_HTTP_2, greeting
from naiad.frontends.http2.keepalive import Lifespan, Lifetimes
from naiad.frontends.http2.limits import Allowance, Limits
from naiad.frontends.http2.request_head import MalformedError, RequestHead, check_fields, request_head
from naiad.frontends.http2.stream import Receiver, Stream

logger = logging.getLogger("naiad.http2")

BUFFER = 1 << 18
"""Bytes that are read from a socket at once."""
_LINGER = 1.0
"""Seconds that a client is given to read why its connection ends."""
_REMEMBERED = 1024
"""How many streams that ended early are remembered: their clients may not know yet."""
_SETTINGS_SIZE = 192
"""Longer SETTINGS count for several; there are six settings, of six bytes each."""
_SIZES = {PING: 8, RST_STREAM: 4, WINDOW_UPDATE: frames.WINDOW_UPDATE_SIZE, PRIORITY: 5}
_OF_STREAMS = {RST_STREAM, PRIORITY}
_OF_CONNECTION = {SETTINGS, PING, GOAWAY}

T = TypeVar("T")


class Application(Protocol[T]):
    """What answers requests."""

    def interpret(self, head: RequestHead) -> T:
        """Make of a request's fields what is needed of them; kept for the requests with the same fields."""

    def open(self, stream: Stream, request: T) -> Receiver | None:
        """Begin to answer a request; None where it is answered already."""


class Connection(Receiving, asyncio.BufferedProtocol, Generic[T]):
    """One client's connection."""

    def __init__(
        self,
        application: Application[T],
        connections: set[Connection[T]],
        inbox: memoryview,
        limits: Limits,
        lifetimes: Lifetimes,
    ) -> None:
        """Serve a connection.

        Args:
            application: Who answers.
            connections: Where open connections are listed.
            inbox: Where the socket is read into; shared by the connections of a loop, since what arrives is taken out
                before the loop turns to the next connection.
            limits: Bounds on what the client may do.
            lifetimes: How long the connection may live, and be silent.
        """
        Receiving.__init__(self, limits)
        self._application = application
        self._connections = connections
        self._inbox = inbox
        self._fields = FieldReader(self._interpret, limits.decoded_size)
        now = self._loop.time()
        self._resets = Allowance(limits.resets, limits.resets_per_second, now)
        self._oddities = Allowance(limits.oddities, limits.oddities_per_second, now)
        self.lifespan = Lifespan(self, lifetimes, self._loop)
        self._most_accepted = MAX_STREAM
        self._is_direct = False
        self._is_deaf = False

    def __repr__(self) -> str:
        return f"<Connection streams={len(self.streams)} last=#{self._last}>"

    # -- asyncio ------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client connected."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are none by class
        self._connections.add(self)
        self.lifespan.begin(self._limits.handshake_seconds)
        secured = transport.get_extra_info("ssl_object")
        if secured is not None and secured.selected_alpn_protocol() != "h2":
            self._turn_away()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """The client went away, or we closed."""
        self._transport = None
        self._is_over = True
        self._connections.discard(self)
        self.lifespan.end()
        self._cancel_all()

    def eof_received(self) -> bool:
        """The client has closed its end: what it asked is cancelled with the rest."""
        return False

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        """Where the next bytes of the socket go."""
        if self._data_left:
            room = self._room()
            if room is not None:
                self._is_direct = True
                return room
        return self._inbox

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes arrived."""
        if self._is_over:
            return
        self.lifespan.heard = self._loop.time()
        try:
            if self._is_direct:
                self._is_direct = False
                self._filled(nbytes)
            elif self._rest:
                self._gather(self._inbox[:nbytes])
            else:
                self._read(bytes(self._inbox[:nbytes]))
        except ConnectionProblem as problem:
            self.give_up(problem.code, problem.text)
        except Exception:
            logger.exception("cannot go on with %r", self)
            self.give_up(ErrorCode.INTERNAL_ERROR, "unforeseen")
        if self._is_blocked:
            self._heed_backlog()

    def resume_writing(self) -> None:
        """The client reads again."""
        super().resume_writing()
        if self._is_deaf and self._transport is not None:
            self._is_deaf = False
            self._transport.resume_reading()

    def _heed_backlog(self) -> None:
        """Read nothing more from a client that does not read: what answers it would have to wait here."""
        transport = self._transport
        if transport is None or self._is_deaf or transport.is_closing():
            return
        if transport.get_write_buffer_size() > self._limits.unsent:
            self._is_deaf = True
            transport.pause_reading()

    # -- requests -----------------------------------------------------------------------------------------------

    def _headers(self, flags: int, number: int, data: bytes, start: int, end: int) -> None:
        if not number & 1:
            raise ConnectionProblem(ErrorCode.PROTOCOL_ERROR, f"HEADERS on stream {number}")
        if flags & (PADDED | WITH_PRIORITY):
            start, end = frames.content(HEADERS, flags, start, end, data)
        ends = bool(flags & END_STREAM)
        if flags & END_HEADERS:
            self._block(number, data[start:end], ends=ends)
        else:
            self._begun = number, ends, [data[start:end]]

    def _continue(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        assert self._begun is not None
        begun, ends, pieces = self._begun
        if kind != CONTINUATION or number != begun:
            raise ConnectionProblem(ErrorCode.PROTOCOL_ERROR, "a block of fields that is not continued")
        pieces.append(payload)
        limits = self._limits
        if len(pieces) > limits.continuations or sum(map(len, pieces)) > limits.block_size:
            raise ConnectionProblem(ErrorCode.ENHANCE_YOUR_CALM, "a block of fields that does not end")
        if flags & END_HEADERS:
            self._begun = None
            self._block(number, b"".join(pieces), ends=ends)

    def _block(self, number: int, block: bytes, *, ends: bool) -> None:
        if len(block) > self._limits.block_size:
            raise ConnectionProblem(ErrorCode.ENHANCE_YOUR_CALM, "a block of fields that is too long")
        if number <= self._last:
            self._trailers(number, block, ends=ends)
            return
        self._last = number
        try:
            request, expected = self._fields.read(block)
        except MalformedError:
            raise StreamProblem(number, ErrorCode.PROTOCOL_ERROR) from None
        if len(self.streams) >= self._limits.streams or number > self._most_accepted:
            raise StreamProblem(number, ErrorCode.REFUSED_STREAM)
        stream = Stream(number, self, self._peer.window, self._limits.stream_window)
        self.streams[number] = stream
        if expected >= 0 or ends:
            stream.expected = expected
            self._note(stream, 0, ended=ends)
        receiver = self._application.open(stream, request)
        if receiver is None or not stream.is_open:
            return
        stream.receiver = receiver
        if ends:
            receiver.received(b"", 0, 0, True)

    def _trailers(self, number: int, block: bytes, *, ends: bool) -> None:
        """A block on a stream that is open, or was."""
        fields = self._fields.decode(block)  # whoever it is for, it may change the table
        stream = self.streams.get(number)
        if stream is None:
            if number in self._early:
                return
            raise ConnectionProblem(ErrorCode.STREAM_CLOSED, f"HEADERS on stream {number}, which is over")
        if stream.is_half_closed:
            raise StreamProblem(number, ErrorCode.STREAM_CLOSED)
        try:
            check_fields(fields)
        except MalformedError:
            ends = False
        if not ends:
            raise StreamProblem(number, ErrorCode.PROTOCOL_ERROR)
        self._note(stream, 0, ended=True)
        stream.receiver.received(b"", 0, 0, True)

    def _interpret(self, fields: Fields) -> tuple[T, int]:
        head = request_head(fields)
        return self._application.interpret(head), head.content_length

    # -- other frames -------------------------------------------------------------------------------------------

    def _turn_away(self) -> None:
        self._write(NOT_HTTP_2)
        self._linger(is_orderly=False)

    def _greeted(self) -> None:
        self._write(greeting(self._limits))
        self.lifespan.greeted()

    def _other(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        size = len(payload)
        if size != _SIZES.get(kind, size) or (kind == GOAWAY and size < frames.GOAWAY_SIZE):
            raise ConnectionProblem(ErrorCode.FRAME_SIZE_ERROR, f"a frame of kind {kind} with {size} bytes")
        if (kind in _OF_STREAMS and not number) or (kind in _OF_CONNECTION and number):
            raise ConnectionProblem(ErrorCode.PROTOCOL_ERROR, f"a frame of kind {kind} on stream {number}")
        if kind == RST_STREAM:
            self._client_reset(number)
        elif kind == PING:
            self._ping(flags, payload)
        elif kind == SETTINGS:
            self._settings(flags, payload)
        elif kind in {PUSH_PROMISE, CONTINUATION}:
            raise ConnectionProblem(ErrorCode.PROTOCOL_ERROR, f"a frame of kind {kind} out of place")
        else:  # with GOAWAY as well the client may go on with what is open
            self._spend()

    def _window_update(self, number: int, size: int) -> None:
        if not number:
            self._opened(size)
            return
        stream = self.streams.get(number)
        if stream is None:
            self._check_known(number, "WINDOW_UPDATE")
        else:
            self._opened_stream(stream, size)

    def _client_reset(self, number: int) -> None:
        self._check_known(number, "RST_STREAM")
        stream = self.streams.pop(number, None)
        if stream is None:
            return
        receiver = stream.receiver
        stream.close()
        receiver.cancelled()
        if not self._resets.take(self._loop.time()):
            raise ConnectionProblem(ErrorCode.ENHANCE_YOUR_CALM, "streams are opened and reset too fast")
        self._close_if_drained()

    def _ping(self, flags: int, payload: bytes) -> None:
        self._spend()
        if flags & ACK:
            self.lifespan.answered(payload)
            return
        self.lifespan.pinged()
        self._write(frames.ping(payload, is_answer=True))

    def _settings(self, flags: int, payload: bytes) -> None:
        self._spend(1 + len(payload) // _SETTINGS_SIZE)
        if flags & ACK:
            if payload:
                raise ConnectionProblem(ErrorCode.FRAME_SIZE_ERROR, "an acknowledgement with settings")
            return
        window = self._peer.window
        self._peer_set(payload)
        if self._peer.window != window:
            self._spend(len(self.streams) // self._limits.streams_moved)
        self._write(frames.SETTINGS_ACK)
        self._pump()  # after the answer, with which the peer begins to count by its new windows

    def _spend(self, count: int = 1) -> None:
        if not self._oddities.take(self._loop.time(), count):
            raise ConnectionProblem(ErrorCode.ENHANCE_YOUR_CALM, "too many frames that bring nothing")

    # -- the end of streams -------------------------------------------------------------------------------------

    def _break_off(self, problem: StreamProblem) -> None:
        stream = self.streams.get(problem.stream)
        if stream is not None:
            receiver = stream.receiver
            self.reset(stream, problem.code)
            receiver.cancelled()
        else:
            self._write(frames.reset(problem.stream, problem.code))
            self._remember(problem.stream)
        if problem.code != ErrorCode.REFUSED_STREAM and not self._resets.take(self._loop.time()):
            raise ConnectionProblem(ErrorCode.ENHANCE_YOUR_CALM, "too many streams with errors")

    def _forget(self, stream: Stream, *, is_reset: bool) -> None:
        stream.close()
        self.streams.pop(stream.number, None)
        if is_reset:
            self._remember(stream.number)
        if self.lifespan.is_draining:
            self._close_if_drained()

    def _remember(self, number: int) -> None:
        self._early[number] = None
        if len(self._early) > _REMEMBERED:
            self._early.popitem(last=False)

    def _cancel_all(self) -> None:
        receivers = [stream.receiver for stream in self.streams.values()]
        for stream in self.streams.values():
            stream.close()
        self.streams.clear()
        for receiver in receivers:
            receiver.cancelled()

    # -- the end of the connection ------------------------------------------------------------------------------

    @property
    def open_streams(self) -> Collection[int]:
        """Streams that are being answered."""
        return self.streams.keys()

    def ping(self, payload: bytes) -> None:
        """Send a ping."""
        self._write(frames.ping(payload))

    def announce_end(self, *, is_final: bool) -> None:
        """Tell the client to open no more streams; finally, that none it opened since will be answered."""
        if is_final:
            self._most_accepted = self._last
        self._write(frames.go_away(self._most_accepted, ErrorCode.NO_ERROR))
        self._close_if_drained()

    def _close_if_drained(self) -> None:
        if self._most_accepted < MAX_STREAM and not self.streams and not self._is_over:
            self._linger(is_orderly=True)

    def give_up(self, code: ErrorCode, text: str) -> None:
        """End the connection, and say why."""
        if self._is_over:
            return
        self._write(frames.go_away(min(self._last, self._most_accepted), code, text))
        self._linger(is_orderly=False)
        self._cancel_all()

    def _linger(self, *, is_orderly: bool) -> None:
        """Close once the client has read what was said: a close with unread bytes would take it away from it.

        What is not sent by then still is in an orderly end.
        """
        self._is_over = True
        self._flush()
        if self._transport is not None:
            if self._transport.can_write_eof():
                self._transport.write_eof()
            self._loop.call_later(_LINGER, self._transport.close if is_orderly else self._transport.abort)

    def abort(self) -> None:
        """End the connection without a word."""
        if self._transport is not None:
            self._transport.abort()
