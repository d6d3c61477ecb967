"""Bytes of one HTTP/1.1 connection in, whole requests out. Needs no event loop and no socket.

There are two ways to read a request:

1. **By its head.** Most clients send the same few heads. A head that was seen before is found by its bytes (`heads`),
   and says how long the body is. No parser runs.
2. **By httptools.** Some heads do not say all there is to know about the body: chunked bodies, `Expect: 100-continue`,
   malformed heads. The parser gets such a request and everything received in one piece with it. After the last
   whole request the reader returns to the first way.

A long body is not collected from pieces. The reader gives the socket the body's own buffer to read into: memory of the
instance that will execute the request (`ReserveInput`), or one buffer of the body's size, which is used again for the
connection's next long body.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import httptools

from naiad.frontends.http1.heads import Head, HeadCache, Headers, json_length, parsed_head, strip_upgrade
from naiad.protocol.inference import Buffer

READ_SIZE = 1 << 17
"""Size of the receive buffer. Longer bodies are read into a buffer of their own. That costs one more read than the
receive buffer does: at bodies of 64 KiB as much as it saves."""

ReserveInput: TypeAlias = Callable[[Head], memoryview | None]
"""Reserves memory for the body of the request with this head; None where a buffer of the reader does as well."""

_MAX_COPIED = 4096
"""Bodies up to this are copied out of the received bytes; longer ones are views of them."""

_FIRST_BYTES = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ\r\n")
"""Bytes that a request may begin with, or an empty line before it (RFC 9112, 2.2)."""

_PAYLOAD_TOO_LARGE = 413
_HEADERS_TOO_LARGE = 431


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Bounds on what a client may send.

    Attributes:
        header_bytes: Request line and headers together.
        body_bytes: One body.
    """

    header_bytes: int = 64 << 10
    body_bytes: int = 8 << 30


