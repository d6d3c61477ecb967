"""ModelStreamInfer: requests in, messages out, without a transport.

Messages of a stream are independent requests. Errors go in band and the stream stays open; a request's last response
is marked. Responses of models that answer exactly once leave in the order of the requests; those of decoupled models
leave as they come (SRV src/grpc/stream_infer_handler.cc).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

from naiad.engine.door import EngineDoor
from naiad.errors import NaiadError
from naiad.frontends.extensions import Extensions
from naiad.frontends.grpc.gate import Gate
from naiad.frontends.kserve_grpc import request_codec as codec
from naiad.frontends.kserve_grpc.service_pb2 import ModelInferRequest
from naiad.frontends.requested_outputs import RequestedOutputs
from naiad.frontends.tracing.tracer import NO_HEADERS
from naiad.protocol.inference import InferRequest, InferResponse


class InferStream:
    """One stream. The transport calls `feed` and `end_of_requests`, and sends what `outgoing` holds.

    Attributes:
        outgoing: Messages to send, the oldest first, with the ticket of a request that may have many (else None). The
            transport takes them out and calls `sent` with that ticket when they have left.
        failure: Set where an error has ended the stream (only where errors shall do that).
    """

    def __init__(
        self,
        engine: EngineDoor,
        gate: Gate,
        wake: Callable[[], None],
        extensions: Extensions | None = None,
        prepare: Callable[[InferRequest], None] | None = None,
        *,
        headers: Mapping[str, str] = NO_HEADERS,
        errors_end_stream: bool = False,
    ) -> None:
        """Make a stream.

        Args:
            engine: Who answers.
            gate: Counts the requests, and refuses new ones while the server stops.
            wake: Called when there is something for the transport to do.
            extensions: What is shared with other frontends.
            prepare: Called with each request before the engine gets it.
            headers: Those that say to which trace the requests belong.
            errors_end_stream: Whether the first error ends the stream (metadata `triton_grpc_error: true`).
        """
        self.outgoing: deque[tuple[bytes, int | None]] = deque()
        self.failure: NaiadError | None = None
        self._engine = engine
        self._gate = gate
        self._wake = wake
        self._errors_end_stream = errors_end_stream
        extensions = extensions or Extensions()
        self._regions = extensions.regions
        self._tracer = extensions.tracer
        self._prepare = prepare
        self._headers = headers
        self._requests_ended = False
        self._in_order: deque[_StreamedRequest] = deque()
        self._in_flight: set[_StreamedRequest] = set()

    def __repr__(self) -> str:
        return f"<InferStream in-flight={len(self._in_flight)} outgoing={len(self.outgoing)}>"

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits for the engine or the transport."""
        return not self._in_flight and not self.outgoing

    @property
    def pending(self) -> int:
        """How many requests have responses to come, or to go out behind those of earlier ones."""
        return max(len(self._in_flight), len(self._in_order))

    @property
    def is_finished(self) -> bool:
        """Whether the last message of the last request is taken."""
        return self._requests_ended and self.is_idle

    def feed(self, data: bytes) -> None:
        """Take one message of the client."""
        if self.failure is not None:
            return
        request: _StreamedRequest | None = None
        try:
            message = codec.parse(data)
            request = _StreamedRequest(self, message.body)
            self._submit(request, message)
        except NaiadError as error:
            if request is None:  # not even an id to answer to
                request = _StreamedRequest(self, ModelInferRequest())
            self._refuse(request, error)

    def sent(self, ticket: int | None) -> None:
        """Note that a message has left for the client: its model is held back while too many wait."""
        if ticket is not None:
            self._engine.confirm_sent(ticket)

    def end_of_requests(self) -> None:
        """Note that the client has sent its last message."""
        self._requests_ended = True
        self._wake()

    def cancel(self) -> None:
        """Take back what is in flight; nothing more goes out."""
        in_flight, self._in_flight = self._in_flight, set()
        self._in_order.clear()
        for request in in_flight:
            request.ended = True
            self._gate.leave()
            if request.ticket is not None:
                self._engine.cancel(request.ticket)

    def _submit(self, request: _StreamedRequest, message: codec.InferMessage) -> None:
        self._gate.check()
        version = codec.parse_version(message.body.model_version)
        request.decoupled = self._engine.is_decoupled(message.body.model_name, version)
        infer_request, request.enable_empty_final, request.requested = codec.decode_request(
            message, version, self._regions
        )
        if request.requested is not None:
            name = infer_request.model_name
            metadata, config = self._engine.model_metadata(name, version), self._engine.model_config(name, version)
            request.requested.set_model(metadata, config)
        if self._prepare is not None:
            self._prepare(infer_request)
        # In the queue before the engine has it: it may answer before `submit` returns.
        if not request.decoupled:
            self._in_order.append(request)
        self._in_flight.add(request)
        self._gate.enter()
        try:
            if self._tracer.is_on:
                request.ticket = self._tracer.submit(self._engine, infer_request, request, "GRPC", self._headers)
            else:
                request.ticket = self._engine.submit(infer_request, request)
        except Exception:
            self.end(request)
            raise
        if self.failure is not None:  # the model answered with an error before there was a ticket to cancel
            self._engine.cancel(request.ticket)

    def _refuse(self, request: _StreamedRequest, error: NaiadError) -> None:
        """Answer a request that never reached the model."""
        if self._errors_end_stream:
            self.fail(error)
            return
        answer = codec.encode_stream_error(error.message, request.body, final=None)
        if request.decoupled:
            self.send(answer, None)
            return
        request.ended = True
        request.ready.append(answer)
        if not self._in_order or self._in_order[-1] is not request:
            self._in_order.append(request)
        self.flush()

    def error(self, request: _StreamedRequest, error: NaiadError, *, final: bool) -> bytes | None:
        """The message for an error of the model; None where it ends the stream instead."""
        if self._errors_end_stream:
            self.fail(error)
            return None
        return codec.encode_stream_error(error.message, request.body, final=final)

    def fail(self, error: NaiadError) -> None:
        """End the stream with a status."""
        if self.failure is None:
            self.failure = error
            self.cancel()
            self._wake()

    def send(self, message: bytes, ticket: int | None) -> None:
        """Send a message now."""
        self.outgoing.append((message, ticket))
        self._wake()

    def end(self, request: _StreamedRequest) -> None:
        """Note that a request has its last response."""
        if request in self._in_flight:
            self._in_flight.remove(request)
            self._gate.leave()
        self._wake()

    def flush(self) -> None:
        """Send the messages of requests that have ended and wait for no earlier one."""
        while self._in_order and self._in_order[0].ended:
            self.outgoing.extend((message, None) for message in self._in_order.popleft().ready)
        self._wake()


