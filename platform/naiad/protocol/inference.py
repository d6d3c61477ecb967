"""Requests and responses as plain values, the same for every frontend, for calls between models and for ensembles.

The classes are slotted and mutable only for speed (a frozen dataclass costs a `object.__setattr__` per field on the
request path); nobody changes a request after submitting it or a response after receiving it.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol, TypeAlias

from naiad.errors import NaiadError
from naiad.protocol.datatypes import Datatype

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Tensor bytes: little-endian, C order; BYTES as `<u32 length><data>` per element."""

Parameter: TypeAlias = bool | int | float | str

NO_PARAMETERS: Mapping[str, Parameter] = MappingProxyType({})


def _no_parameters() -> Mapping[str, Parameter]:
    # Before Python 3.12 a mapping proxy has no hash, so dataclasses refuse it as a plain default.
    return NO_PARAMETERS


SEQUENCE_START = 1
SEQUENCE_END = 2


@dataclass(slots=True)
class InputTensor:
    """One input as it came: the frontend has split bytes, the engine checks them against the model.

    Attributes:
        name: Name of the model's input.
        datatype: Datatype as the client named it.
        shape: Dimensions, batch dimension included.
        data: The elements; a view of the received body where possible.
    """

    name: str
    datatype: Datatype
    shape: tuple[int, ...]
    data: Buffer


class Trace(Protocol):
    """Takes notes about one request."""

    @property
    def context(self) -> bytes | None:
        """What the model is told of it, as JSON; empty for a trace of which there is nothing to tell, None for none."""

    def on_computed(self, queued: int, laid_out: int, started: int, ended: int, done: int) -> None:
        """Note when it was queued, taken to a guest, begun and finished there, and answered: monotonic nanoseconds."""

    def on_composed(self, queued: int, laid_out: int, started: int, ended: int, done: int) -> None:
        """Likewise where nothing was computed: times of an ensemble's steps, or of finding a kept response."""

    def start_child(self, request: InferRequest, sink: Sink) -> Sink:
        """Trace a request that this one leads to; return the sink for its responses."""

    def on_rejected(self) -> None:
        """Note that it was not taken up, so that nothing more will happen."""


@dataclass(slots=True)
class InferRequest:
    """One inference request.

    Attributes:
        model_name: Name of the model.
        model_version: Version, or -1 for the one the version policy names (the highest that is ready).
        inputs: The inputs, in the client's order.
        request_id: The client's id, empty if none was given.
        requested_outputs: Names of outputs to return; empty means all.
        parameters: Parameters for the model; reserved ones are already taken out.
        correlation_id: Sequence id, an unsigned integer or a string; 0 and "" mean none.
        flags: SEQUENCE_START and SEQUENCE_END.
        priority: Priority level, 0 for the model's default.
        timeout_us: Timeout in microseconds, 0 for none.
        layout_key: Equal for requests that differ in nothing but their id and their tensors' bytes, so that what the
            check of one of them found holds for all; None if unknown. Frontends use a fresh `object()` for each form of
            request they recognise.
        trace: Whom to tell when what happened to it; None for most.
    """

    model_name: str
    model_version: int
    inputs: Sequence[InputTensor]
    request_id: str = ""
    requested_outputs: Sequence[str] = ()
    parameters: Mapping[str, Parameter] = field(default_factory=_no_parameters)
    correlation_id: int | str = 0
    flags: int = 0
    priority: int = 0
    timeout_us: int = 0
    layout_key: Hashable | None = None
    trace: Trace | None = None


@dataclass(slots=True)
class OutputTensor:
    """One output.

    Attributes:
        name: Name of the model's output.
        datatype: Datatype as the model produced it (the reference does not check it against the configuration).
        shape: Dimensions, batch dimension included.
        data: The elements. A memoryview may lie in a guest's segment: the bytes stay valid for as long as the view
            (or a slice of it) is referenced, and are given back when the last reference goes.
    """

    name: str
    datatype: Datatype
    shape: tuple[int, ...]
    data: Buffer


@dataclass(slots=True)
class InferResponse:
    """One response to a request; a request may have any number of them.

    Attributes:
        model_name: Name of the model that answered.
        model_version: Its version.
        request_id: The id the request came with.
        outputs: Outputs in the model's order.
        parameters: Response parameters set by the model.
        error: Set where this response is an error; outputs are empty then.
        layout: The same object for responses whose outputs differ in nothing but their bytes; None if unknown.
    """

    model_name: str
    model_version: int
    request_id: str = ""
    outputs: Sequence[OutputTensor] = ()
    parameters: Mapping[str, Parameter] = field(default_factory=_no_parameters)
    error: NaiadError | None = None
    layout: object = None


class Sink(Protocol):
    """Where the responses of one request go: any number of them and one end.

    A plain inference, a decoupled stream, a call from another model and an ensemble step all look like this.
    Called on the event loop's thread only.
    """

    def send(self, response: InferResponse | None, final: bool) -> None:  # noqa: FBT001 - on the request path
        """Take one response (None: a final mark without one). After `final` no call follows."""
