"""Bytes of one HTTP/1.1 connection in, whole requests out. Needs no event loop and no socket.

There are two ways to read a request:

1. **By its head.** Most clients send the same few heads. A head that was seen before is found by its bytes (`heads`),
   and says how long the body is. No parser runs.
2. **By httptools.** Some heads do not say all there is to know about the body: chunked bodies, `Expect: 100-continue`,
   malformed heads. The parser gets such a request and everything received in one piece with it. After the last
   whole request the reader returns to the first way.

A long body is not collected from pieces. The reader gives the socket the body's own buffer to read into: memory of the
instance that will execute the request (`ReserveInput`), or a buffer that is used again for later bodies (`LongBody`).
The budget for bodies may stop and refuse it.

Before the first byte of a body of more than 1 MiB is stored, `Admit` says whether the request can succeed at all. If
not, it is reported without its body as the last request of the connection, and what follows is discarded. An upload to
a path that does not exist costs nothing.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field, replace
from time import perf_counter
from typing import TypeAlias

import httptools

from naiad.core.turns import SHARE_SECONDS
from naiad.frontends.callbacks import do_nothing
from naiad.frontends.http1.heads import Head, HeadCache, Headers, json_length, parsed_head, strip_upgrade
from naiad.frontends.http1.long_body import LongBody, trusted_size
from naiad.frontends.http1.timeouts import Phase
from naiad.frontends.request_budget import Charge, too_long_for_budget
from naiad.frontends.request_memory import RequestMemory
from naiad.protocol.inference import Buffer

# Size of the receive buffer. Longer bodies are read into a separate buffer. That costs one more read than the receive
# buffer does: at bodies of 64 KiB as much as it saves.
READ_SIZE = 1 << 17

ReserveInput: TypeAlias = Callable[[Head], memoryview | None]  # None where a buffer of the reader does as well

Admit: TypeAlias = Callable[[Head], bool]  # if it may not succeed, its handler responds without its body

_MAX_COPIED = 4096  # bodies up to this are copied out of the received bytes; longer ones are views of them

# Bytes that are parsed at once after the end of a request: there may be a dozen in them. Each of them may cost a
# question to the coordinator, 0.3 ms, where the server has several processes.
_FIRST_STEP = 1 << 10
_PARSER_STEP = 1 << 14  # The same while it reads one long request. Parts of a body cost little each.
# Bytes of a long body that are read in a turn of the loop. The kernel may have more: 5.4 MiB took 9 ms, most of it for
# pages that are touched for the first time.
_READ_AT_ONCE = 1 << 20
_DISCARDED = 1 << 20  # bytes of a body that is received even if its request cannot succeed, to keep the connection
_MAX_CHUNKS = 1 << 10  # parts of a body that are kept as separate objects

# Bytes that a request may begin with, or an empty line before it (RFC 9112, 2.2).
_FIRST_BYTES = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ\r\n")

_PAYLOAD_TOO_LARGE = 413
_HEADERS_TOO_LARGE = 431
_UNAVAILABLE = 503
_VERSION_NOT_SUPPORTED = 505
_HTTP_2_PREFACE = b"PRI * HTTP/2.0\r\n"


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Bounds on what a client may send."""

    header_bytes: int = 64 << 10  # request line and headers together
    body_bytes: int = 8 << 30  # one body


