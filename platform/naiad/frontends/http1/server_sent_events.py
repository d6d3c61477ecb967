"""Server-sent events over an `HttpExchange`, written as fast as the client reads them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from naiad.frontends.http1.messages import HttpExchange, stream_head
from naiad.protocol.inference import Buffer, SubmittedRequest

EVENT_STREAM = b"text/event-stream; charset=utf-8"
_UNBUFFERED = b"X-Accel-Buffering: no\r\n"  # has nginx pass each event on at once; it collects responses otherwise
_LAST_CHUNK = b"0\r\n\r\n"
_WRITE_SIZE = 1 << 16  # bytes of queued events that are written at once instead of at the end of the loop's turn


def event(data: bytes) -> bytes:
    """One event. *data* is a single line, as JSON from orjson is."""
    return b"data: %b\n\n" % data


def long_event(data: Sequence[Buffer]) -> list[Buffer]:
    """As `event`, of data in parts, which are not joined."""
    return [b"data: ", *data, b"\n\n"]


def named_event(name: bytes, data: Sequence[Buffer]) -> list[Buffer]:
    """One event with a name, which clients dispatch by. *data* is the parts of a single line."""
    return [b"event: %b\ndata: " % name, *data, b"\n\n"]


def chunk(data: bytes) -> bytes:
    """*data*, which must not be empty, in the chunked transfer coding."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def _long_chunk(data: Sequence[Buffer]) -> list[Buffer]:
    return [b"%x\r\n" % sum(map(len, data)), *data, b"\r\n"]


@dataclass(slots=True, eq=False)
class SentCount:
    """Counts the responses of a request that were written, and confirms them to the engine.

    Responses may be written before their request is known: `submit` of the engine may call the sink before it returns.
    These are confirmed by `of`.
    """

    _submitted: SubmittedRequest | None = None
    _count: int = 0

    def add(self, count: int = 1) -> None:
        if self._submitted is None:
            self._count += count
        else:
            self._submitted.confirm_sent(count)

    def of(self, submitted: SubmittedRequest) -> None:
        """Confirm as responses of *submitted* what was written so far, and all that follows."""
        self._submitted = submitted
        if self._count:
            submitted.confirm_sent(self._count)
            self._count = 0


@dataclass(slots=True, eq=False)
class EventWriter:
    """Writes events to one exchange.

    The first event is written at once, those that follow at the end of the loop's turn. A fast model brings many in one
    turn, and for small events the system call costs more than everything else.

    Events are queued while the client does not read. Only events handed to the transport are confirmed as sent; the
    engine pauses the model on that account, which bounds the queue. It counts in the memory of requests (`hold`). The
    queue holds bytes rather than tensors, since tensors would keep the guest's memory.
    """

    _exchange: HttpExchange | None  # None after the end
    _events: deque[tuple[bytes | Sequence[Buffer], SentCount]] = field(default_factory=deque)
    _size: int = 0  # bytes of the events added since the last write
    _held: int = 0  # bytes of the events that wait for the client
    _head: bytes = b""  # of the response, until it is written
    _is_chunked: bool | None = None  # None until the head is made
    _is_ended: bool = False
    _is_writing: bool = False
    _is_scheduled: bool = False  # a write at the end of the loop's turn

    @property
    def has_begun(self) -> bool:
        """Whether the status is decided, so that errors can be reported in events only."""
        return self._is_chunked is not None

    def begin(self, status: int, extra: bytes = b"") -> None:
        """Make the head of the response. It is written with the first events."""
        exchange = self._exchange
        assert exchange is not None
        request = exchange.request
        self._is_chunked = request.can_chunk
        if not self._is_chunked:
            request.keep_alive = False  # without chunks, the end of the connection marks the end of the stream
        exchange.on_resume(self._write_now)
        self._head = stream_head(status, EVENT_STREAM, _UNBUFFERED + extra, is_chunked=self._is_chunked)

    def add(self, data: bytes, sent: SentCount) -> None:
        """Queue the events of one response of the model, to be counted by *sent*. `write` writes them."""
        self._events.append((data, sent))
        self._size += len(data)

    def add_long(self, data: Sequence[Buffer], sent: SentCount) -> None:
        """As `add`, of an event in parts: joining megabytes would hold the loop."""
        self._events.append((data, sent))
        self._size += max(_WRITE_SIZE, sum(map(len, data)))

    def end(self) -> None:
        self._is_ended = True

    def write(self) -> None:
        """Write the queued events as far as the client reads, at the latest at the end of this turn of the loop."""
        if self._head or self._is_ended or self._size >= _WRITE_SIZE:
            self._write_now()
        elif not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._write_now)

    def _write_now(self) -> None:
        self._is_scheduled = False
        exchange = self._exchange
        if exchange is None or self._is_writing:
            return
        self._is_writing = True  # confirming an event may bring the next one, and call this method again
        rest: list[Buffer] = []
        is_blocked = exchange.is_blocked
        while self._events and not exchange.is_blocked:
            parts, counts = self._next_parts()
            if self._is_ended and not self._events:
                rest = parts  # is written together with the last chunk
            else:
                for part in parts:
                    exchange.write(part)
            for sent, count in counts.items():
                sent.add(count)
        if self._events:
            self._held = self._held + self._size if is_blocked else sum(map(_size_of, self._events))
            exchange.hold(self._held)
        self._size = 0
        self._is_writing = False
        if self._is_ended and not self._events:
            self._exchange = None
            parts = rest or self._next_parts()[0]
            if self._is_chunked and len(parts) == 1:
                parts = [b"".join((*parts, _LAST_CHUNK))]
            elif self._is_chunked:
                parts = [*parts, _LAST_CHUNK]
            exchange.respond(parts or [b""])
        elif self._head:
            for part in self._next_parts()[0]:
                exchange.write(part)

    def _next_parts(self) -> tuple[list[Buffer], dict[SentCount, int]]:
        """What to write next, and how many responses that contains; only the head where no events are queued.

        It is one part without a long event, and nothing at all without anything to write.
        """
        parts: list[Buffer] = [self._head]
        self._head = b""
        counts: dict[SentCount, int] = {}
        size = 0
        is_long = False
        while self._events and size < _WRITE_SIZE:
            data, sent = self._events.popleft()
            # One chunk for each response: some clients parse each chunk as one event.
            if isinstance(data, bytes):
                parts.append(chunk(data) if data and self._is_chunked else data)
                size += len(data)
            else:
                parts += _long_chunk(data) if self._is_chunked else data
                size, is_long = _WRITE_SIZE, True
            counts[sent] = counts.get(sent, 0) + 1
        parts = [part for part in parts if part] if is_long else [b"".join(parts)]
        return (parts if parts[0] else []), counts


def _size_of(queued: tuple[bytes | Sequence[Buffer], SentCount]) -> int:
    data, _ = queued
    return len(data) if isinstance(data, bytes) else sum(map(len, data))
