"""Responses as server-sent events, written as fast as the client reads and no faster."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from naiad.frontends.http.generate_response import OK, generate_response
from naiad.frontends.http.load_header import HeaderLines, no_headers
from naiad.frontends.http.messages import Exchange, stream_head
from naiad.protocol.inference import InferResponse

EVENT_STREAM = b"text/event-stream; charset=utf-8"
_LAST_CHUNK = b"0\r\n\r\n"


def event(data: bytes) -> bytes:
    """One event; *data* is a single line, as JSON from orjson is."""
    return b"data: %b\n\n" % data


def chunk(data: bytes) -> bytes:
    """*data*, which must not be empty, in the chunked transfer coding."""
    return b"%x\r\n%b\r\n" % (len(data), data)


class TakenCount:
    """Tells the engine how many responses have left, also of those that left before the ticket was known."""

    __slots__ = ("_count", "_taken", "_ticket")

    def __init__(self, taken: Callable[[int, int], None]) -> None:
        self._taken = taken
        self._ticket = -1
        self._count = 0

    def add(self) -> None:
        """One more has left."""
        if self._ticket < 0:
            self._count += 1
        else:
            self._taken(self._ticket, 1)

    def submitted(self, ticket: int) -> None:
        """The request of these responses has this ticket."""
        self._ticket = ticket
        if self._count:
            self._taken(ticket, self._count)
            self._count = 0


class EventWriter:
    """Writes events to a connection as its client reads them.

    Events wait here while the client does not read, and only what has been handed to the transport is reported as
    taken: the engine holds the model back by that, so that the queue stays short. Events wait as JSON, not as tensors:
    these would keep the guest's memory.
    """

    __slots__ = ("_events", "_exchange", "_is_chunked", "_is_ended", "_is_writing")

    def __init__(self, exchange: Exchange) -> None:
        self._exchange: Exchange | None = exchange
        self._events: deque[tuple[bytes, TakenCount]] = deque()
        self._is_chunked: bool | None = None  # unknown until the head is sent
        self._is_ended = False
        self._is_writing = False

    @property
    def has_begun(self) -> bool:
        """Whether the status is out, so that errors can only be events."""
        return self._is_chunked is not None

    def begin(self, status: int, extra: bytes = b"") -> None:
        """Write the head."""
        exchange = self._exchange
        assert exchange is not None
        request = exchange.request
        self._is_chunked = request.may_chunk
        if not self._is_chunked:
            request.keep_alive = False  # HTTP/1.0 knows no chunks: the end of the connection is that of the stream
        exchange.on_resume(self.write)
        exchange.write(stream_head(status, EVENT_STREAM, extra, is_chunked=self._is_chunked))

    def add(self, data: bytes, taken: TakenCount) -> None:
        """Take events that are due, made of one response; `write` writes them."""
        self._events.append((data, taken))

    def end(self) -> None:
        """No events follow."""
        self._is_ended = True

    def write(self) -> None:
        """Write what is due as far as the client reads."""
        exchange = self._exchange
        if exchange is None or self._is_writing:
            return
        self._is_writing = True  # reporting one as taken may bring the next
        while self._events and not exchange.is_blocked:
            data, taken = self._events.popleft()
            if data:
                exchange.write(chunk(data) if self._is_chunked else data)
            taken.add()
        self._is_writing = False
        if self._is_ended and not self._events:
            self._exchange = None
            exchange.respond([_LAST_CHUNK] if self._is_chunked else [])


class EventStream:
    """Writes the responses of one request to its connection, each as an event."""

    __slots__ = ("_headers", "_is_ended", "_taken", "_writer")

    def __init__(self, exchange: Exchange, taken: TakenCount, headers: HeaderLines = no_headers) -> None:
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