class RequestReader:
    """Reads the requests of one connection.

    The owner of the socket calls `get_buffer` and `buffer_updated` in turn, as asyncio does with a
    `BufferedProtocol`. Methods named `on_...` are called by httptools.
    """

    def __init__(
        self,
        on_request: Callable[[Head, Buffer], None],
        on_malformed: Callable[[int, str], None],
        on_expect_continue: Callable[[], None],
        *,
        limits: RequestLimits,
        heads: HeadCache,
        receive_buffer: memoryview,
        reserve_input: ReserveInput | None = None,
    ) -> None:
        """A reader at the beginning of a connection.

        Args:
            on_request: Called with head and body of each request, in order.
            on_malformed: Called once with status and message when the rest of the connection cannot be read, since the
                beginning of a next request is not known.
            on_expect_continue: Called when the client waits for `100 Continue` before it sends a body.
            limits: Bounds on requests.
            heads: Heads seen before.
            receive_buffer: Buffer of `READ_SIZE` bytes. The connections of one loop share it: the reader copies what
                it needs before the loop reads the next socket.
            reserve_input: Where to read long bodies to.
        """
        self._on_request = on_request
        self._on_malformed = on_malformed
        self._on_expect_continue = on_expect_continue
        self._limits = limits
        self._heads = heads
        self._receive_buffer = receive_buffer
        self._reserve_input = reserve_input
        # The part of the receive buffer that the next read may fill. After a long body it holds the head and JSON of a
        # request like the last one: a read that ends there leaves the tensors to a read into their own buffer.
        self._next_read = receive_buffer
        self._unread = b""  # received, and not a whole request yet
        self._is_stopped = False
        self._spare_buffer = bytearray()
        self._parser: httptools.HttpRequestParser | None = None  # None while requests are read by their heads
        self._long_body: memoryview | None = None
        self._long_body_head: Head | None = None  # None where the parser has read the head of the long body
        self._body_received = 0
        self._reset_parsed()

    def _reset_parsed(self) -> None:
        """Begin a request that the parser reads."""
        self._url = b""
        self._headers = Headers()
        self._header_size = 0
        self._head_received = 0
        self._is_in_head = False
        self._is_complete = False
        self._chunks: list[bytes] = []
        self._body_received = 0
        self._long_body = None

    # -- the socket -----------------------------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the signature of asyncio.BufferedProtocol
        """Where to read the next bytes of the socket to."""
        if self._long_body is not None:
            return self._long_body[self._body_received :]
        return self._next_read

    def buffer_updated(self, nbytes: int) -> None:
        """Read the requests that the last *nbytes* received complete."""
        if self._is_stopped:
            return
        if self._long_body is not None:
            self._body_received += nbytes
            if self._body_received == len(self._long_body):
                self._finish_long_body()
            return
        buffer = self._receive_buffer
        self._next_read = buffer
        if self._parser is not None:
            self._parse(buffer[:nbytes])
        else:
            self._read_requests(self._unread + buffer[:nbytes] if self._unread else bytes(buffer[:nbytes]))

    def stop(self) -> None:
        """Ignore what is received from now on."""
        self._is_stopped = True

    def release(self) -> None:
        """Drop all memory of the connection, which is lost."""
        self._is_stopped = True
        self._long_body = None
        self._spare_buffer = bytearray()
        self._parser = None  # it refers to this reader: a cycle that only the garbage collector would find

    def reuse_buffer(self, buffer: bytearray) -> None:
        """Read the next long body of the same size into *buffer*, which nothing refers to any more."""
        self._spare_buffer = buffer

    # -- requests read by their heads -------------------------------------------------------------------------------

    def _read_requests(self, data: bytes) -> None:
        """Report the whole requests at the beginning of *data*; keep the rest, or hand it to the parser."""
        position, size = 0, len(data)
        while position < size and self._parser is None:
            end = data.find(b"\r\n\r\n", position) + 4
            if end < 4:  # noqa: PLR2004 - not found: -1 + 4
                if size - position > self._limits.header_bytes:
                    self._reject_header()
                    return
                if _cannot_become_head(data, position):
                    self._hand_to_parser(data, position)
                break
            head = self._heads.find(data[position:end]) if end - position <= self._limits.header_bytes else None
            if head is None:
                self._hand_to_parser(data, position)
                return
            following = end + head.body_size
            if following > size:
                if head.body_size > READ_SIZE:
                    self._begin_long_body(head, memoryview(data)[end:], end - position)
                    return
                break
            body = data[end:following] if head.body_size <= _MAX_COPIED else memoryview(data)[end:following]
            self._on_request(head, body)
            position = following
        if self._parser is None:
            self._unread = data[position:] if position else data

    def _begin_long_body(self, head: Head, received: memoryview, head_size: int) -> None:
        """Choose the buffer of a long body. *received* bytes of it came together with the head."""
        if head.body_size > self._limits.body_bytes:
            self._reject_body(head.body_size)
            return
        self._unread = b""
        self._long_body_head = head
        body = None if self._reserve_input is None else self._reserve_input(head)
        if body is None:
            body = self._body_buffer(head.body_size)
        body[: len(received)] = received
        self._long_body = body
        self._body_received = len(received)
        self._next_read = self._receive_buffer[: head_size + json_length(head.headers)]

    def _finish_long_body(self) -> None:
        body, self._long_body = self._long_body, None
        assert body is not None
        head, self._long_body_head = self._long_body_head, None
        if head is None:
            head = self._parsed_head()
            self._parser = None  # it waits for this body, which it will not see
        self._on_request(head, body)

    def _body_buffer(self, size: int) -> memoryview:
        # The spare buffer is free: `reuse_buffer` was called after the request that it belonged to was answered.
        spare, self._spare_buffer = self._spare_buffer, bytearray()
        return memoryview(spare if len(spare) == size else bytearray(size))

    # -- requests read by httptools -----------------------------------------------------------------------------------

    def _hand_to_parser(self, data: bytes, position: int) -> None:
        self._parser = httptools.HttpRequestParser(self)
        self._parse(strip_upgrade(data[position:]))

    def _parse(self, data: Buffer) -> None:
        assert self._parser is not None
        self._unread = b""
        try:
            self._parser.feed_data(data)
            if self._is_in_head:
                # `on_header` is called when a header is complete, which an endless one never is.
                self._head_received += len(data)
                if self._head_received > self._limits.header_bytes + READ_SIZE:
                    self._reject_header()
            elif self._is_complete:
                self._parser = None
        except httptools.HttpParserUpgrade:
            self._reject(501, "protocol upgrades are not supported")
        except httptools.HttpParserError as problem:
            self._reject(400, f"malformed HTTP request: {problem}")

    def on_message_begin(self) -> None:
        """A request begins."""
        self._reset_parsed()
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
        """The head is complete; a body may follow."""
        self._is_in_head = False
        length = self._headers.get(b"content-length", b"")
        if length.isdigit() and b"transfer-encoding" not in self._headers:
            size = int(length)
            if size > self._limits.body_bytes:
                self._reject_body(size)
                return
            if size > READ_SIZE:
                self._long_body = self._body_buffer(size)
        if self._headers.get(b"expect", b"").lower() == b"100-continue":
            self._on_expect_continue()

    def on_body(self, body: bytes) -> None:
        """Part of a body."""
        if self._long_body is not None:
            self._long_body[self._body_received : self._body_received + len(body)] = body
            self._body_received += len(body)
            return
        self._chunks.append(body)
        self._body_received += len(body)
        if self._body_received > self._limits.body_bytes:
            self._reject(_PAYLOAD_TOO_LARGE, f"request body exceeds the limit of {self._limits.body_bytes} bytes")

    def on_message_complete(self) -> None:
        """The request is complete."""
        self._is_complete = True
        if self._is_stopped:
            return
        body: Buffer
        if self._long_body is not None:
            body, self._long_body = self._long_body, None
        else:
            chunks = self._chunks
            body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        self._on_request(self._parsed_head(), body)

    def _parsed_head(self) -> Head:
        assert self._parser is not None
        return parsed_head(self._parser, self._url, self._headers, 0)

    # -- requests that are rejected -----------------------------------------------------------------------------------

    def _count_header(self, size: int) -> None:
        self._header_size += size
        if self._header_size > self._limits.header_bytes:
            self._reject_header()

    def _reject_header(self) -> None:
        self._reject(
            _HEADERS_TOO_LARGE, f"request line and headers exceed the limit of {self._limits.header_bytes} bytes"
        )

    def _reject_body(self, size: int) -> None:
        self._reject(
            _PAYLOAD_TOO_LARGE, f"request body of {size} bytes exceeds the limit of {self._limits.body_bytes} bytes"
        )

    def _reject(self, status: int, message: str) -> None:
        if not self._is_stopped:
            self._is_stopped = True
            self._on_malformed(status, message)


def _cannot_become_head(data: bytes, position: int) -> bool:
    """Whether bytes without an empty line will never be a head: they are TLS, for instance, or lines end in LF alone.

    The rest of such a head will not come, and the client waits for a response without a time limit.
    """
    return (
        data[position] not in _FIRST_BYTES or data.find(b"\n\n", position) >= 0 or data.find(b"\n\r\n", position) >= 0
    )
