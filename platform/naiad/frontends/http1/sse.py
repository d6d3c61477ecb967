"""Responses as server-sent events, written as fast as the client reads and no faster."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from naiad.frontends.http1.messages import Exchange, stream_head
from naiad.frontends.kserve_http.generate_response import OK, generate_response
from naiad.frontends.kserve_http.load_header import HeaderLines, no_headers
from naiad.protocol.inference import InferResponse

EVENT_STREAM = b"text/event-stream; charset=utf-8"
_LAST_CHUNK = b"0\r\n\r\n"
_TOGETHER = 1 << 16
"""Bytes from which on what is due does not wait for more."""


def event(data: bytes) -> bytes:
    """One event; *data* is a single line, as JSON from orjson is."""
    return b"data: %b\n\n" % data


def chunk(data: bytes) -> bytes:
    """*data*, which must not be empty, in the chunked transfer coding."""
    return b"%x\r\n%b\r\n" % (len(data), data)


class SentCount:
    """Tells the engine how many responses have left, also of those that left before the ticket was known."""

    __slots__ = ("_count", "_taken", "_ticket")

    def __init__(self, taken: Callable[[int, int], None]) -> None:
        self._taken = taken
        self._ticket = -1
        self._count = 0

    def add(self, count: int = 1) -> None:
        """So many more have left."""
        if self._ticket < 0:
            self._count += count
        else:
            self._taken(self._ticket, count)

    def submitted(self, ticket: int) -> None:
        """The request of these responses has this ticket."""
        self._ticket = ticket
        if self._count:
            self._taken(ticket, self._count)
            self._count = 0


class EventWriter:
    """Writes events to a connection as its client reads them.

    The first goes out at once, those that follow when the loop's turn ends: a model that is faster than the server
    brings many in a turn, and each call of the system costs more than all else that is done about a small event.

    Events wait here while the client does not read, and only what has been handed to the transport is reported as
    taken: the engine holds the model back by that, so that the queue stays short. Events wait as JSON, not as tensors:
    these would keep the guest's memory.
    """

    __slots__ = ("_events", "_exchange", "_head", "_is_chunked", "_is_due", "_is_ended", "_is_writing", "_size")

    def __init__(self, exchange: Exchange) -> None:
        self._exchange: Exchange | None = exchange
        self._events: deque[tuple[bytes, SentCount]] = deque()
        self._size = 0  # bytes of those added since any were written
        self._head = b""  # made, and not written
        self._is_chunked: bool | None = None  # unknown until the head is made
        self._is_ended = False
        self._is_writing = False
        self._is_due = False  # when this turn ends

    @property
    def has_begun(self) -> bool:
        """Whether the status is given, so that errors can only be events."""
        return self._is_chunked is not None

    def begin(self, status: int, extra: bytes = b"") -> None:
        """Make the head, which is written with the first events."""
        exchange = self._exchange
        assert exchange is not None
        request = exchange.request
        self._is_chunked = request.may_chunk
        if not self._is_chunked:
            request.keep_alive = False  # HTTP/1.0 knows no chunks: the end of the connection is that of the stream
        exchange.on_resume(self._write_now)
        self._head = stream_head(status, EVENT_STREAM, extra, is_chunked=self._is_chunked)

    def add(self, data: bytes, taken: SentCount) -> None:
        """Take events that are due, made of one response; `write` writes them."""
        self._events.append((data, taken))
        self._size += len(data)

    def end(self) -> None:
        """No events follow."""
        self._is_ended = True

    def write(self) -> None:
        """Have what is due written as far as the client reads, at the latest when this turn of the loop ends."""
        if self._head or self._is_ended or self._size >= _TOGETHER:
            self._write_now()
        elif not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._write_now)

    def _write_now(self) -> None:
        self._is_due = False
        exchange = self._exchange
        if exchange is None or self._is_writing:
            return
        self._is_writing = True  # reporting one as taken may bring the next
        rest = b""
        while self._events and not exchange.is_blocked:
            data, counts = self._take()
            if self._is_ended and not self._events:
                rest = data  # goes with the end
            elif data:
                exchange.write(data)
            for taken, count in counts.items():
                taken.add(count)
        self._size = 0
        self._is_writing = False
        if self._is_ended and not self._events:
            self._exchange = None
            rest = rest or self._take()[0]
            exchange.respond([rest + _LAST_CHUNK] if self._is_chunked else [rest])
        elif self._head:
            exchange.write(self._take()[0])

    def _take(self) -> tuple[bytes, dict[SentCount, int]]:
        """What is to be written next, and how many responses it was made of; where no events are, the head alone."""
        parts = [self._head]
        self._head = b""
        counts: dict[SentCount, int] = {}
        size = 0
        while self._events and size < _TOGETHER:
            data, taken = self._events.popleft()
            # A chunk for each response: some clients take a chunk for an event.
            parts.append(chunk(data) if data and self._is_chunked else data)
            size += len(data)
            counts[taken] = counts.get(taken, 0) + 1
        return b"".join(parts), counts


class EventStream:
    """Writes the responses of one request to its connection, each as an event."""

    __slots__ = ("_headers", "_is_ended", "_taken", "_writer")

    def __init__(self, exchange: Exchange, taken: SentCount, headers: HeaderLines = no_headers) -> None:
        self._writer = EventWriter(exchange)
        self._headers = headers
        self._taken = taken
        self._is_ended = False

    def send(self, response: InferResponse | None, final: bool) -> None:  # noqa: FBT001 - Sink
        """Write the response, or keep it until the client reads on."""
        if self._is_ended:
            return  # an event after the end would be taken for the answer to the connection's next request
        status = OK
        if response is not None:
            status, document = generate_response(response)
            self._writer.add(event(document), self._taken)
        if not self._writer.has_begun:
            self._writer.begin(status, self._headers())
        if final:
            self._is_ended = True
            self._writer.end()
        self._writer.write()
