"""Requests and responses as plain values, the same for every frontend, for calls between models and for ensembles.

The classes are slotted, and mutable only for speed: creating a frozen dataclass calls `object.__setattr__` for each
field. Requests are never changed after they are submitted, nor responses after they were sent to a sink.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

from naiad.core.errors import NaiadError
from naiad.protocol.datatypes import Datatype
from naiad.protocol.device_bytes import DeviceUse

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Tensor bytes: little-endian, C order; BYTES as `<u32 length><data>` per element."""

Parameter: TypeAlias = bool | int | float | str

DEVICE_INPUTS, DEVICE_OUTPUTS = 1, 2  # what `Target.device` says

NO_PARAMETERS: Mapping[str, Parameter] = MappingProxyType({})
NO_HEADERS: Mapping[str, str] = MappingProxyType({})
CALL_CHAIN = "naiad-call-chain"  # header with the servers that a request came through; see `backends/remote`
FORWARDED_HEADERS = "naiad-forwarded-headers"  # names of parameters that were made of headers, by commas


def _no_parameters() -> Mapping[str, Parameter]:
    # Before Python 3.12 a mapping proxy has no hash, so dataclasses refuse it as a plain default.
    return NO_PARAMETERS


def _no_headers() -> Mapping[str, str]:
    return NO_HEADERS


SEQUENCE_START = 1
SEQUENCE_END = 2


class StringScan(NamedTuple):
    """How far the elements of a BYTES tensor could be counted (`naiad.protocol.strings`)."""

    elements: int  # number of complete elements, at most the limit that was given
    position: int  # where they end; the tensor's size in bytes if nothing follows them


@dataclass(slots=True)
class InputTensor:
    """One input as the client sent it; the engine checks it against the model."""

    name: str
    datatype: Datatype
    shape: tuple[int, ...]  # dimensions, batch dimension included
    data: Buffer  # the elements; where possible a view of the received body
    # The elements of BYTES as they were counted up to the number that the shape has, where that was done before the
    # request is checked; otherwise None.
    strings: StringScan | None = None


class Trace(Protocol):
    """Records what happens to one request."""

    @property
    def context(self) -> bytes | None:
        """The context that the model gets, as JSON; empty for a trace without one, None if the model is not traced."""

    def on_computed(self, queued: int, laid_out: int, started: int, ended: int, done: int) -> None:
        """Record when it was queued, sent to a guest, started and finished there, and answered (monotonic ns)."""

    def on_composed(self, queued: int, laid_out: int, started: int, ended: int, done: int) -> None:
        """Record the same times of a request that no guest computed: an ensemble's, or one answered from the cache."""

    def start_child(self, request: InferRequest, sink: Sink) -> Sink:
        """Trace a request that this one causes; the sink for its responses."""

    def on_rejected(self) -> None:
        """Record that it was rejected: no further method is called."""


@dataclass(slots=True)
class InputPlace:
    """Where the inputs of a request are in memory that the model's guests map; they stay there while this exists."""

    segment: int  # the number of the memory (`SharedInputs.number`)
    start: int  # where the first input begins in it
    data: memoryview  # the bytes of all inputs, laid out as the guests expect them


@dataclass(slots=True)
class InferRequest:
    """One inference request."""

    model_name: str
    model_version: int  # version; -1 for the latest, the highest that is ready
    inputs: Sequence[InputTensor]
    request_id: str = ""  # the client's id; empty if it sent none
    requested_outputs: Sequence[str] = ()  # names of outputs to return; empty means all
    parameters: Mapping[str, Parameter] = field(default_factory=_no_parameters)  # without reserved ones
    correlation_id: int | str = 0  # sequence id, an unsigned integer or a string; 0 and "" mean none
    flags: int = 0
    priority: int = 0  # priority level, 0 for the model's default
    timeout_us: int = 0  # timeout in microseconds, 0 for none
    # Equal for requests that differ in nothing that a check against a plan looks at, so that what the check of one of
    # them found holds for all; None if unknown. Frontends use a fresh `object()` for each form of request they
    # recognise.
    layout_key: Hashable | None = None
    trace: Trace | None = None
    place: InputPlace | None = None  # in memory that the model's guests map; None if they must be copied
    # Headers of the client's request that the requests caused by it carry on: its trace context and its chain of
    # servers. Models find them in the context of the request's trace.
    propagated: Mapping[str, str] = field(default_factory=_no_headers)
    device: DeviceUse | None = None
    # Number of the load (`Target.number`) to whose guests all its outputs go, and to nothing else: these guests may
    # read and write them where they are. 0 if they may go elsewhere, -1 if its inputs are always copied as well.
    reader: int = 0


@dataclass(slots=True)
class OutputTensor:
    """One output."""

    name: str
    datatype: Datatype  # datatype as the model produced it (the reference does not check it against the configuration)
    shape: tuple[int, ...]  # dimensions, batch dimension included
    # The elements. A memoryview may be borrowed memory of a guest's segment: it stays valid as long as the view, or a
    # slice of it, is referenced; after that the memory is returned to the guest.
    data: Buffer


@dataclass(slots=True)
class InferResponse:
    """One response to a request; a request may have any number of them."""

    model_name: str
    model_version: int
    request_id: str = ""
    outputs: Sequence[OutputTensor] = ()
    parameters: Mapping[str, Parameter] = field(default_factory=_no_parameters)
    error: NaiadError | None = None  # set where this response is an error; outputs are empty then
    layout: object = None  # the same for all responses that differ in their outputs' bytes alone; None if unknown
    # Whether some outputs are in GPU memory: then their data is a `DeviceBytes`. Only in responses to requests that
    # allow it, or say where outputs are to be written (`InferRequest.device`).
    is_on_device: bool = False


@runtime_checkable
class RejectableSink(Protocol):
    """A sink that handles a rejected request in another way than one that has failed.

    An engine in another process can reject a request only after `submit` has returned. Other sinks get the error as a
    response.
    """

    def reject(self, error: NaiadError) -> None:
        """The engine has rejected the request; no call follows."""


class Sink(Protocol):
    """Receives the responses of one request: any number of them, then one end.

    Plain requests, decoupled streams, calls of other models and steps of ensembles all use this interface. It is called
    on the event loop's thread only.
    """

    def send(self, response: InferResponse | None, final: bool) -> None:  # noqa: FBT001 - positional: keywords cost time on the request path
        """Receive one response, or None for an end without one. No call follows after *final*."""


class SubmittedRequest(Protocol):
    """A request in flight, as its client knows it. Nothing happens to one that has had its last response."""

    def cancel(self, *, drops_responses: bool = True) -> None:
        """Cancel it, because its client has left: it is rejected if it is queued, else its model is notified.

        Its further responses are dropped, too, unless *drops_responses* is false. A request that has a single response
        may still get it.
        """

    def drop_responses(self) -> None:
        """Drop the further responses of a request that may have many; its sink gets their end alone."""

    def confirm_sent(self, count: int = 1) -> None:
        """Note that *count* responses were sent to the client: the kernel has their bytes.

        Needed where a request may have many responses, because the model is blocked while too many are unsent.
        """
