"""The asyncio protocol of one HTTP/1.1 connection: joins a `RequestReader` and a `ResponseQueue`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from naiad.core.turns import LoopTurns
from naiad.frontends.http1.heads import HeadCache
from naiad.frontends.http1.messages import HttpExchange
from naiad.frontends.http1.request_reader import Admit, RequestLimits, RequestReader, ReserveInput
from naiad.frontends.http1.response_queue import ErrorResponse, ResponseQueue, json_error
from naiad.frontends.http1.timeouts import HttpTimeouts, Phase
from naiad.frontends.open_connections import OpenConnections
from naiad.frontends.request_memory import RequestMemory
from naiad.frontends.timeouts import ProgressWatch, ReadingWatch
from naiad.frontends.unread_bytes import has_unread_bytes

_LINGER_SECONDS = 2.0  # how long a connection that is not read to its end stays open behind its last response
_REQUEST_TIMEOUT = 408
_SERVICE_UNAVAILABLE = 503


class HttpConnection(asyncio.BufferedProtocol):
    """One client connection."""

    def __init__(
        self,
        handle: Callable[[HttpExchange], None],
        connections: OpenConnections[HttpConnection],
        limits: RequestLimits,
        heads: HeadCache,
        receive_buffer: memoryview,
        turns: LoopTurns,
        memory: RequestMemory | None = None,
        admit: Admit | None = None,
        reserve_input: ReserveInput | None = None,
        error_response: ErrorResponse = json_error,  # to a malformed request, and to one that *handle* failed on
        timeouts: HttpTimeouts | None = None,
        *,
        is_draining: bool = False,  # whether the first response is the last one
    ) -> None:
        memory = memory or RequestMemory()
        self._connections = connections
        self._transport: asyncio.Transport | None = None  # while the connection is open
        self._turns = turns
        self.is_held = False  # neither the socket nor what was received from it is read
        self._is_deferred = False
        self._is_body_stopped = False  # the socket is not read, as the memory for bodies is full
        self._timeouts = timeouts or HttpTimeouts()
        self._watch = ProgressWatch()
        self._reading = ReadingWatch()
        self._linger_timer: asyncio.TimerHandle | None = None
        self.responses = ResponseQueue(
            handle,
            on_closing=self._stop_reading,
            on_linger=self._linger,
            on_body_released=self._on_body_released,
            on_full=self._hold,
            on_room=self._defer,
            error_response=error_response,
            budget=memory.budget,
        )
        self.reader = RequestReader(
            self.responses.submit,
            self.responses.reject,
            self.responses.write_continue,
            self._on_share_used,
            limits=limits,
            heads=heads,
            receive_buffer=receive_buffer,
            memory=memory,
            admit=admit,
            reserve_input=reserve_input,
            on_last=self.responses.submit_last,
            on_stopped=self._on_body_stopped,
        )
        if is_draining:
            self.responses.begin_drain()
        # The loop calls these two for every read. Bound to the reader itself, they cost no call in between.
        self.get_buffer = self.reader.get_buffer  # type: ignore[method-assign] # the methods of the base class are empty
        self.buffer_updated = self.reader.buffer_updated  # type: ignore[method-assign] # as above

    @property
    def has_unread_bytes(self) -> bool:
        """Whether the client has sent bytes that were not read yet, so that the connection only seems to be idle."""
        return has_unread_bytes(self._transport)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, since uvloop's transports do not subclass asyncio.Transport.
        self._transport = cast("asyncio.Transport", transport)
        self.responses.on_connection_made(self._transport)
        refusal = self._connections.add(self, self._transport)
        if refusal:
            self.responses.reject(_SERVICE_UNAVAILABLE, refusal)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._connections.discard(self)
        self._transport = None
        if self._linger_timer is not None:
            self._linger_timer.cancel()
            self._linger_timer = None
        self.reader.release()
        self.responses.on_connection_lost()

    def eof_received(self) -> bool:
        """Close the connection. Most clients shut their end when they disconnect, so open requests are cancelled."""
        return False

    def pause_writing(self) -> None:
        self.responses.pause_writing()

    def resume_writing(self) -> None:
        self.responses.resume_writing()

    # -- turns of the loop --------------------------------------------------------------------------------------------

    def _hold(self) -> None:
        if not self.is_held:
            self.is_held = True
            self.reader.hold()
            if self._transport is not None and not self._is_body_stopped:
                self._transport.pause_reading()

    def _defer(self) -> None:
        if not self._is_deferred:
            self._is_deferred = True
            self._turns.defer(self._resume)

    def _on_share_used(self) -> None:
        self._hold()
        self._defer()

    def _resume(self) -> None:
        self._is_deferred = False
        if self._transport is None:
            return
        self.responses.handle_queued()
        if self.is_held and not self._is_deferred and not self.responses.is_full:
            self.is_held = False
            self.reader.release_hold()  # which may hold this connection again
            if not self.is_held and not self._is_body_stopped and self._transport is not None:
                self._transport.resume_reading()

    def _on_body_stopped(self, is_stopped: bool) -> None:  # noqa: FBT001 - a callback has no names for its arguments
        self._is_body_stopped = is_stopped
        if self._transport is None or self.is_held:
            return
        if is_stopped:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    # -- time limits --------------------------------------------------------------------------------------------------

    def progress(self) -> tuple[Phase, int]:
        """What the connection does, and a number that changes with progress in that."""
        responses, reader, transport = self.responses, self.reader, self._transport
        unsent = 0 if transport is None else transport.get_write_buffer_size()
        if unsent:
            return Phase.SEND, responses.read_count()
        count = responses.request_count
        if not responses.is_idle or self._is_body_stopped:
            return Phase.WORKING, count
        phase = reader.phase
        if phase is Phase.BODY:
            return phase, (count << 48) + reader.received
        return Phase.HEADER if phase is Phase.IDLE and not count else phase, count

    def check_time(self, now: float) -> None:
        phase, progress = self.progress()
        limit = self._timeouts.of(phase)
        elapsed = self._watch.elapsed(phase, progress, now)
        if phase is Phase.SEND:
            if limit and self._reading.is_too_slow(progress, self.responses.waiting, now, limit):
                self._connections.count.timed_out[phase.value] += 1
                self.responses.disconnect()
            return
        self._reading.stop()
        if elapsed < limit or not limit or self._transport is None or self.has_unread_bytes:
            return
        self._connections.count.timed_out[phase.value] += 1
        if phase is Phase.IDLE or (phase is Phase.HEADER and not self.reader.received):  # nothing to respond to
            self._transport.close()
        else:
            what = "no byte of its body arrived" if phase is Phase.BODY else "its head was not complete"
            text = f"cannot read the request: {what} within {limit:g} s (--client-timeout)"
            self.responses.reject(_REQUEST_TIMEOUT, text)

    # -- the end ------------------------------------------------------------------------------------------------------

    def _linger(self) -> None:
        """Close our side now, and the socket when the client has closed its side, or `_LINGER_SECONDS` later.

        Closing a socket with unread bytes makes the kernel send RST. The client's kernel then discards what the client
        has not read yet: the response. What arrives meanwhile is discarded.
        """
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if transport.can_write_eof():  # not with TLS
            transport.write_eof()
        transport.resume_reading()
        self._linger_timer = self._turns.loop.call_later(_LINGER_SECONDS, transport.close)

    def _stop_reading(self) -> None:
        self.reader.stop()

    def _on_body_released(self, body: object) -> None:
        self.reader.on_body_released(body)
