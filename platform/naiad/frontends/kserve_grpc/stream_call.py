"""ModelStreamInfer on a stream: messages to requests, responses to messages, as fast as the client reads."""

from __future__ import annotations

from collections import deque
from typing import Any

from naiad.errors import NotReadyError
from naiad.frontends.grpc import response_fields as answers
from naiad.frontends.grpc.call_head import CallHead
from naiad.frontends.grpc.calls import CUT_OFF, Call, Serving
from naiad.frontends.grpc.gate import SHUTTING_DOWN
from naiad.frontends.grpc.messages import framed
from naiad.frontends.http2.stream import Stream
from naiad.frontends.kserve_grpc.infer_stream import InferStream
from naiad.frontends.status import GrpcStatus

_MOST_UNSENT = 1 << 22
"""Bytes of answers that wait for the client before its further requests do."""
_MOST_EXPECTED = 1 << 26
"""Bytes of answers that are expected to requests in flight, before further requests wait: at worst all come unsent."""
_NO_TICKET = object()


class StreamCall(Call):
    """A call of ModelStreamInfer."""

    __slots__ = ("_has_ended", "_inference", "_is_feeding", "_longest", "_waiting")

    def __init__(self, stream: Stream, head: CallHead[Any], serving: Serving) -> None:
        super().__init__(stream, head, serving)
        self._inference = InferStream(
            serving.engine,
            serving.gate,
            self._pump,
            serving.extensions,
            self._forward,
            headers=head.propagated,
            errors_end_stream=("triton_grpc_error", "true") in head.metadata,
        )
        self._waiting: deque[bytes] = deque()
        self._has_ended = False
        self._is_feeding = False
        self._longest = 0  # message, either way: what is known of answers to come
        serving.gate.watch(self._pump)

    def left(self, mark: object) -> None:
        """A message has left; requests that waited for that go on."""
        if isinstance(mark, int):
            self._inference.sent(mark)
        if self._waiting and self._stream.unsent < _MOST_UNSENT // 2:
            self._feed()

    def _take(self, messages: list[bytes | bytearray], *, ended: bool) -> None:
        self._waiting.extend([bytes(message) for message in messages])
        self._has_ended = self._has_ended or ended
        self._feed()

    def _feed(self) -> None:
        """Hand on what the client has sent, unless it does not read what that leads to."""
        if self._is_feeding:
            return
        self._is_feeding = True
        try:
            while self._waiting and not self._is_over and self._has_room():
                message = self._waiting.popleft()
                self._longest = max(self._longest, len(message))
                self._inference.feed(message)
        except Exception as error:  # noqa: BLE001 - it becomes the call's status
            self.fail(error)
        finally:
            self._is_feeding = False
        if self._is_over:
            return
        if bool(self._waiting) != self._stream.is_held:
            self._stream.connection.hold(self._stream, is_held=bool(self._waiting))
        if self._has_ended and not self._waiting:
            if self._reader is not None and self._reader.is_within:
                self.fail_with(GrpcStatus.INTERNAL, CUT_OFF)
            else:
                self._inference.end_of_requests()

    def _has_room(self) -> bool:
        """Whether the answers to another request could wait here for a client that does not read."""
        return self._stream.unsent < _MOST_UNSENT and self._inference.pending * self._longest < _MOST_EXPECTED

    def _pump(self) -> None:
        """Send what there is to send, and the end after it."""
        inference, outgoing = self._inference, self._inference.outgoing
        while outgoing and not self._is_over:
            message, ticket = outgoing.popleft()
            self._send(message, ticket)
        if self._is_over:
            return
        if inference.failure is not None:
            self.fail(inference.failure)
        elif inference.is_finished:
            self._finish()
        elif self._serving.gate.closed and inference.is_idle:
            self.fail(NotReadyError(SHUTTING_DOWN))
        elif self._waiting:
            self._feed()

    def _send(self, message: bytes, ticket: int | None) -> None:
        stream, encoding = self._stream, self._head.answers
        if not self._begun:
            self._begin()
        self._longest = max(self._longest, len(message))
        parts, size = framed([message], len(message), encoding)
        stream.connection.send(stream, parts, size, _NO_TICKET if ticket is None else ticket)

    def _begin(self) -> None:
        self._begun = True
        stream = self._stream
        stream.connection.start(stream, answers.BEGIN[self._head.answers], is_constant=True, ends=False)

    def _finish(self) -> None:
        if not self._begun:
            self._begin()
        self._end()
        self._serving.gate.unwatch(self._pump)
        self._stream.connection.finish(self._stream, answers.OK, is_constant=True)

    def _take_back(self) -> None:
        self._serving.gate.unwatch(self._pump)
        self._waiting.clear()
        self._inference.cancel()