class _StreamedRequest:
    """One request of a stream and the sink of its responses."""

    __slots__ = ("_last", "_stream", "body", "decoupled", "enable_empty_final", "ended", "ready", "requested", "ticket")

    def __init__(self, stream: InferStream, body: ModelInferRequest) -> None:
        self.body = body
        self.decoupled = False
        self.enable_empty_final = False
        self.ended = False
        self.ticket: int | None = None
        self.ready: list[bytes] = []
        self.requested: RequestedOutputs | None = None
        self._stream = stream
        self._last: InferResponse | None = None

    def send(self, response: InferResponse | None, final: bool) -> None:  # noqa: FBT001 - the signature of `Sink`
        """Take a response or the end."""
        if self.ended:  # cancelled
            return
        self.ended = final
        if self.decoupled:
            self._send_now(response, final=final)
        else:
            self._send_in_order(response, final=final)
        if final:
            self._stream.end(self)

    def _send_now(self, response: InferResponse | None, *, final: bool) -> None:
        if response is not None:
            message = self._encode(response, final=final)
            if message is not None:
                self._stream.send(message, self.ticket)
        elif final and self.enable_empty_final:
            self._stream.send(codec.encode_empty_final(self.body), None)

    def _send_in_order(self, response: InferResponse | None, *, final: bool) -> None:
        # The mark belongs on the last response, even if the end comes separately: keep one back.
        if response is not None:
            self._take_last(final=False)
            self._last = response
        if final:
            self._take_last(final=True)
            self._stream.flush()

    def _take_last(self, *, final: bool) -> None:
        if self._last is not None:
            message = self._encode(self._last, final=final)
            if message is not None:
                self.ready.append(message)
            self._last = None

    def _encode(self, response: InferResponse, *, final: bool) -> bytes | None:
        try:
            return codec.encode_streamed(response, self.requested, final=final)
        except NaiadError as error:
            return self._stream.error(self, error, final=final)
