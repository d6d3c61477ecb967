"""Responses of one HTTP/1.1 connection, in the order of its requests.

A client may send further requests before the first is answered (pipelining, RFC 9112, 9.3.2). The queue hands them to
the endpoints one at a time: the next one when the response before it is complete. A response is written whole
(`respond`), or in parts (`write`, then `respond`).

Back-pressure works in both directions. While the client does not read its responses, no further request is handled and
streams pause. While too many requests are queued, the connection reads no more of them.

What waits for the client counts in the memory of requests (`request_budget.py`). That begins where the kernel does not
take a response whole: short responses, and clients that read, cost nothing. It ends when the kernel has all of it, and
not before, since the rest of a tensor keeps the memory of all of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from time import perf_counter
from typing import TypeAlias

from naiad.core.turns import SHARE_SECONDS
from naiad.frontends.callbacks import do_nothing
from naiad.frontends.http1.heads import Head
from naiad.frontends.http1.messages import INTERNAL_ERROR, HttpExchange, HttpRequest, error_text, with_lines
from naiad.frontends.refusals import client_address, server_address
from naiad.frontends.request_budget import Charge, RequestBudget
from naiad.frontends.unread_bytes import unsent_bytes
from naiad.frontends.unread_responses import UnreadResponse
from naiad.protocol.inference import Buffer, SubmittedRequest

logger = logging.getLogger("naiad.http")

# Responses up to this are joined into one buffer: one copy costs less than a system call with several buffers. Longer
# ones count where the client does not read them: see `COUNTED_FROM` of `unread_responses.py`, which has this number.
_MAX_JOINED = 1 << 16
_HIGH_WATER = 1 << 16  # bytes that the kernel has not taken of a client that does not read: asyncio's own number
_UNAVAILABLE = 503
# Bytes of a response that are written in a turn of the loop. The kernel takes any number in one call while the client
# reads as fast: 200 MB took 0.3 s.
_WRITTEN_AT_ONCE = 1 << 20
_MAX_PIPELINED = 16  # requests a client may send ahead before no more of them are read
_FEW_PIPELINED = 8  # queued requests at which more are read: half, as stopping and resuming reads are system calls

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

ErrorResponse: TypeAlias = Callable[[int, str, bytes], Sequence[Buffer]]  # of status, message and further headers


def json_error(status: int, message: str, extra: bytes) -> Sequence[Buffer]:
    """An error as KServe has it: `{"error": message}`."""
    return error_text(status, message, extra=extra)


@dataclass(eq=False)
class ResponseQueue(HttpExchange):
    """The requests of a connection that are not answered yet, and the `HttpExchange` of the first of them.

    For the budget, it is the `Reader` of what waits for the client.

    One object serves all exchanges of its connection, since only one is open at a time: a request costs no further
    allocation.
    """

    _handle: Callable[[HttpExchange], None]
    _: KW_ONLY
    on_closing: Callable[[], None]  # called when no further request of the connection will be handled
    # Called instead of closing the transport where the client may still be sending: the connection lets it read what
    # was written first.
    on_linger: Callable[[], None]
    on_body_released: Callable[[object], None]  # called with the memory of a body whose request is answered
    on_full: Callable[[], None]  # also with each request that finds it full: read no more
    # Called when a full queue has room, or when the connection's share of a turn of the loop is used up (`turns`), for
    # instance by a part of a long response. The connection calls `handle_queued` in a later turn, and reads more.
    on_room: Callable[[], None]
    error_response: ErrorResponse = json_error
    budget: RequestBudget = field(default_factory=RequestBudget)  # counts what waits for the client
    _transport: asyncio.Transport | None = None  # not None while the connection is open
    # The request whose response is due next. While the connection is open and it is None, the next four have their
    # first values: `respond` resets them with it.
    _current: HttpRequest | None = None
    _is_response_begun: bool = False  # the first part of the response is written
    _submitted: SubmittedRequest | None = None
    _further: list[SubmittedRequest] = field(default_factory=list)  # empty while `_submitted` is None
    _resume: Callable[[], None] | None = None
    # The rest of a long response, and its request: the next one is handled when all of it is written.
    _unwritten: deque[memoryview] = field(default_factory=deque)
    _ending: HttpRequest | None = None
    _unread: UnreadResponse | None = None  # while something counts in the budget
    _written: int = 0  # bytes, since the connection was made
    # Requests behind `_current`, oldest first. Where there are some and no `_current`, the client does not read, or the
    # share of this turn is used up and the owner calls `handle_queued` in a later one.
    _pipelined: deque[HttpRequest] = field(default_factory=deque)
    is_full: bool = False  # from _MAX_PIPELINED queued requests until a request begins with _FEW_PIPELINED left
    _is_handling_pipelined: bool = False  # whether `handle_queued` is on the stack
    _is_blocked: bool = False
    _is_draining: bool = False  # stays True
    _is_closing: bool = False  # stays True: no further request is accepted
    _is_continue_due: bool = False  # only while a response is due
    _has_unread: bool = False
    request_count: int = 0

    @property
    def is_idle(self) -> bool:
        return self._current is None and not self._pipelined and not self._unwritten

    # -- the exchange of the current request -------------------------------------------------------------------------

    @property
    def request(self) -> HttpRequest:
        assert self._current is not None
        return self._current

    @property
    def client_address(self) -> str:
        return client_address(self._transport)

    @property
    def server_address(self) -> str:
        return server_address(self._transport)

    @property
    def is_connected(self) -> bool:
        return self._transport is not None

    def replace_body(self, body: Buffer, charge: Charge) -> None:
        current = self._current
        assert current is not None
        old, current.body, current.charge = current.body, body, charge
        self._release_body(old)

    @property
    def is_blocked(self) -> bool:
        return self._is_blocked

    def on_disconnect(self, submitted: SubmittedRequest) -> None:
        if self._current is None:
            return
        if self._submitted is None:
            self._submitted = submitted
        else:
            self._further.append(submitted)

    def on_resume(self, resume: Callable[[], None]) -> None:
        self._resume = resume

    def write(self, part: Buffer) -> None:
        """Write a part of the current response; drop it if the client has disconnected."""
        if self._transport is None:
            return
        if not self._is_response_begun and self._current is not None:
            self._is_response_begun = True
            if self._is_draining and not self._pipelined:
                self._current.keep_alive = False
            part = _with_further_headers(self._current, part)
        self._written += len(part)
        self._transport.write(part)

    def hold(self, size: int) -> None:
        if self._unread is not None and self._transport is not None:
            self._unread.resize(self._transport.get_write_buffer_size() + size)

    def respond(self, parts: Sequence[Buffer]) -> None:
        current, self._current = self._current, None
        is_begun, self._is_response_begun = self._is_response_begun, False
        self._submitted = None
        self._resume = None
        if self._further:
            self._further.clear()
        transport = self._transport
        if transport is None or current is None:
            return
        if current.method == "HEAD":
            parts = parts[:1]  # with the Content-Length that a GET would have (RFC 9110, 9.3.2)
        size = sum(map(len, parts))
        if size > _MAX_JOINED:
            self._release_request(current)  # what it held is room for the response
            if not is_begun and not self.budget.has_room(size):
                parts = self.error_response(_UNAVAILABLE, self.budget.refusal_to_send, b"")
                size = sum(map(len, parts))
        if self._is_draining and not is_begun and not self._pipelined:
            current.keep_alive = False
        if not is_begun and (current.response_lines or not (current.keep_alive and current.can_chunk)):
            parts = [_with_further_headers(current, parts[0]), *parts[1:]]
        if size > _WRITTEN_AT_ONCE:
            self._unwritten.extend([memoryview(part) for part in parts])
            self._ending = current
            if self._unread is None:
                self._unread = self.budget.open_unread(self, size)
            else:  # of a stream
                self._unread.resize(self._unread.size + size)
            if self._unwritten:  # the client was not disconnected for want of room
                self._write_slice(transport)
            return
        self._written += size
        if size > _MAX_JOINED:
            transport.writelines(parts)
            self._count_unsent(transport, size)
        elif len(parts) > 1:
            transport.write(b"".join(parts))
        else:
            transport.writelines(parts)
        if current.charge is not None or isinstance(current.body, memoryview):
            self._release_request(current)
        self._end_response(current, transport)

    def _release_request(self, request: HttpRequest) -> None:
        if isinstance(request.body, memoryview):
            body, request.body = request.body, b""
            self._release_body(body)
        if request.charge is not None:
            request.charge.release()

    def _write_slice(self, transport: asyncio.Transport) -> None:
        """Write a part of a long response, and the rest in later turns, or when the client has read."""
        unwritten, parts, left = self._unwritten, list[memoryview](), _WRITTEN_AT_ONCE
        while unwritten and left:
            part = unwritten.popleft()
            if len(part) > left:
                unwritten.appendleft(part[left:])
                part = part[:left]
            parts.append(part)
            left -= len(part)
        self._written += _WRITTEN_AT_ONCE - left
        transport.writelines(parts)
        if not unwritten:
            current, self._ending = self._ending, None
            assert current is not None
            self._count_unsent(transport, 0)
            self._end_response(current, transport)
        elif not self._is_blocked:
            self.on_room()

    def _count_unsent(self, transport: asyncio.Transport, size: int) -> None:
        """Count the response that was written until the kernel has all of it; *size* is 0 if it is counted."""
        if not transport.get_write_buffer_size():
            self._release_unread()
            return
        if size and self._unread is None:
            self._unread = self.budget.open_unread(self, size)
        elif size and self._unread is not None:  # as much as the buffer had when the transport was paused
            self._unread.resize(size)
        if self._transport is not None:
            transport.set_write_buffer_limits(0)  # which calls `pause_writing`, and `resume_writing` when it is empty

    def _release_unread(self) -> None:
        unread, self._unread = self._unread, None
        if unread is not None:
            unread.release()

    def _end_response(self, current: HttpRequest, transport: asyncio.Transport) -> None:
        if not current.keep_alive or (self._is_closing and not self._pipelined):
            # A client that asked for the end sends nothing more. Any other may be sending.
            is_expected = not (self._is_closing or self._is_draining or self._has_unread)
            self._begin_closing()
            if is_expected:
                transport.close()
            else:
                self.on_linger()
        elif self._pipelined:
            self.handle_queued()
        elif self._is_continue_due:
            self.write_continue()

    def _release_body(self, body: Buffer) -> None:
        if isinstance(body, memoryview) and not isinstance(body.obj, bytes):
            self.on_body_released(body.obj)

    # -- requests -----------------------------------------------------------------------------------------------------

    def submit(self, head: Head, body: Buffer) -> None:
        if self._is_closing:
            return
        self.request_count += 1
        self._is_continue_due = False  # the client has sent the body without it
        # Positional: names cost 0.2 microseconds.
        request = HttpRequest(
            head.method, head.path, head.headers, body, head.keep_alive, head.can_chunk, None, head.query
        )
        if self._current is None and not self._pipelined and not self._is_blocked and not self._unwritten:
            self._begin(request)
            return
        self._pipelined.append(request)
        if len(self._pipelined) >= _MAX_PIPELINED:
            self.is_full = True
            self.on_full()

    def submit_last(self, head: Head, body: Buffer) -> None:
        self._has_unread = True
        self.submit(head, body)

    def reject(self, status: int, message: str) -> None:
        """End a connection on which no next request can be found.

        The error is written if the client waits for no other response. Else the connection closes after the last
        response that is due.
        """
        transport = self._transport
        if self._is_closing or transport is None:
            return
        self._begin_closing()
        self._has_unread = True
        if self.is_idle:
            transport.writelines(self.error_response(status, message, b"Connection: close\r\n"))
            self.on_linger()

    def write_continue(self) -> None:
        """Tell the client to send the body that it holds back (`Expect: 100-continue`), after earlier responses."""
        self._is_continue_due = not self.is_idle
        if self._transport is not None and not self._is_continue_due:
            self._transport.write(_CONTINUE)

    def _begin(self, request: HttpRequest) -> None:
        self._current = request
        if self.is_full and len(self._pipelined) <= _FEW_PIPELINED:
            self.is_full = False
            self.on_room()
        try:
            self._handle(self)
        except Exception:
            logger.exception("cannot answer %s %r", request.method, request.path)
            self.respond(self.error_response(500, INTERNAL_ERROR, b""))

    def handle_queued(self) -> None:
        """Handle queued requests until one is not answered at once, or the share of this turn of the loop is used up.

        `respond` calls this again for each of them; that call returns and leaves the work to this loop, so that no
        number of queued requests nests calls.
        """
        if self._is_handling_pipelined:
            return
        if self._unwritten:
            if self._transport is not None and not self._is_blocked:
                self._write_slice(self._transport)
            return
        self._is_handling_pipelined = True
        deadline = 0.0
        while (
            self._pipelined
            and self._current is None
            and not self._is_blocked
            and not self._unwritten
            and self._transport is not None
        ):
            now = perf_counter()
            if not deadline:
                deadline = now + SHARE_SECONDS
            elif now >= deadline:
                self.on_room()
                break
            self._begin(self._pipelined.popleft())
        self._is_handling_pipelined = False

    # -- the transport ------------------------------------------------------------------------------------------------

    def on_connection_made(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        # Resumed only when it is empty: a few bytes may keep the memory of a long tensor.
        transport.set_write_buffer_limits(_HIGH_WATER, 0)

    def pause_writing(self) -> None:
        """Handle no further request: the client does not read its responses."""
        self._is_blocked = True
        if self._unread is None and self._transport is not None:
            self._unread = self.budget.open_unread(self)
            self._unread.resize(self._transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        self._is_blocked = False
        if self._unread is not None and not self._unwritten and self._transport is not None:
            self._release_unread()
            self._transport.set_write_buffer_limits(_HIGH_WATER, 0)
        if self._resume is not None:
            self._resume()
        self.handle_queued()

    def on_connection_lost(self) -> None:
        self._transport = None
        self._pipelined.clear()
        self._drop_unwritten()
        # The callbacks refer to the connection, which refers to this queue. Without them the connection is freed at
        # once, and with it the buffer of a long body, rather than when the garbage collector runs.
        self.on_closing = do_nothing
        self.on_linger = do_nothing
        self.on_body_released = do_nothing
        self.on_full = do_nothing
        self.on_room = do_nothing
        self._is_blocked = False
        if self._current is not None and self._current.charge is not None:
            self._current.charge.release()
        if self._current is not None and self._submitted is not None:
            for submitted in (self._submitted, *self._further):
                submitted.cancel()
        if self._resume is not None:
            self._resume()  # the parts that wait are written to nowhere, which ends their stream

    def begin_drain(self) -> None:
        """Tell the client with the next response that it is the last one, and close the connection after it."""
        self._is_draining = True

    def close_when_idle(self) -> None:
        """Close now if no response is due, else after the current one."""
        self._begin_closing()
        self._pipelined.clear()
        if self.is_idle and self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close now. Nothing is written any more: transports of uvloop take that for an error."""
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()

    # -- what waits for the client, for time limits and the budget ----------------------------------------------------

    @property
    def waiting(self) -> int:
        """Bytes that the client has not read and the kernel has not taken; 0 if it keeps up."""
        buffered = 0 if self._transport is None else self._transport.get_write_buffer_size()
        return buffered + sum(map(len, self._unwritten))

    def read_count(self) -> int:
        return self._written - unsent_bytes(self._transport)

    def disconnect(self) -> None:
        self._drop_unwritten()
        self.abort()

    def _drop_unwritten(self) -> None:
        self._unwritten.clear()
        self._ending = None
        self._release_unread()

    def _begin_closing(self) -> None:
        self._is_closing = True
        self.on_closing()


def _with_further_headers(request: HttpRequest, head: Buffer) -> Buffer:
    """The head of a response with what its request adds, and a Connection header where the client needs one.

    HTTP/1.1 keeps connections by default. Clients of HTTP/1.0, such as ab, expect `keep-alive` (RFC 9112, 9.3).
    """
    lines = request.response_lines
    if not (request.keep_alive and request.can_chunk) and b"\r\nConnection: " not in head:
        lines += b"Connection: keep-alive\r\n" if request.keep_alive else b"Connection: close\r\n"
    return with_lines(head, lines) if lines else head
