"""The answering half of a connection: requests one at a time and in order, responses whole or in parts.

Requests a client sends ahead (pipelining) wait for the answers before them, and reading stops while too many do.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence

from naiad.frontends.http1.heads import Head
from naiad.frontends.http1.messages import INTERNAL_ERROR, Exchange, Request, error_text, with_connection
from naiad.protocol.inference import Buffer

logger = logging.getLogger("naiad.http")

_JOINED = 1 << 16
"""Responses up to this are written as one buffer."""
_KEPT = 64 << 20
"""The largest body buffer a connection keeps for its next request."""
_MOST_AHEAD = 16
"""Requests a client may send ahead before reading stops."""


class Answering(Exchange):
    """The exchange of the request that is being answered, and those that wait behind it."""

    def __init__(self, handle: Callable[[Exchange], None], cancel: Callable[[int], None]) -> None:
        """Answer requests.

        Args:
            handle: Called with each request in turn; answers it, now or later.
            cancel: Called with the ticket of a request whose client went away.
        """
        self._handle = handle
        self._cancel = cancel
        self._transport: asyncio.Transport | None = None
        self._current: Request | None = None
        self._has_begun = False  # to answer it, in parts
        self._ticket = -1
        self._further_tickets: list[int] = []
        self._resume: Callable[[], None] | None = None
        self._ahead: deque[Request] = deque()
        self._is_paused = False
        self._is_answering = False
        self._is_blocked = False
        self._is_closing = False
        self._kept = bytearray()

    # -- the exchange -------------------------------------------------------------------------------------------

    @property
    def request(self) -> Request:
        """The request that is being answered."""
        assert self._current is not None
        return self._current

    @property
    def is_blocked(self) -> bool:
        """Whether the client does not read what was written."""
        return self._is_blocked

    def on_disconnect(self, ticket: int) -> None:
        """Cancel *ticket* should the client go away before its answer."""
        if self._current is None:
            return
        if self._ticket < 0:
            self._ticket = ticket
        else:
            self._further_tickets.append(ticket)

    @staticmethod
    def _told(request: Request, head: Buffer) -> Buffer:
        """The head of a response that says what becomes of the connection, where clients would not expect that.

        Those of HTTP/1.0, such as ab, keep one only where they are told so (RFC 9112, 9.3).
        """
        if request.keep_alive and request.may_chunk:
            return head
        return with_connection(head, keep_alive=request.keep_alive)

    def on_resume(self, resume: Callable[[], None]) -> None:
        """Call *resume* when the client reads again, or will never."""
        self._resume = resume

    def write(self, part: Buffer) -> None:
        """Write a part of the response of the current request; nothing where the client went away."""
        if self._transport is None:
            return
        if not self._has_begun and self._current is not None:
            self._has_begun = True
            part = self._told(self._current, part)
        self._transport.write(part)

    def respond(self, parts: Sequence[Buffer]) -> None:
        """Write the response of the current request, or the rest of it, and go on with the next."""
        current, self._current = self._current, None
        has_begun, self._has_begun = self._has_begun, False
        self._ticket = -1
        self._resume = None
        if self._further_tickets:
            self._further_tickets.clear()
        transport = self._transport
        if transport is None or current is None:
            return
        if not has_begun and not (current.keep_alive and current.may_chunk):
            parts = [self._told(current, parts[0]), *parts[1:]]
        if current.method == "HEAD":
            parts = parts[:1]  # the length of what a GET would bring, without it (RFC 9110, 9.3.2)
        if len(parts) > 1 and sum(map(len, parts)) <= _JOINED:
            transport.write(b"".join(parts))
        else:
            transport.writelines(parts)
        body = current.body
        if isinstance(body, memoryview) and isinstance(body.obj, bytearray) and len(body.obj) <= _KEPT:
            self._kept = body.obj
        if not current.keep_alive or (self._is_closing and not self._ahead):
            self._is_closing = True
            transport.close()
        elif self._ahead:
            self._answer_ahead()

    # -- asyncio ------------------------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        """The client does not read its answers: make no more of them."""
        self._is_blocked = True

    def resume_writing(self) -> None:
        """It does again."""
        self._is_blocked = False
        if self._resume is not None:
            self._resume()
        self._answer_ahead()

    def _client_left(self) -> None:
        """There is nobody to answer any more."""
        self._transport = None
        self._ahead.clear()
        self._is_blocked = False
        if self._current is not None and self._ticket >= 0:
            for ticket in (self._ticket, *self._further_tickets):
                self._cancel(ticket)
        if self._resume is not None:
            self._resume()  # parts that waited go nowhere, but they do go

    def close_when_idle(self) -> None:
        """Close now if nothing is being answered, else after the answer."""
        self._is_closing = True
        self._ahead.clear()
        if self._current is None and self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close now."""
        if self._transport is not None:
            self._transport.abort()

    # -- requests -----------------------------------------------------------------------------------------------

    def _arrived(self, head: Head, body: Buffer) -> None:
        """Answer a request that has arrived, now or in its turn."""
        if self._is_closing:
            return
        request = Request(head.method, head.path, head.headers, body, head.keep_alive, head.may_chunk)
        if self._current is None and not self._ahead and not self._is_blocked:
            self._next(request)
            return
        self._ahead.append(request)
        if len(self._ahead) >= _MOST_AHEAD and not self._is_paused and self._transport is not None:
            self._is_paused = True
            self._transport.pause_reading()

    def _answer_ahead(self) -> None:
        """Answer what was sent ahead, as far as it can be answered at once.

        A loop, which `respond` leaves to whoever runs it already: a thousand small requests fit into one packet.
        """
        if self._is_answering:
            return
        self._is_answering = True
        while self._ahead and self._current is None and not self._is_blocked and self._transport is not None:
            self._next(self._ahead.popleft())
        self._is_answering = False

    def _next(self, request: Request) -> None:
        self._current = request
        if self._is_paused and len(self._ahead) < _MOST_AHEAD and self._transport is not None:
            self._is_paused = False
            self._transport.resume_reading()
        try:
            self._handle(self)
        except Exception:
            logger.exception("cannot answer %s %r", request.method, request.path)
            self.respond(error_text(500, INTERNAL_ERROR))
