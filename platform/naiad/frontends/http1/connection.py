"""HTTP/1.1 on a raw asyncio protocol: bytes in, whole requests out. How they are answered: `answering`.

httptools parses, each distinct head once (`heads`). Requests that need more than their head to be understood (chunked
bodies, `Expect`) go through the parser as a whole, and so does what comes in one piece with them.

Long bodies are read straight to where the model that they ask finds them (`Landing`). Where there is no such place,
they are read into one buffer of their size, which is kept for the connection's next long body.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, cast

import httptools

from naiad.frontends.http1.answering import Answering
from naiad.frontends.http1.heads import Head, HeadCache, Headers, parsed_head, tensors_at, without_upgrade
from naiad.frontends.http1.messages import Exchange, error_text
from naiad.protocol.inference import Buffer

BUFFER = 1 << 17
"""So much is read at once. Longer bodies are read straight to their place, which costs one read more: at 64 KiB as much
as it saves."""

Landing: TypeAlias = Callable[[Head], memoryview | None]
"""Gives the body of the request with this head a place to be read to; None where it makes no difference."""

_SLICED = 4096
"""Bodies up to this are cut out of what was received; longer ones are views of it."""

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

_FIRST = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ\r\n")
"""Bytes that a request, and an empty line before it, may begin with."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on what a client may send.

    Attributes:
        header_bytes: Request line and headers together.
        body_bytes: One body.
    """

    header_bytes: int = 64 << 10
    body_bytes: int = 8 << 30


class Connection(Answering, asyncio.BufferedProtocol):
    """One client connection; also the exchange of the request that is being answered."""

    def __init__(
        self,
        handle: Callable[[Exchange], None],
        cancel: Callable[[int], None],
        connections: set[Connection],
        limits: Limits,
        heads: HeadCache,
        inbox: memoryview,
        landing: Landing | None = None,
    ) -> None:
        """Serve a connection.

        Args:
            handle: Called with each request in turn; answers it, now or later.
            cancel: Called with the ticket of a request whose client went away.
            connections: Where open connections are listed.
            limits: Bounds on requests.
            heads: Heads seen before.
            inbox: Where the socket is read into; shared by the connections of a loop, since what arrives is taken out
                before the loop turns to the next connection.
            landing: Where to read long bodies to.
        """
        Answering.__init__(self, handle, cancel)
        self._connections = connections
        self._limits = limits
        self._view = inbox
        self._landing = landing
        self._begin = inbox  # where a request's beginning is read into: no more of it than comes before a long body
        self._heads = heads
        self._rest = b""  # received and not yet a whole request
        self._direct_head: Head | None = None
        self._parser: httptools.HttpRequestParser | None = None
        self._reset()

    def _reset(self) -> None:
        self._url = b""
        self._headers = Headers()
        self._header_size = 0
        self._head_received = 0
        self._is_in_head = False
        self._is_whole = False
        self._chunks: list[bytes] = []
        self._received = 0
        self._direct: memoryview | None = None

    # -- asyncio ------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client connected."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are none by class
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """The client went away, or we closed."""
        self._connections.discard(self)
        self._direct = None
        self._client_left()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        """Where the next bytes of the socket go."""
        if self._direct is not None:
            return self._direct[self._received :]
        return self._begin

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes arrived."""
        if self._is_closing:
            return  # after what was refused nothing counts any more
        if self._direct is not None:
            self._received += nbytes
            if self._received == len(self._direct):
                self._finish_direct()
            return
        self._begin = self._view
        if self._parser is not None:
            self._parse(self._view[:nbytes])
        else:
            self._take(self._rest + self._view[:nbytes] if self._rest else bytes(self._view[:nbytes]))

    def eof_received(self) -> bool:
        """The client has closed its end, which most do when they go away: what it asked is cancelled with the rest."""
        return False

    # -- requests recognised by their head ------------------------------------------------------------------------

    def _take(self, data: bytes) -> None:
        """Take whole requests off the front of *data*; keep the rest, or leave it to the parser."""
        position, size = 0, len(data)
        while position < size and self._parser is None:
            end = data.find(b"\r\n\r\n", position) + 4
            if end < 4:  # noqa: PLR2004 - not found
                if size - position > self._limits.header_bytes:
                    self._refuse_header()
                    return
                if _is_no_head(data, position):
                    self._hand_to_parser(data, position)
                break
            head = self._heads.find(data[position:end]) if end - position <= self._limits.header_bytes else None
            if head is None:
                self._hand_to_parser(data, position)
                return
            following = end + head.body_size
            if following > size:
                if head.body_size > BUFFER:
                    self._begin_direct_body(head, memoryview(data)[end:], end - position)
                    return
                break
            body = data[end:following] if head.body_size <= _SLICED else memoryview(data)[end:following]
            self._arrived(head, body)
            position = following
        if self._parser is None:
            self._rest = data[position:] if position else data

    def _hand_to_parser(self, data: bytes, position: int) -> None:
        self._parser = httptools.HttpRequestParser(self)
        self._parse(without_upgrade(data[position:]))

    def _begin_direct_body(self, head: Head, begun: memoryview, head_size: int) -> None:
        if head.body_size > self._limits.body_bytes:
            self._refuse_body(head.body_size)
            return
        self._rest = b""
        self._direct_head = head
        self._direct = None if self._landing is None else self._landing(head)
        if self._direct is None:
            self._begin_direct(head.body_size)
        assert self._direct is not None
        self._direct[: len(begun)] = begun
        self._received = len(begun)
        self._begin = self._view[: head_size + tensors_at(head.headers)]  # the next request may be like this one

    # -- httptools ----------------------------------------------------------------------------------------------

    def _parse(self, data: Buffer) -> None:
        assert self._parser is not None
        self._rest = b""
        try:
            self._parser.feed_data(data)
            if self._is_in_head:
                # The parser tells of a header once it is whole, which an endless one never is.
                self._head_received += len(data)
                if self._head_received > self._limits.header_bytes + BUFFER:
                    self._refuse_header()
            elif self._is_whole:
                self._parser = None  # what follows is understood by its head again
        except httptools.HttpParserUpgrade:
            self._refuse(501, "protocol upgrades are not supported")
        except httptools.HttpParserError as problem:
            if not self._is_closing:
                self._refuse(400, f"malformed HTTP request: {problem}")

    def on_message_begin(self) -> None:
        """A request begins."""
        self._reset()
        self._is_in_head = True

    def on_url(self, url: bytes) -> None:
        """Part of the request target."""
        self._url += url
        self._count_header(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        self._headers.add(name, value)
        self._count_header(len(name) + len(value) + 4)

    def on_headers_complete(self) -> None:
        """All headers are here: a body may follow."""
        assert self._parser is not None
        self._is_in_head = False
        length = self._headers.get(b"content-length", b"")
        if length.isdigit() and b"transfer-encoding" not in self._headers:
            size = int(length)
            if size > self._limits.body_bytes:
                self._refuse_body(size)
                return
            if size > BUFFER:
                self._begin_direct(size)
        if self._headers.get(b"expect", b"").lower() == b"100-continue" and self._transport is not None:
            self._transport.write(_CONTINUE)

    def on_body(self, body: bytes) -> None:
        """Part of a body."""
        if self._direct is not None:
            self._direct[self._received : self._received + len(body)] = body
            self._received += len(body)
            return
        self._chunks.append(body)
        self._received += len(body)
        if self._received > self._limits.body_bytes:
            self._refuse(413, f"request body exceeds the limit of {self._limits.body_bytes} bytes")

    def on_message_complete(self) -> None:
        """A request is whole."""
        self._is_whole = True
        body: Buffer
        if self._direct is not None:
            body = self._direct[: self._received]
            self._direct = None
        else:
            chunks = self._chunks
            body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        self._arrived(self._parsed_head(), body)

    def _parsed_head(self) -> Head:
        assert self._parser is not None
        return parsed_head(self._parser, self._url, self._headers, 0)

    # -- bodies --------------------------------------------------------------------------------------------------

    def _begin_direct(self, size: int) -> None:
        # Nobody else holds the kept buffer: its request was answered before this one could begin to be handled,
        # unless that is still going on, in which case it is not kept yet.
        kept, self._kept = self._kept, bytearray()
        self._direct = memoryview(kept if len(kept) == size else bytearray(size))

    def _finish_direct(self) -> None:
        body = self._direct
        assert body is not None
        head, self._direct_head = self._direct_head, None
        self._direct = None
        if head is None:
            head = self._parsed_head()
            self._parser = None  # it still waits for this body
        self._arrived(head, body)

    def _count_header(self, size: int) -> None:
        self._header_size += size
        if self._header_size > self._limits.header_bytes:
            self._refuse_header()

    def _refuse_header(self) -> None:
        self._refuse(431, f"request line and headers exceed the limit of {self._limits.header_bytes} bytes")

    def _refuse_body(self, size: int) -> None:
        self._refuse(413, f"request body of {size} bytes exceeds the limit of {self._limits.body_bytes} bytes")

    def _refuse(self, status: int, message: str) -> None:
        """Answer what cannot be parsed, and close: there is no telling where the next request would begin."""
        if self._is_closing or self._transport is None:
            return
        self._is_closing = True
        if self._current is None:
            self._transport.writelines(error_text(status, message, extra=b"Connection: close\r\n"))
            self._transport.close()


def _is_no_head(data: bytes, position: int) -> bool:
    """Whether the beginning of a head will never be whole: it is TLS, say, or its lines end in another way."""
    return data[position] not in _FIRST or data.find(b"\n\n", position) >= 0 or data.find(b"\n\r\n", position) >= 0
