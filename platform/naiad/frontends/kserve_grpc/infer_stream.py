"""ModelStreamInfer without the transport: request messages in, response messages out.

The messages of a stream are independent requests. An error is a response with `error_message`; the stream stays open,
unless the client asks for `triton_grpc_error`. Each response says whether it is the last of its request
(`triton_final_response`). Responses of models that respond exactly once are sent in the order of the requests; those of
decoupled models are sent as they come (SRV src/grpc/stream_infer_handler.cc).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from naiad.core.errors import NaiadError, without_frames
from naiad.engine.facade import EngineFacade
from naiad.frontends.callbacks import do_nothing
from naiad.frontends.extensions import Extensions
from naiad.frontends.grpc.gate import AdmissionGate
from naiad.frontends.grpc.messages import Message
from naiad.frontends.kserve_grpc import request_codec, response_codec
from naiad.frontends.kserve_grpc.long_messages import start_reading
from naiad.frontends.kserve_grpc.request_codec import LONG_MESSAGE, InferMessage, LongHead
from naiad.frontends.kserve_grpc.service_pb2 import ModelInferRequest
from naiad.frontends.offload.exchanges import Cancellable
from naiad.frontends.region_inputs import complete_inputs
from naiad.frontends.requested_outputs import RequestedOutputs
from naiad.frontends.tensor_limits import NO_LIMITS, limits_of
from naiad.protocol.inference import InferRequest, InferResponse, SubmittedRequest

logger = logging.getLogger("naiad.grpc")

T = TypeVar("T")

_FEW_TENSORS = 64  # tensors of a request from which their number is compared with the model's before they are read


@dataclass(slots=True, eq=False)
class InferStream:
    """The requests of one stream. The transport calls `feed` and `end_requests`, and sends what `outgoing` holds."""

    _engine: EngineFacade
    _gate: AdmissionGate
    _on_change: Callable[[], None]  # called when `outgoing`, `failure` or `is_finished` may have changed
    extensions: Extensions = field(default_factory=Extensions)
    _prepare: Callable[[InferRequest], None] | None = None  # called with each request before it is submitted
    headers: Mapping[str, str] = field(default_factory=dict)  # those that name the trace which the requests belong to
    errors_end_stream: bool = False  # whether the first error ends the stream (metadata `triton_grpc_error: true`)
    # Messages to send, oldest first, each with its request where that may have many responses, else None. The
    # transport removes them, and calls `on_sent` with the request once a message has left.
    outgoing: deque[tuple[bytes, SubmittedRequest | None]] = field(default_factory=deque)
    failure: NaiadError | None = None  # the error that ended the stream, where errors do that
    _has_all_requests: bool = False
    # Requests of models that respond once, in their order, until their responses are in `outgoing`.
    _in_order: deque[_StreamedRequest] = field(default_factory=deque)
    _in_flight: set[_StreamedRequest] = field(default_factory=set)
    _reading: Cancellable | None = None

    def __repr__(self) -> str:
        return f"<InferStream in-flight={len(self._in_flight)} outgoing={len(self.outgoing)}>"

    @property
    def is_idle(self) -> bool:
        """Whether no request is read or in flight, and no message is left to send."""
        return not self._in_flight and not self.outgoing and self._reading is None

    @property
    def is_reading(self) -> bool:
        """Whether a long message is being read. The next one must wait, as requests keep their order."""
        return self._reading is not None

    @property
    def pending(self) -> int:
        """How many requests still have responses to send."""
        return max(len(self._in_flight), len(self._in_order))

    @property
    def is_finished(self) -> bool:
        return self._has_all_requests and self.is_idle

    def feed(self, data: Message) -> None:
        """Submit the request that one message of the client holds; later, if that takes long (see `is_reading`)."""
        if self.failure is not None:
            return
        request: _StreamedRequest | None = None
        try:
            message = request_codec.parse_short(data) if len(data) >= LONG_MESSAGE else request_codec.parse(data)
            request = _StreamedRequest(self, message.body)
            self._read(request, message)
        except Exception as error:  # noqa: BLE001 - the stream's other requests must still be answered
            if request is None:  # the message is malformed: the error has no id
                request = _StreamedRequest(self, ModelInferRequest())
            self._reject(request, _reported(error))

    def _read(self, request: _StreamedRequest, message: InferMessage | LongHead) -> None:
        self._gate.check_open()
        body = message.body
        version = request_codec.parse_version(body.model_version)
        request.is_decoupled = self._engine.is_decoupled(body.model_name, version)
        if isinstance(message, LongHead):
            start = partial(start_reading, message, version, self._engine, self.extensions)
            self._read_later(request, start, lambda read: self._check(request, *read))
            return
        limits = NO_LIMITS
        if len(body.inputs) > _FEW_TENSORS or len(body.outputs) > _FEW_TENSORS:
            limits = limits_of(self._engine.model_metadata(body.model_name, version))
        self._check(request, *request_codec.decode_request(message, version, self.extensions.regions, limits))

    def _read_later(
        self,
        request: _StreamedRequest,
        start: Callable[[Callable[[T], None], Callable[[Exception], None]], Cancellable],
        then: Callable[[T], None],
    ) -> None:
        # The next message is fed when `is_reading` is false, so that has to wait until this request is in its place.
        def on_done(value: T) -> None:
            done = self._reading
            try:
                then(value)
            except Exception as error:  # noqa: BLE001 - as in `feed`; and the next message waits for `end`
                self._reject(request, _reported(error))
            end(done)

        def on_failed(error: Exception) -> None:
            done = self._reading
            self._reject(request, _reported(error))
            end(done)

        def end(done: Cancellable | None) -> None:
            if self._reading is done:  # otherwise more work was started for the request
                self._reading = None
            self._on_change()

        self._reading = start(on_done, on_failed)

    def _check(
        self,
        request: _StreamedRequest,
        infer_request: InferRequest,
        enable_empty_final: bool,  # noqa: FBT001 - a part of what `decode_request` returns
        requested: RequestedOutputs | None,
    ) -> None:
        """Submit a request that was decoded, after its inputs are complete."""
        request.enable_empty_final, request.requested = enable_empty_final, requested
        complete_inputs(
            infer_request,
            requested,
            self._engine,
            self.extensions,
            partial(self._read_later, request),
            lambda: self._submit(request, infer_request),
        )

    def on_sent(self, submitted: SubmittedRequest | None) -> None:
        """A message has left for the client. A model with too many unsent responses is held back until then."""
        if submitted is not None:
            submitted.confirm_sent()

    def end_requests(self) -> None:
        self._has_all_requests = True
        self._on_change()

    def detach(self) -> None:
        """Call nothing any more: the transport's callbacks refer to what refers to this stream."""
        self._on_change = do_nothing
        self._prepare = None

    def cancel(self) -> None:
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.cancel()
        in_flight, self._in_flight = self._in_flight, set()
        self._in_order.clear()
        for request in in_flight:
            request.cancel()
            self._gate.leave()
            if request.submitted is not None:
                request.submitted.cancel()

    def _submit(self, request: _StreamedRequest, infer_request: InferRequest) -> None:
        if request.requested is not None:
            name, version = infer_request.model_name, infer_request.model_version
            metadata, config = self._engine.model_metadata(name, version), self._engine.model_config(name, version)
            request.requested.prepare(infer_request, metadata, config)
        infer_request.propagated = self.headers
        if self._prepare is not None:
            self._prepare(infer_request)
        # Queued before it is submitted: the engine may respond before `submit` returns.
        if not request.is_decoupled:
            self._in_order.append(request)
        self._in_flight.add(request)
        self._gate.enter()
        try:
            tracer = self.extensions.tracer
            if tracer.is_on:
                request.submitted = tracer.submit(self._engine, infer_request, request, "GRPC", self.headers)
            else:
                request.submitted = self._engine.submit(infer_request, request)
        except Exception:
            self.on_request_end(request)
            raise
        if self.failure is not None:  # the model failed within `submit`, before it returned what could be cancelled
            request.submitted.cancel()

    def _reject(self, request: _StreamedRequest, error: NaiadError) -> None:
        request.release_regions()
        if self.errors_end_stream:
            self.fail(error)
            return
        response = response_codec.encode_stream_error(error.message, request.body, final=None)
        if request.is_decoupled:
            self.send(response, None)
            return
        request.is_complete = True
        request.responses.append(response)
        if request not in self._in_order:
            self._in_order.append(request)
        self.send_completed()

    def on_rejected(self, request: _StreamedRequest, error: NaiadError) -> None:
        self._reject(request, error)
        request.is_complete = True
        self.on_request_end(request)

    # -- for the requests ---------------------------------------------------------------------------------------

    def encode_error(self, request: _StreamedRequest, error: NaiadError, *, final: bool) -> bytes | None:
        """The message for an error of the model; None where the error ends the stream instead."""
        if self.errors_end_stream:
            self.fail(error)
            return None
        return response_codec.encode_stream_error(error.message, request.body, final=final)

    def fail(self, error: NaiadError) -> None:
        if self.failure is None:
            self.failure = without_frames(error)
            self.cancel()
            self._on_change()

    def send(self, message: bytes, submitted: SubmittedRequest | None) -> None:
        """Send a message without regard to the order of requests."""
        self.outgoing.append((message, submitted))
        self._on_change()

    def on_request_end(self, request: _StreamedRequest) -> None:
        if request in self._in_flight:
            self._in_flight.remove(request)
            self._gate.leave()
        self._on_change()

    def send_completed(self) -> None:
        """Send the responses of complete requests, up to the first that is not."""
        while self._in_order and self._in_order[0].is_complete:
            self.outgoing.extend((message, None) for message in self._in_order.popleft().responses)
        self._on_change()


