"""The asyncio protocol of one HTTP/1.1 connection: joins a `RequestReader` and a `ResponseQueue`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from naiad.frontends.http1.heads import HeadCache
from naiad.frontends.http1.messages import HttpExchange
from naiad.frontends.http1.request_reader import RequestLimits, RequestReader, ReserveInput
from naiad.frontends.http1.response_queue import ErrorResponse, ResponseQueue, json_error


class HttpConnection(asyncio.BufferedProtocol):
    """One client connection.

    Attributes:
        reader: Turns received bytes into requests.
        responses: Hands requests to the endpoints and writes their responses.
    """

    def __init__(
        self,
        handle: Callable[[HttpExchange], None],
        cancel: Callable[[int], None],
        connections: set[HttpConnection],
        limits: RequestLimits,
        heads: HeadCache,
        receive_buffer: memoryview,
        reserve_input: ReserveInput | None = None,
        error_response: ErrorResponse = json_error,
    ) -> None:
        """Prepare for a client.

        Args:
            handle: Called with each exchange in turn; responds now or later.
            cancel: Called with the ticket of a request whose client disconnected.
            connections: The open connections of the listener; this one adds and removes itself.
            limits: Bounds on requests.
            heads: Heads seen before.
            receive_buffer: Where sockets are read to; see `RequestReader`.
            reserve_input: Where to read long bodies to.
            error_response: Makes the response to a malformed request, and to one that *handle* failed on.
        """
        self._connections = connections
        self.responses = ResponseQueue(
            handle,
            cancel,
            on_closing=self._stop_reading,
            on_body_released=self._reuse_body_buffer,
            error_response=error_response,
        )
        self.reader = RequestReader(
            self.responses.submit,
            self.responses.reject,
            self.responses.write_continue,
            limits=limits,
            heads=heads,
            receive_buffer=receive_buffer,
            reserve_input=reserve_input,
        )
        # The loop calls these two for every read. Bound to the reader itself, they cost no call in between.
        self.get_buffer = self.reader.get_buffer  # type: ignore[method-assign] # the methods of the base class are empty
        self.buffer_updated = self.reader.buffer_updated  # type: ignore[method-assign] # as above

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Serve the client that connected."""
        # A cast, since uvloop's transports do not subclass asyncio.Transport.
        self.responses.on_connection_made(cast("asyncio.Transport", transport))
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """Cancel what the client waits for."""
        self._connections.discard(self)
        self.reader.release()
        self.responses.on_connection_lost()

    def eof_received(self) -> bool:
        """Close the connection. Most clients shut their end when they disconnect, so open requests are cancelled."""
        return False

    def pause_writing(self) -> None:
        """The client does not read."""
        self.responses.pause_writing()

    def resume_writing(self) -> None:
        """The client has read."""
        self.responses.resume_writing()

    def _stop_reading(self) -> None:
        self.reader.stop()

    def _reuse_body_buffer(self, buffer: bytearray) -> None:
        self.reader.reuse_buffer(buffer)
