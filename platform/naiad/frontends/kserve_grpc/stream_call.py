"""ModelStreamInfer on its stream of HTTP/2: messages in and out, as fast as the client reads.

Back pressure has two steps. While responses wait for a client that does not read, its further requests wait here; once
some do, the stream's window is not opened again, and the client itself blocks. Other streams of the connection
continue.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from naiad.errors import NotReadyError
from naiad.frontends.grpc import response_fields
from naiad.frontends.grpc.call_head import CallHead
from naiad.frontends.grpc.calls import INCOMPLETE_MESSAGE, GrpcCall
from naiad.frontends.grpc.gate import SHUTTING_DOWN
from naiad.frontends.grpc.messages import with_prefix
from naiad.frontends.http2.stream import Stream
from naiad.frontends.kserve_grpc.infer_stream import InferStream
from naiad.frontends.kserve_grpc.service import ServiceContext
from naiad.frontends.status import GrpcStatus
from naiad.protocol.inference import InferRequest

_MAX_UNSENT = 1 << 22
"""Bytes of unsent responses beyond which further requests wait."""
_MAX_EXPECTED = 1 << 26
"""Bytes of responses to requests in flight, as expected, beyond which further requests wait: if the client stops
reading, all of them will be unsent."""
_NO_TICKET = object()
"""The marker of a message without a ticket: waiting requests are fed when it has left, too."""


class StreamCall(GrpcCall[ServiceContext]):
    """A call of ModelStreamInfer."""

    __slots__ = ("_has_all_messages", "_inference", "_is_feeding", "_longest_message", "_waiting")

    def __init__(self, stream: Stream, head: CallHead[Any], context: ServiceContext) -> None:
        super().__init__(stream, head, context)
        self._inference = InferStream(
            context.engine,
            context.gate,
            self._send_outgoing,
            context.extensions,
            self._forward_metadata,
            headers=head.propagated,
            errors_end_stream=("triton_grpc_error", "true") in head.metadata,
        )
        self._waiting: deque[bytes] = deque()
        self._has_all_messages = False
        self._is_feeding = False
        # The longest message so far, either way: the best guess of a response's size.
        self._longest_message = 0
        context.gate.add_close_callback(self._send_outgoing)

    def on_sent(self, marker: object) -> None:
        """A message has left; requests that waited for it are submitted."""
        if isinstance(marker, int):
            self._inference.on_sent(marker)
        if self._waiting and self._stream.unsent < _MAX_UNSENT // 2:
            self._feed()

    def _on_messages(self, messages: list[bytes | bytearray], *, ended: bool) -> None:
        self._waiting.extend([bytes(message) for message in messages])
        self._has_all_messages = self._has_all_messages or ended
        self._feed()

    def _feed(self) -> None:
        """Submit waiting requests as far as there is room for their responses."""
        if self._is_feeding:
            return
        self._is_feeding = True
        try:
            while self._waiting and not self._is_over and self._has_room():
                message = self._waiting.popleft()
                self._longest_message = max(self._longest_message, len(message))
                self._inference.feed(message)
        except Exception as error:  # noqa: BLE001 - any error becomes the call's status
            self.fail(error)
        finally:
            self._is_feeding = False
        if self._is_over:
            return
        stream = self._stream
        if self._waiting and not stream.is_paused:
            stream.controller.pause_stream(stream)
        elif stream.is_paused and not self._waiting:
            stream.controller.resume_stream(stream)
        if self._has_all_messages and not self._waiting:
            if self._reader is not None and self._reader.is_within_message:
                self.fail_with(GrpcStatus.INTERNAL, INCOMPLETE_MESSAGE)
            else:
                self._inference.end_requests()

    def _has_room(self) -> bool:
        """Whether the responses to one more request may have to wait here."""
        return self._stream.unsent < _MAX_UNSENT and self._inference.pending * self._longest_message < _MAX_EXPECTED

    def _send_outgoing(self) -> None:
        """Send the messages that are ready, and end the call after the last one."""
        inference, outgoing = self._inference, self._inference.outgoing
        while outgoing and not self._is_over:
            message, ticket = outgoing.popleft()
            self._send(message, ticket)
        if self._is_over:
            return
        if inference.failure is not None:
            self.fail(inference.failure)
        elif inference.is_finished:
            self._complete()
        elif self._context.gate.is_closed and inference.is_idle:
            self.fail(NotReadyError(SHUTTING_DOWN))
        elif self._waiting:
            self._feed()

    def _send(self, message: bytes, ticket: int | None) -> None:
        if not self._has_sent_headers:
            self._send_headers()
        self._longest_message = max(self._longest_message, len(message))
        parts, size = with_prefix([message], len(message), self._head.response_encoding)
        stream = self._stream
        stream.sender.send_data(stream, parts, size, _NO_TICKET if ticket is None else ticket)

    def _send_headers(self) -> None:
        self._has_sent_headers = True
        fields = response_fields.HEADERS[self._head.response_encoding]
        self._stream.sender.send_headers(self._stream, fields, is_constant=True, ends=False)

    def _complete(self) -> None:
        if not self._has_sent_headers:
            self._send_headers()
        self._finish()
        self._context.gate.remove_close_callback(self._send_outgoing)
        self._stream.sender.send_trailers(self._stream, response_fields.OK_TRAILERS, is_constant=True)

    def _forward_metadata(self, request: InferRequest) -> None:
        if self._context.forwarder is not None:
            self._context.forwarder.forward(request, self._head.metadata)

    def _cancel(self) -> None:
        self._context.gate.remove_close_callback(self._send_outgoing)
        self._waiting.clear()
        self._inference.cancel()
