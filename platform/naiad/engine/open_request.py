"""The request in flight: one object from `submit` to the last response, whatever has it meanwhile."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from naiad.core.errors import NaiadError
from naiad.engine.scheduling.sequences.states import SequenceState
from naiad.guests.tensors import TensorLayout
from naiad.guests.worker import Worker
from naiad.protocol.delivery import fail_sink, reject_sink
from naiad.protocol.inference import InferRequest, InferResponse, Sink
from naiad.protocol.request_plan import PackedInputs, error_prefix

# What a request waits for, for the detection of deadlocks: for each event the guests that could cause it; an empty
# collection if such a guest is being started.
Events: TypeAlias = Sequence[Collection[Worker]]

# Number of sent responses, and of their bytes, after which the guest gets credit for more. Both are well below the
# limit at which the guest blocks, so it never idles for lack of a message.
_CREDIT_RESPONSES = 256
_CREDIT_BYTES = 2 << 20


class ForwardSource(Protocol):
    """The origin of forwarded requests. Makes their `InferRequest` and sink on demand, since most never need them."""

    def request_of(self, forwarded: ForwardedRequest) -> InferRequest:
        """A request of the source."""

    def sink_of(self, number: int) -> Sink:
        """What gets its responses."""

    def respond(self, number: int, model: tuple[str, int], layout: TensorLayout, outputs: bytes) -> None:
        """Pass on the only response to a request, as the guest wrote it; *layout* is that of *outputs*."""


class ForwardedRequest(NamedTuple):
    """A request as it came from its source, which knows it by its number."""

    source: ForwardSource
    number: int
    request_id: bytes
    inputs: bytes  # laid out as the guest expects them
    context: bytes = b""  # `InferRequest.propagated` as JSON; empty without any


class Holder(Protocol):
    """What has a request at the moment; it ignores what it does not have any more.

    One of a version that is not loaded, a loaded version, a request to an ensemble, a link to another process.
    """

    def cancel_request(self, request: OpenRequest) -> None:
        """Reject it if it is queued, else notify its guest."""

    def confirm_responses(self, request: OpenRequest, count: int) -> None:
        """See `SubmittedRequest.confirm_sent`."""

    def drop_responses(self, request: OpenRequest) -> None:
        """See `SubmittedRequest.drop_responses`."""

    def reject_waiting(self, request: OpenRequest, error: NaiadError) -> None:
        """Answer a request that waits for an instance with *error*."""

    def is_waiting(self, request: OpenRequest) -> bool:
        """Whether it waits for an instance."""

    def waits_of(self, request: OpenRequest) -> Events:
        """What it waits for, for the detection of deadlocks."""


class _Nobody:
    """Implements `Holder` for a request that nothing has: it is not submitted yet, or was answered by the cache."""

    def _ignore(self, *_: object) -> None:
        pass

    cancel_request = confirm_responses = drop_responses = reject_waiting = _ignore

    def is_waiting(self, _: OpenRequest) -> bool:
        return False

    def waits_of(self, _: OpenRequest) -> Events:
        return ()


_NOBODY = _Nobody()


class OpenRequest:
    """One request in flight, from `submit` to its last response. Implements `SubmittedRequest` and `Schedulable`.

    It stays the same object while it moves: from a version that is not loaded to the one that was, from the queue to a
    guest, to another process and back. What has it is its `holder`, which alone changes the attributes below that.

    A forwarded request (see `engine.serving.forwarding`) has neither `request` nor `sink` until one of them is read.
    """

    __slots__ = (
        "_request",
        "_sent",
        "_sink",
        "batch_size",
        "drops_responses",
        "forwarded",
        "holder",
        "instance",
        "is_cancelled",
        "is_queued",
        "key",
        "laid_out",
        "load",
        "needs_idle",
        "origin",
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
        request: InferRequest | None,
        sink: Sink | None,
        needs_idle: bool = False,  # noqa: FBT001, FBT002 - positional: keywords cost time on the request path
        forwarded: ForwardedRequest | None = None,
    ) -> None:
        """A request that nothing has yet: with *request* and *sink*, or, if it is forwarded, with neither."""
        self._request = request
        self._sink = sink
        # Whether only an instance that holds no other request may get it: it is a call of a model, and behind a request
        # that calls that model in turn, it would wait forever.
        self.needs_idle = needs_idle
        self.forwarded = forwarded  # the request as it came; None unless it is forwarded
        self.holder: Holder = _NOBODY
        # `key` is its number where its holder sends bytes: in the messages of a model version's guests, on a link. The
        # next two are when it was queued, and when it was sent to a guest (monotonic ns). `load` is the number of the
        # load that it was sent to in another process.
        self.key = self.queued = self.laid_out = self.load = 0
        self.origin: Any = None  # what the coordinator has to know beside its content (`messages.Origin`), or None
        self.batch_size = 1  # rows in a batch
        self.packed: PackedInputs | None = None  # its inputs; None where they are packed when its batch is sent
        self.worker: Worker | None = None  # the guest that it was sent to; None while it waits for one
        self.instance = ""  # of another process that has taken it; empty while none is known to
        # Requests share a batch only if theirs are equal; None is compatible with every request.
        self.shape_key: Hashable | None = None
        # Whether the scheduler has accepted it, its client has cancelled it, its further responses are discarded.
        self.is_queued = self.is_cancelled = self.drops_responses = False
        # Why the scheduler rejected it while it was enqueued; None if it did not.
        self.rejection: NaiadError | None = None
        # Of its sequence, once it was sent to a guest; None if the model keeps none.
        self.state: SequenceState | None = None
        # Bytes of each response that was not sent to the client yet; None before the first one, and always unless its
        # model is decoupled.
        self.unsent: deque[int] | None = None
        self._sent = (0, 0)  # responses and bytes sent to the client for which the guest has no credit yet

    # -- what clients do with it ----------------------------------------------------------------------------------

    def cancel(self, *, drops_responses: bool = True) -> None:
        self.holder.cancel_request(self)
        if drops_responses:
            self.holder.drop_responses(self)

    def drop_responses(self) -> None:
        self.holder.drop_responses(self)

    def confirm_sent(self, count: int = 1) -> None:
        self.holder.confirm_responses(self, count)

    # -- what those do that made it -------------------------------------------------------------------------------

    @property
    def is_waiting(self) -> bool:
        return self.holder.is_waiting(self)

    def waits(self) -> Events:
        return self.holder.waits_of(self)

    def reject_waiting(self, error: NaiadError) -> None:
        """Answer it with *error* if it waits for an instance."""
        self.holder.reject_waiting(self, error)

    @property
    def is_ended(self) -> bool:
        """Whether it was released: one that was withdrawn may still be a row of a batch."""
        return self._sink is None and self.forwarded is None

    # -- what its holder does with it -----------------------------------------------------------------------------

    def fail(self, error: NaiadError, model: tuple[str, int] | None = None) -> None:
        """Answer it with *error*, as its last response; *model*: name and version, if other than it names."""
        request = self.request
        name, version = model or (request.model_name, request.model_version)
        fail_sink(self.sink, error, (name, version, request.request_id))
        self.release()

    def reject(self, error: NaiadError) -> None:
        """Answer it with *error*, as one that was not accepted: see `RejectableSink`."""
        request = self.request
        reject_sink(self.sink, error, (request.model_name, request.model_version, request.request_id))
        self.release()

    def release(self) -> None:
        """It has its last response: keep neither its tensors nor its client, whoever keeps it."""
        self._request = self._sink = self.packed = self.forwarded = self.state = self.worker = self.origin = None
        self.holder = _NOBODY

    @property
    def request(self) -> InferRequest:
        """The request, as the model sees it."""
        if self._request is None:
            assert self.forwarded is not None
            self._request = self.forwarded.source.request_of(self.forwarded)
        return self._request

    @request.setter
    def request(self, request: InferRequest) -> None:
        self._request = request

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
