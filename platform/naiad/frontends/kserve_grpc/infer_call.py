"""ModelInfer: one request, one response. Callbacks alone: an asyncio task would cost more than the rest of the call."""

from __future__ import annotations

from typing import Any

from naiad.errors import Code, NaiadError
from naiad.frontends.grpc.call_head import CallHead
from naiad.frontends.grpc.calls import UnaryCall
from naiad.frontends.http2.stream import Stream
from naiad.frontends.kserve_grpc.service import Inference, ServiceContext
from naiad.protocol.inference import Buffer, InferResponse


class InferCall(UnaryCall[ServiceContext]):
    """A call of ModelInfer; also the sink of its response."""

    __slots__ = ("_inference", "_is_counted", "_message_buffer", "_response", "_response_count", "_ticket")

    def __init__(self, stream: Stream, head: CallHead[Any], context: ServiceContext) -> None:
        super().__init__(stream, head, context)
        self._message_buffer: bytes | bytearray = b""
        self._inference: Inference | None = None
        self._is_counted = False  # by the gate
        self._ticket: int | None = None
        self._response: InferResponse | None = None
        self._response_count = 0

    def send(self, response: InferResponse | None, final: bool) -> None:  # noqa: FBT001 - the signature of `Sink`
        """Accept a response from the engine; *final* with the last one, or with None after it."""
        if response is not None:
            self._response = response
            self._response_count += 1
        if not final:
            return
        self._leave_gate()
        if self._is_over:
            self._response = None
            return
        try:
            parts = self._encode_response()
        except Exception as error:  # noqa: BLE001 - any error becomes the call's status
            self._ticket = None  # a complete request cannot be cancelled
            self.fail(error)
            return
        self.respond(parts)
        self._context.pool.put(self._message_buffer)

    def _on_message(self, message: bytes | bytearray) -> None:
        context = self._context
        try:
            context.gate.check_open()
            inference = self._inference = context.service.read(message)
            if context.forwarder is not None:
                context.forwarder.forward(inference.request, self._head.metadata)
            self._message_buffer = message
            self._is_counted = True
            context.gate.enter()
            self._ticket = context.service.submit(inference.request, self, self._head.propagated)
        except Exception as error:  # noqa: BLE001 - any error becomes the call's status
            self._leave_gate()
            self.fail(error)

    def _encode_response(self) -> list[Buffer]:
        response, inference = self._response, self._inference
        self._response = self._inference = None
        if response is None:
            raise NaiadError("received an unexpected null response", code=Code.INTERNAL)
        if self._response_count != 1:
            raise NaiadError(f"expected a single response, got {self._response_count}", code=Code.INTERNAL)
        assert inference is not None
        return inference.encode(response)

    def _leave_gate(self) -> None:
        if self._is_counted:
            self._is_counted = False
            self._context.gate.leave()

    def _cancel(self) -> None:
        self._leave_gate()
        self._inference = None
        if self._ticket is not None:
            self._context.engine.cancel(self._ticket)