@dataclass(eq=False)
class RequestReader:
    """Reads the requests of one connection.

    The connection calls `get_buffer` and `buffer_updated` in turn, as asyncio does with a
    `BufferedProtocol`. Methods named `on_...` are called by httptools.
    """

    _on_request: Callable[[Head, Buffer], None]
    # Called once with status and message when the rest of the connection cannot be read, since the beginning of a next
    # request is not known.
    _on_malformed: Callable[[int, str], None]
    _on_expect_continue: Callable[[], None]  # the client waits for `100 Continue` before the body
    # Called when the requests received together took the connection's share of this turn of the loop (`turns`). The
    # connection holds the reader, and releases it in a later turn.
    _on_share_used: Callable[[], None]
    _: KW_ONLY
    limits: RequestLimits
    heads: HeadCache
    # Buffer of `READ_SIZE` bytes. The connections of one loop share it: the reader copies what it needs before the loop
    # reads the next socket.
    receive_buffer: memoryview
    memory: RequestMemory
    admit: Admit | None = None  # whether a request with a long body may succeed; None for all
    reserve_input: ReserveInput | None = None
    # Called instead of `_on_request` with a request after which nothing is read: one that *admit* does not accept,
    # without its body, or one whose end programs may find in different places.
    on_last: Callable[[Head, Buffer], None] | None = None
    on_stopped: Callable[[bool], None] = do_nothing  # whether the budget stops its body
    _is_body_stopped: bool = False
    # The part of the receive buffer that the next read may fill. After a long body it holds the head and JSON of a
    # request like the last one: a read that ends there leaves the tensors to a read into their own buffer.
    _next_read: memoryview = field(init=False)
    _unread: bytes = b""  # received, and not a whole request yet
    _is_stopped: bool = False
    _is_held: bool = False  # what is received is kept in `_unread`
    _parser: httptools.HttpRequestParser | None = None  # None while requests are read by their heads
    _long_body: LongBody | None = None
    _long_body_head: Head | None = None  # None where the parser has read the head of the long body
    _longest_body: int = 0  # of those that are complete
    # What the bodies count that are complete and belong to requests without a response, by the id of their memory.
    _charges: dict[int, Charge] = field(default_factory=dict)
    _chunked_body: LongBody | None = None  # a body that only its last chunk ends, once it is long

    def __post_init__(self) -> None:
        self._next_read = self.receive_buffer
        self._reset_parsed()

    def _reset_parsed(self) -> None:
        self._url = b""
        self._headers = Headers()
        self._header_size = 0
        self._head_received = 0
        self._framing_received = 0  # bytes between parts of a chunked body, or behind its last one
        self._is_in_head = False
        self._is_complete = False
        self._is_last = False  # a program before this server may have found the request's end in another place
        self._has_completed = False  # a request, in this step of the parser
        self._chunks: list[bytes] = []
        self._body_received = 0
        self._drop_bodies()

    # -- the socket -----------------------------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the signature of asyncio.BufferedProtocol
        if self._long_body is not None:
            try:
                return self._long_body.free()[:_READ_AT_ONCE]
            except OSError as problem:
                self._reject_allocation(problem)
        return self._next_read

    def buffer_updated(self, nbytes: int) -> None:
        if self._is_stopped:
            return
        body = self._long_body
        if body is not None:
            has_room = body.count(nbytes)
            if body.is_complete and body is self._long_body:  # else it was refused
                self._finish_long_body()
            elif not has_room:
                self._stop_receiving()
            elif nbytes == _READ_AT_ONCE and body is self._long_body:
                self._on_share_used()
            return
        buffer = self.receive_buffer
        self._next_read = buffer
        if self._is_held:  # TLS may deliver what it has decrypted after its transport was paused
            self._unread += buffer[:nbytes]
            return
        if self._parser is not None:
            self._parse(buffer[:nbytes])
        else:
            self._read_requests(self._unread + buffer[:nbytes] if self._unread else bytes(buffer[:nbytes]))
        if nbytes == READ_SIZE:
            self._end_full_read()

    def _end_full_read(self) -> None:
        # The socket has more, and libuv would read it now, up to 32 times, before any other socket.
        if self._long_body is None and not self._is_held:
            self._on_share_used()

    def hold(self) -> None:
        """Report no further request until `release_hold`; keep what is received."""
        self._is_held = True

    def release_hold(self) -> None:
        """Continue with what was kept. The reader may be held again when this returns."""
        if self._is_stopped:
            return
        self._is_held = False
        if not self._unread:
            return
        data, self._unread = self._unread, b""
        if self._parser is not None:
            self._parse(data)
        else:
            self._read_requests(data)

    def stop(self) -> None:
        self._is_stopped = self._is_held = True

    def release(self) -> None:
        self._is_stopped = self._is_held = True
        self._drop_bodies()
        for charge in self._charges.values():
            charge.release()
        self._charges.clear()
        self._chunks.clear()
        self._unread = b""
        # References in a cycle, which only the garbage collector would find: to this reader, and to its connection.
        self._parser = None
        self._on_share_used = do_nothing
        self.on_stopped = do_nothing

    def on_body_released(self, body: object) -> None:
        """The request whose body is in the memory *body* was answered: that counts no more, and may be used again."""
        charge = self._charges.pop(id(body), None)
        if charge is None:
            return
        size = charge.size
        charge.release()
        if isinstance(body, mmap.mmap):
            self.memory.buffers.keep(body, size)

    # -- the budget of bodies -----------------------------------------------------------------------------------------

    def resume_receiving(self) -> None:
        if self._is_body_stopped:
            self._is_body_stopped = False
            self.on_stopped(False)

    def refuse(self, reason: str) -> None:
        self._reject(_UNAVAILABLE, reason)

    def _stop_receiving(self) -> None:
        if not self._is_body_stopped and not self._is_stopped:
            self._is_body_stopped = True
            self.on_stopped(True)

    def _drop_bodies(self) -> None:
        for body in (self._long_body, self._chunked_body):
            if body is not None:
                body.drop()
        self._long_body = self._chunked_body = None

    def _is_admitted(self, head: Head) -> bool:
        """Whether to receive a body; if not, its request is reported without it, as the last one."""
        if self.admit is None or self.on_last is None or self.admit(head):
            return True
        self._report_last(head, b"")
        return False

    def _report_last(self, head: Head, body: Buffer) -> None:
        self._is_stopped = True
        report = self.on_last or self._on_request
        report(replace(head, keep_alive=False), body)

    def _finished(self, body: LongBody) -> memoryview:
        finished = body.finish()
        self.resume_receiving()  # the budget may have stopped it with its last bytes
        self._longest_body = max(self._longest_body, len(finished))
        self._charges[id(finished.obj)] = body.charge
        return finished

    # -- time limits ------------------------------------------------------------------------------------------------

    @property
    def phase(self) -> Phase:
        """What the client is expected to send. `WORKING` while the server itself does not read."""
        if self._is_held or self._is_body_stopped:
            return Phase.WORKING
        if self._long_body is not None:
            return Phase.BODY
        if self._parser is not None:
            return Phase.HEADER if self._is_in_head else Phase.BODY
        unread = self._unread.lstrip(b"\r\n")  # some clients send an empty line after a request
        if not unread:
            return Phase.IDLE
        return Phase.BODY if b"\r\n\r\n" in unread else Phase.HEADER

    @property
    def received(self) -> int:
        """A number that grows while a body is being received."""
        long_body = 0 if self._long_body is None else self._long_body.received
        return len(self._unread) + self._body_received + self._head_received + long_body

    # -- requests read by their heads -------------------------------------------------------------------------------

    def _read_requests(self, data: bytes, deadline: float = 0.0) -> None:
        """Report whole requests; keep the rest, or parse it. This turn's share ends at *deadline*; 0 if not begun."""
        position, size = 0, len(data)
        while position < size and self._parser is None and not self._is_held:
            end = data.find(b"\r\n\r\n", position) + 4
            if end < 4:  # noqa: PLR2004 - not found: -1 + 4
                if size - position > self.limits.header_bytes:
                    self._reject_header()
                    return
                if _cannot_become_head(data, position):
                    self._hand_to_parser(data, position, deadline)
                break
            head = self.heads.find(data[position:end]) if end - position <= self.limits.header_bytes else None
            if head is None:
                self._hand_to_parser(data, position, deadline)
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
            if position < size:  # the client sent further requests ahead
                now = perf_counter()
                if not deadline:
                    deadline = now + SHARE_SECONDS
                elif now >= deadline:
                    self._on_share_used()
        if self._parser is None:
            self._unread = data[position:] if position else data

    def _begin_long_body(self, head: Head, received: memoryview, head_size: int) -> None:
        """Choose the memory of a long body. *received* bytes of it came together with the head."""
        self._unread = b""
        if head.body_size > _DISCARDED and not self._is_admitted(head):
            return
        if self._is_too_long(head.body_size):
            return
        reserve_input = self.reserve_input
        self._long_body_head = head
        self._next_read = self.receive_buffer[: head_size + json_length(head.headers)]
        try:
            self._long_body = body = LongBody(
                head.body_size,
                self.memory,
                self,
                trusted=trusted_size(len(received), self._longest_body),
                reserve=None if reserve_input is None else lambda: reserve_input(head),
            )
            if not body.append(received):
                self._stop_receiving()
        except OSError as problem:
            self._reject_allocation(problem)

    def _finish_long_body(self) -> None:
        body, self._long_body = self._long_body, None
        assert body is not None
        head, self._long_body_head = self._long_body_head, None
        if head is None:
            head = self._parsed_head()
            self._parser = None  # it waits for this body, which it will not see
        self._on_request(head, self._finished(body))

    # -- requests read by httptools -----------------------------------------------------------------------------------

    def _hand_to_parser(self, data: bytes, position: int, deadline: float) -> None:
        if data.startswith(_HTTP_2_PREFACE, position):
            self._reject(_VERSION_NOT_SUPPORTED, "cannot serve HTTP/2 at this port: send HTTP/1.1, or use gRPC's port")
            return
        self._parser = httptools.HttpRequestParser(self)
        # Clients that frame a body themselves may send Content-Length beside Transfer-Encoding: the chunks count, and
        # the connection ends (RFC 9112, 6.1). `_is_last` sees to that.
        self._parser.set_dangerous_leniencies(lenient_chunked_length=True)
        self._parse(strip_upgrade(data[position:]), deadline)

    def _parse(self, data: Buffer, deadline: float = 0.0) -> None:
        """Parse *data* in steps; between them, the share of this turn may be used up."""
        self._unread = b""
        size = len(data)
        if size <= _FIRST_STEP:
            self._parse_step(data)
            return
        deadline = deadline or perf_counter() + SHARE_SECONDS
        view = memoryview(data)
        position, length = 0, _FIRST_STEP
        while position < size and not self._is_stopped:
            # The rest of a long body goes to its buffer, as later bytes of the socket do.
            if self._is_held and self._long_body is None:
                self._unread = bytes(view[position:])
                return
            if self._parser is None:
                self._read_requests(bytes(view[position:]), deadline)
                return
            step = view[position : position + length]
            self._has_completed = False
            self._parse_step(step)
            position += len(step)
            length = _FIRST_STEP if self._has_completed else _PARSER_STEP
            if position < size and self._long_body is None and perf_counter() >= deadline:
                self._on_share_used()

    def _parse_step(self, data: Buffer) -> None:
        assert self._parser is not None
        body_before = self._body_received
        try:
            self._parser.feed_data(data)
            if self._is_in_head:
                # `on_header` is called when a header is complete, which an endless one never is.
                self._head_received += len(data)
                if self._head_received > self.limits.header_bytes + READ_SIZE:
                    self._reject_header()
            elif self._is_complete:
                self._parser = None
            elif self._is_framing_too_long(len(data), body_before):
                self._reject_header()
            elif (len(self._chunks) > _MAX_CHUNKS or self._body_received > READ_SIZE) and not self._is_stopped:
                self._join_chunks()
        except httptools.HttpParserUpgrade:
            self._reject(501, "protocol upgrades are not supported")
        except httptools.HttpParserError as problem:
            self._reject(400, f"malformed HTTP request: {problem}")

    def _is_framing_too_long(self, size: int, body_before: int) -> bool:
        """Whether a trailer, or the size of a chunk, does not end: the parser collects it and reports nothing."""
        if self._body_received > body_before or self._long_body is not None:
            self._framing_received = 0
            return False
        self._framing_received += size
        return self._framing_received > self.limits.header_bytes + READ_SIZE

    def _join_chunks(self) -> bool:
        """Join the parts of a body, as a chunk of two bytes costs 50 bytes as an object; False if it is rejected."""
        if self._body_received > self.limits.body_bytes:
            self._reject(_PAYLOAD_TOO_LARGE, f"request body exceeds the limit of {self.limits.body_bytes} bytes")
            return False
        joined = b"".join(self._chunks)
        self._chunks.clear()
        body = self._chunked_body
        if body is None and len(joined) <= READ_SIZE:
            self._chunks.append(joined)
            return True
        try:
            if body is None:
                body = self._chunked_body = LongBody(None, self.memory, self)
            if not body.append(joined):
                self._stop_receiving()
        except OSError as problem:
            self._reject_allocation(problem)
        return self._chunked_body is not None

    def on_message_begin(self) -> None:
        self._reset_parsed()
        self._is_in_head = True

    def on_url(self, url: bytes) -> None:
        self._url += url
        self._count_header(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header, or a field of the trailer behind a chunked body.

        A trailer is read and dropped (RFC 9110, 6.5.1): it could replace headers that a proxy has set or checked.
        """
        if self._is_in_head:
            self._headers.add(name, value)
        self._count_header(len(name) + len(value) + 4)

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        if self._is_stopped:
            return
        assert self._parser is not None
        refusal = self.heads.problem(self._parser, self._url, self._headers, is_logged=True)
        if refusal is not None:
            self._reject(*refusal)
            return
        length = self._headers.get(b"content-length", b"")
        is_chunked = b"transfer-encoding" in self._headers
        if is_chunked:
            self._is_last = b"content-length" in self._headers or self._parser.get_http_version() == "1.0"
            self._headers.remove(b"content-length")
        size = int(length) if length.isdigit() and not is_chunked else 0
        # A client of HTTP/1.0 cannot expect an interim response (RFC 9110, 10.1.1).
        is_expecting = (
            self._headers.get(b"expect", b"").lower() == b"100-continue" and self._parser.get_http_version() != "1.0"
        )
        if (is_chunked or is_expecting or size > _DISCARDED) and not self._is_admitted(self._parsed_head()):
            return
        if self._is_too_long(size):
            return
        if size > READ_SIZE:
            try:
                self._long_body = LongBody(size, self.memory, self, trusted=trusted_size(0, self._longest_body))
            except OSError as problem:
                self._reject_allocation(problem)
                return
        if is_expecting:
            self._on_expect_continue()

    def on_body(self, body: bytes) -> None:
        if self._is_stopped:
            return
        if self._long_body is None:
            self._chunks.append(body)
            self._body_received += len(body)
            return
        try:
            if not self._long_body.append(body):
                self._stop_receiving()
        except OSError as problem:
            self._reject_allocation(problem)

    def on_message_complete(self) -> None:
        self._is_complete = self._has_completed = True
        if self._is_stopped:
            return
        is_long = self._chunked_body is not None or self._body_received > READ_SIZE
        if is_long and self._long_body is None and not self._join_chunks():
            return
        body: Buffer
        long_body = self._long_body or self._chunked_body
        self._long_body = self._chunked_body = None
        if long_body is not None:
            body = self._finished(long_body)
        else:
            chunks = self._chunks
            body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        if self._is_last:
            self._report_last(self._parsed_head(), body)
        else:
            self._on_request(self._parsed_head(), body)

    def _parsed_head(self) -> Head:
        assert self._parser is not None
        return parsed_head(self._parser, self._url, self._headers, 0)

    # -- requests that are rejected -----------------------------------------------------------------------------------

    def _count_header(self, size: int) -> None:
        self._header_size += size
        if self._header_size > self.limits.header_bytes:
            self._reject_header()

    def _reject_header(self) -> None:
        self._reject(
            _HEADERS_TOO_LARGE, f"request line and headers exceed the limit of {self.limits.header_bytes} bytes"
        )

    def _is_too_long(self, size: int) -> bool:
        """Whether a body was rejected, since it can never be received."""
        limit, budget = self.limits.body_bytes, self.memory.budget.limit
        if size > limit:
            self._reject(_PAYLOAD_TOO_LARGE, f"request body of {size} bytes exceeds the limit of {limit} bytes")
        elif size > budget:
            self._reject(_PAYLOAD_TOO_LARGE, too_long_for_budget("request body", size, budget))
        else:
            return False
        return True

    def _reject_allocation(self, problem: OSError) -> None:
        self._reject(_UNAVAILABLE, f"cannot allocate memory for the request body: {problem.strerror}; try again later")

    def _reject(self, status: int, message: str) -> None:
        if not self._is_stopped:
            self._is_stopped = True
            self._drop_bodies()
            self._chunks.clear()
            self._unread = b""
            self.resume_receiving()  # what follows is discarded
            self._on_malformed(status, message)


def _cannot_become_head(data: bytes, position: int) -> bool:
    """Whether bytes without an empty line will never be a head: they are TLS, for instance, or lines end in LF alone.

    The rest of such a head will not come, and the client waits for a response without a time limit.
    """
    return (
        data[position] not in _FIRST_BYTES or data.find(b"\n\n", position) >= 0 or data.find(b"\n\r\n", position) >= 0
    )
