"""ModelInfer: one request, one response. Callbacks alone: an asyncio task would cost more than the rest of the call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from naiad.core.errors import Code, NaiadError
from naiad.frontends.grpc.calls import GrpcCall
from naiad.frontends.grpc.messages import Message
from naiad.frontends.kserve_grpc import response_codec
from naiad.frontends.kserve_grpc.request_codec import LONG_MESSAGE
from naiad.frontends.kserve_grpc.service import Inference, ServiceContext
from naiad.frontends.offload.exchanges import Cancellable
from naiad.frontends.region_inputs import Start, complete_inputs
from naiad.protocol.inference import Buffer, InferResponse, SubmittedRequest


@dataclass(slots=True, eq=False)
class ModelInfer:
    """One inference: the method of its call, and the sink of its response."""

    _context: ServiceContext
    _call: GrpcCall
    _message_buffer: Message = b""
    _inference: Inference | None = None
    _is_counted: bool = False  # by the gate
    _submitted: SubmittedRequest | None = None
    _job: Cancellable | None = None  # work that is done later, before the request or after the response
    _response: InferResponse | None = None
    _response_count: int = 0

    def send(self, response: InferResponse | None, final: bool) -> None:  # noqa: FBT001 - the signature of `Sink`
        if response is not None:
            self._response = response
            self._response_count += 1
        if not final:
            return
        self._leave_gate()
        if self._call.is_over:
            self._response = None
            return
        requested = None if self._inference is None else self._inference.requested
        if requested is not None and response is not None and requested.is_long(response):
            slices = self._context.extensions.background.slices
            self._job = slices.start(requested.apply_steps(response), self._on_applied, self._on_failed)
            return
        self._complete()

    def _complete(self) -> None:
        try:
            parts = self._encode_response()
        except Exception as error:  # noqa: BLE001 - any error becomes the call's status
            self._on_failed(error)
            return
        self._call.respond(parts)
        self._context.pool.put(self._message_buffer)

    def on_request(self, message: Message) -> None:
        """Submit the inference that a message requests; a long message is read in steps first."""
        context = self._context
        try:
            context.gate.check_open()
            if len(message) >= LONG_MESSAGE:
                self._message_buffer = message
                self._enter_gate()
                job = context.service.read_long(message, self._on_read, self._on_failed)
                if job is not None:
                    self._job = job
                return
            inference = self._inference = context.service.read(message)
            if inference.requested is not None and inference.requested.has_region_inputs:
                self._message_buffer = message
                self._enter_gate()
                self._on_read(inference)
                return
            propagated = self._propagated(inference)
            self._message_buffer = message
            self._is_counted = True
            context.gate.enter()
            self._submitted = context.service.submit(inference.request, self, propagated)
        except Exception as error:  # noqa: BLE001 - any error becomes the call's status
            self._leave_gate()
            self._call.fail(error)

    def _on_read(self, inference: Inference) -> None:
        """The request of a long message, or one with inputs in shared memory, was decoded."""
        self._job = None
        self._inference = inference
        context = self._context
        try:
            complete_inputs(
                inference.request,
                inference.requested,
                context.engine,
                context.extensions,
                self._later,
                self._submit_read,
            )
        except Exception as error:  # noqa: BLE001 - any error becomes the call's status
            self._on_failed(error)

    def _later(self, start: Start, then: Callable[[None], None]) -> None:
        def on_done(value: None) -> None:
            self._job = None
            try:
                then(value)
            except Exception as error:  # noqa: BLE001 - any error becomes the call's status
                self._on_failed(error)

        self._job = start(on_done, self._on_failed)

    def _submit_read(self) -> None:
        """The request has the bytes of all its inputs, and can be checked without further work."""
        inference = self._inference
        assert inference is not None
        self._submitted = self._context.service.submit(inference.request, self, self._propagated(inference))

    def _propagated(self, inference: Inference) -> Mapping[str, str]:
        """The metadata that requests caused by this one carry on; those that are forwarded become parameters."""
        head, forwarder = self._call.head, self._context.forwarder
        if forwarder is None:
            return head.propagated
        return forwarder.forward(inference.request, head.metadata, head.propagated)

    def _on_applied(self, response: InferResponse) -> None:
        self._job = None
        self._response = response
        inference = self._inference
        assert inference is not None
        self._inference = Inference(inference.request, response_codec.encode_response)
        self._release_regions(inference)
        self._complete()

    def _release_regions(self, inference: Inference | None) -> None:
        """Nothing is read or written any more. Before the response: its client may unregister a region next."""
        if inference is not None and inference.requested is not None:
            inference.requested.release()

    def _on_failed(self, error: Exception) -> None:
        self._job = self._submitted = None  # what has failed, or is complete, cannot be cancelled
        inference, self._inference = self._inference, None
        self._release_regions(inference)
        self._leave_gate()
        self._call.fail(error)

    def _encode_response(self) -> list[Buffer]:
        response, inference = self._response, self._inference
        self._response = self._inference = None
        if response is None:
            raise NaiadError("received an unexpected null response", code=Code.INTERNAL)
        if self._response_count != 1:
            raise NaiadError(f"expected a single response, got {self._response_count}", code=Code.INTERNAL)
        assert inference is not None
        try:
            return inference.encode(response)
        finally:
            self._release_regions(inference)

    def _enter_gate(self) -> None:
        self._is_counted = True
        self._context.gate.enter()

    def _leave_gate(self) -> None:
        if self._is_counted:
            self._is_counted = False
            self._context.gate.leave()

    def on_cancel(self) -> None:
        self._leave_gate()
        inference, self._inference = self._inference, None
        self._release_regions(inference)
        job, self._job = self._job, None
        if job is not None:
            job.cancel()
        if self._submitted is not None:
            self._submitted.cancel()