@dataclass(slots=True, eq=False)
class _StreamedRequest:
    """One request of a stream, and the sink of its responses."""

    _stream: InferStream
    body: ModelInferRequest
    is_decoupled: bool = False
    enable_empty_final: bool = False
    is_complete: bool = False
    submitted: SubmittedRequest | None = None
    responses: list[bytes] = field(default_factory=list)
    requested: RequestedOutputs | None = None
    _last: tuple[InferResponse, RequestedOutputs | None] | None = None
    # A long response is brought into the requested forms in slices; what comes meanwhile waits.
    _job: Cancellable | None = None
    _waiting: deque[tuple[InferResponse | None, bool]] | None = None

    def send(self, response: InferResponse | None, final: bool) -> None:  # noqa: FBT001 - the signature of `Sink`
        if self.is_complete:  # cancelled
            return
        if self._waiting is not None and self._job is not None:
            self._waiting.append((response, final))
        elif response is not None and self.requested is not None and self.requested.is_long(response):
            self._waiting = self._waiting or deque()
            self._job = self._stream.extensions.background.slices.start(
                self.requested.apply_steps(response),
                partial(self._on_applied, final=final),
                partial(self._on_apply_failed, final=final),
            )
        else:
            self._accept(response, self.requested, final=final)

    def cancel(self) -> None:
        self.is_complete = True
        self.release_regions()
        job, self._job, self._waiting = self._job, None, None
        if job is not None:
            job.cancel()

    def _on_applied(self, response: InferResponse, *, final: bool) -> None:
        self._job = None
        self._accept(response, None, final=final)
        while self._waiting and self._job is None:  # what has come meanwhile, up to the next long response
            self.send(*self._waiting.popleft())

    def _on_apply_failed(self, error: Exception, *, final: bool) -> None:
        failed = InferResponse(self.body.model_name, 0, request_id=self.body.id, error=without_frames(_reported(error)))
        self._on_applied(failed, final=final)

    def _accept(self, response: InferResponse | None, requested: RequestedOutputs | None, *, final: bool) -> None:
        self.is_complete = final
        if self.is_decoupled:
            self._send_now(response, requested, final=final)
        else:
            self._send_in_order(response, requested, final=final)
        if final:
            self.release_regions()
            self._stream.on_request_end(self)

    def release_regions(self) -> None:
        """Nothing is read or written any more. In the turn of the last message: its client may unregister them next."""
        if self.requested is not None:
            self.requested.release()

    def reject(self, error: NaiadError) -> None:
        if not self.is_complete:
            self._stream.on_rejected(self, error)

    def _send_now(self, response: InferResponse | None, requested: RequestedOutputs | None, *, final: bool) -> None:
        if response is not None:
            message = self._encode(response, requested, final=final)
            if message is not None:
                self._stream.send(message, self.submitted)
        elif final and self.enable_empty_final:
            self._stream.send(response_codec.encode_empty_final(self.body), None)

    def _send_in_order(
        self, response: InferResponse | None, requested: RequestedOutputs | None, *, final: bool
    ) -> None:
        # The response carries the mark, even if the end comes after it: it is kept back. Such a request has one
        # response: what follows is the error of a model that tried to send another. Clients of the reference do not
        # get that.
        if response is not None and self._last is None:
            self._last = response, requested
        if final:
            if self._last is not None:
                message = self._encode(*self._last, final=True)
                if message is not None:
                    self.responses.append(message)
                self._last = None
            self._stream.send_completed()

    def _encode(self, response: InferResponse, requested: RequestedOutputs | None, *, final: bool) -> bytes | None:
        try:
            return response_codec.encode_streamed(response, requested, final=final)
        except Exception as error:  # noqa: BLE001 - the sink is complete already, and takes no other error
            return self._stream.encode_error(self, _reported(error), final=final)


def _reported(error: Exception) -> NaiadError:
    """The error that the client gets; an unexpected one is logged."""
    if isinstance(error, NaiadError):
        return error
    logger.error("cannot serve a request of a stream: unexpected error", exc_info=error)
    return NaiadError(f"Unexpected {type(error)}: {error}")
