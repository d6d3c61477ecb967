"""A request between admission and its last response."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import NamedTuple, Protocol

from naiad.core import clock
from naiad.core.errors import NaiadError
from naiad.engine.scheduling.sequences.states import SequenceState
from naiad.guests.tensors import TensorLayout
from naiad.guests.worker import Worker
from naiad.protocol.inference import InferRequest, InferResponse, Sink
from naiad.protocol.request_plan import CheckedLayout, error_prefix

_CREDIT_RESPONSES = 256
_CREDIT_BYTES = 2 << 20
"""Number of sent responses, and of their bytes, after which the guest gets credit for more. Both are well below the
limit at which the guest blocks, so it never idles for lack of a message."""


class ForwardSource(Protocol):
    """The origin of forwarded requests. Makes their `InferRequest` and sink on demand, since most never need them."""

    def request_of(self, forwarded: ForwardedRequest) -> InferRequest:
        """A request of the source."""

    def sink_of(self, number: int) -> Sink:
        """What gets its responses."""

    def respond(self, number: int, model: tuple[str, int], layout: TensorLayout, outputs: bytes) -> None:
        """Pass on the only response to a request, as the guest wrote it; *layout* is that of *outputs*."""


class ForwardedRequest(NamedTuple):
    """A request as it came from its source, which knows it by its number.

    Attributes:
        number: Its number there.
        inputs: Its inputs, laid out as the guest expects them.
        context: `InferRequest.propagated` as JSON; empty without any.
    """

    source: ForwardSource
    number: int
    request_id: bytes
    inputs: bytes
    context: bytes = b""


class PendingRequest:
    """One request in flight.

    A forwarded request (see `engine.serving.forwarding`) has neither `request` nor `sink` until one of them is read.

    Attributes:
        key: Its number within its model version.
        packed: Its packed inputs; None where they are packed when its batch is sent.
        queued: When it was queued (monotonic ns).
        laid_out: When it was sent to a guest (monotonic ns).
        worker: That guest; None while it waits for one.
        shape_key: Requests share a batch only if theirs are equal; None is compatible with every request.
        is_queued: Whether the scheduler has accepted it.
        is_cancelled: Whether its client has cancelled it.
        drops_responses: Whether its further responses are discarded.
        rejection: Why the scheduler rejected it while it was enqueued; None if it did not.
        state: The state of its sequence, once it was sent to a guest; None if the model keeps none.
        unsent: Bytes of each response that was not sent to the client yet; None before the first one, and always
            unless its model is decoupled.
        forwarded: The request as it came; None unless it is forwarded.
    """

    __slots__ = (
        "_request",
        "_sent",
        "_sink",
        "batch_size",
        "drops_responses",
        "forwarded",
        "is_cancelled",
        "is_queued",
        "key",
        "laid_out",
        "packed",
        "queued",
        "rejection",
        "shape_key",
        "state",
        "unsent",
        "worker",
    )

    def __init__(
        self,
        key: int,
        request: InferRequest | None,
        sink: Sink | None,
        layout: CheckedLayout,
        forwarded: ForwardedRequest | None = None,
    ) -> None:
        """A request that was admitted: with *request* and *sink*, or, if it is forwarded, with neither."""
        self.key = key
        self._request = request
        self._sink = sink
        self.forwarded = forwarded
        self.batch_size = layout.batch_size
        self.packed = layout.packed
        self.queued = clock.monotonic_ns()
        self.laid_out = 0
        self.worker: Worker | None = None
        self.shape_key: Hashable | None = None
        self.is_queued = self.is_cancelled = self.drops_responses = False
        self.rejection: NaiadError | None = None
        self.state: SequenceState | None = None
        self.unsent: deque[int] | None = None
        self._sent = (0, 0)  # responses and bytes sent to the client for which the guest has no credit yet

    @property
    def request(self) -> InferRequest:
        """The request, as the model sees it."""
        if self._request is None:
            assert self.forwarded is not None
            self._request = self.forwarded.source.request_of(self.forwarded)
        return self._request

    @property
    def sink(self) -> Sink:
        if self._sink is None:
            assert self.forwarded is not None
            self._sink = self.forwarded.source.sink_of(self.forwarded.number)
        return self._sink

    @sink.setter
    def sink(self, sink: Sink) -> None:
        self._sink = sink

    def on_response_queued(self, response: InferResponse) -> None:
        """Note that a response of a decoupled model was passed on to the sink."""
        if self.unsent is None:
            self.unsent = deque()
        self.unsent.append(sum([len(tensor.data) for tensor in response.outputs]))

    def on_responses_sent(self, count: int) -> None:
        """Note that *count* responses were sent to the client; give the guest credit when it is worth a message."""
        sizes = self.unsent
        if sizes is None or self.worker is None:
            return
        count = min(count, len(sizes))
        responses, size = self._sent
        responses += count
        size += sum([sizes.popleft() for _ in range(count)])
        if responses >= _CREDIT_RESPONSES or size >= _CREDIT_BYTES:
            self.worker.credit(self.key, responses)
            responses = size = 0
        self._sent = (responses, size)

    def on_dropped(self) -> None:
        """Note that all responses so far are sent, or dropped: the guest is held back by what is read of it alone."""
        if self.unsent is not None:
            self.on_responses_sent(len(self.unsent))

    # -- `engine.scheduling.interface.Schedulable` ---------------------------------------------------------------------

    @property
    def priority(self) -> int:
        return self.request.priority

    @property
    def timeout_us(self) -> int:
        return self.request.timeout_us

    @property
    def correlation_id(self) -> int | str:
        return self.request.correlation_id

    @property
    def flags(self) -> int:
        return self.request.flags

    @property
    def prefix(self) -> str:
        return error_prefix(self.request)
