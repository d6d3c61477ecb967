"""Messages between processes of a server: frames of `naiad_stub.wire` with separate kinds.

Requests and responses are packed by hand where they repeat themselves. A *template* is what repeated requests have in
common, a *layout* the same of responses; each is sent once, with a number. Everything else is pickled. Both processes
run the same release, one started the other, and no other process has the socket, so pickles are safe here.

Order is kept in each direction, so a message may refer to what an earlier one announced.
"""

from __future__ import annotations

import copyreg
import pickle
import struct
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from naiad_stub import wire

from naiad.core import errors
from naiad.core.errors import Code, ModelError, NaiadError, is_model_response
from naiad.frontends.metrics.families import Family
from naiad.protocol.datatypes import Datatype
from naiad.protocol.inference import Parameter, StringScan
from naiad.protocol.metadata import ModelMetadata
from naiad.protocol.request_plan import offsets_of

if TYPE_CHECKING:  # who unpickles a plan imports this module, and needs no configuration
    from naiad.config.server.options import ServerOptions
    from naiad.core.logs import LogSettings

__all__ = ["MAX_FRAME"]

MAX_FRAME = 0xFFFFFFFF
"""The longest payload, of a body that found no room in a segment."""


def _read_only(content: dict[Any, Any]) -> MappingProxyType[Any, Any]:
    return MappingProxyType(content)


# Options and configurations have read-only mappings, which pickle does not know.
copyreg.pickle(MappingProxyType, lambda proxy: (_read_only, (dict(proxy),)))


class FrameKind:
    """Numbers of the kinds of messages; plain integers, as in `naiad_stub.wire`."""

    # to the process with the models (the coordinator, or one with a replica)
    TEMPLATE = 1
    SHORT_REQUEST = 2
    REQUEST = 3
    CANCEL = 4
    CONFIRM_SENT = 5
    RELEASE_OUTPUTS = 6
    CALL = 7
    REPORT = 8
    FORGET_TEMPLATES = 9
    TRACED_SENDING = 10
    CONFIRM = 11
    PONG = 12
    USED_REGIONS = 13
    ORDERED = 14
    NOTIFY_COORDINATOR = 15
    TRACE = 16
    DROP_RESPONSES = 17
    # from the process with the models
    LAYOUT = 20
    RESPONSE = 21
    FULL_RESPONSE = 22
    RESULT = 23
    SEGMENT = 24
    INPUTS_FREE = 25
    ROUTES_CHANGED = 26
    FORGET_LAYOUTS = 34
    REGION = 27
    LOG_SETTINGS = 28
    PART = 31
    CONFIGURATION = 32
    COLLECT = 33
    DRAIN = 29
    STOP = 30
    TRACED = 35
    TRACING = 36
    REOPEN = 37
    PING = 38
    FORGET_SEGMENT = 39
    TAKE_REGIONS = 40
    RETURN_REGIONS = 41
    ORDER = 42
    NOTIFY_PROCESS = 43
    TABLE = 44
    LISTEN = 45
    PEER = 46
    COMPUTED = 47
    CONNECTIONS = 48
    TAKEN = 49
    FORGET_PART = 50


SHORT_REQUEST = struct.Struct("<IIqHH")
"""Number of the request, of its template, offset of its inputs in the part (-1: in the message), bytes of its id and of
its context (the headers that requests caused by it carry on, as guests get them). These follow, and then the inputs,
each at an aligned offset."""
SHORT_REQUEST_FRAME = struct.Struct(wire.FRAME.format + SHORT_REQUEST.format[1:])
"""The head of the frame and the one of the message, packed in one step."""
MAX_SHORT_TEXT = 0xFFFF
"""A longer id or context makes a request a rare one."""
NUMBER = struct.Struct("<I")
CONFIRM_SENT = struct.Struct("<II")  # request, responses
TRACED_SENDING = struct.Struct("<IQQB")  # request, when sending its response began and ended (monotonic ns), FINAL
TRACE = struct.Struct("<B")  # whether the model gets a context, which follows: that of the request in the next frame
COMPUTED = struct.Struct("<IQQQQQ")  # request, the times of `Trace.on_computed`
RESPONSE = struct.Struct("<IIBI")
"""Number of the request, of the layout, flags, token to return once the outputs are not referred to any more. Then the
outputs: their bytes, as the layout places them, or for each (PLACED) its place."""
RESPONSE_FRAME = struct.Struct(wire.FRAME.format + RESPONSE.format[1:])
"""The head of the frame and the one of the message, packed in one step."""
PLACE = struct.Struct("<IQ")  # segment, offset
FINAL = 1
PLACED = 2
NO_RESPONSE = 4  # an end without a response
NO_PLACE = -1


class ProcessConfiguration(NamedTuple):
    """The first message to a process beside the coordinator.

    Attributes:
        options: The server's options.
        log: The settings of the log.
        processes: Number of processes beside the coordinator.
        created: See `ListenerServices.created`.
    """

    options: ServerOptions
    log: LogSettings
    processes: int
    created: int


class VersionRoute(NamedTuple):
    """What a process knows of the version that serves a name and version.

    Attributes:
        number: Number of the load (`Target.number`).
        is_decoupled: Whether it may send any number of responses to a request.
        metadata: As `EngineFacade.model_metadata` gives it for that name and version.
        config: As `EngineFacade.model_config`.
        inputs: The segment of inputs in which that process has a part; None if it has none.
        row: The row of the version on the load table; None if the coordinator has all of its instances.
    """

    number: int
    is_decoupled: bool
    metadata: ModelMetadata
    config: Mapping[str, Any]
    inputs: int | None
    row: int | None = None


class UsedRegions(NamedTuple):
    """The reply to TAKE_REGIONS.

    Attributes:
        number: Its number.
        names: The regions that requests use.
    """

    number: int
    names: Sequence[str]


class PartAnnouncement(NamedTuple):
    """A part of a segment of inputs, whose descriptor came with this message.

    Attributes:
        number: Number of the segment (`SharedInputs.number`).
        start: Where the part begins.
        size: Its size in bytes.
        load: Number of the load of the version whose inputs these are.
    """

    number: int
    start: int
    size: int
    load: int


class TemplateInput(NamedTuple):
    """An input without its bytes."""

    name: str
    datatype: Datatype
    shape: tuple[int, ...]
    size: int


class RequestTemplate(NamedTuple):
    """What repeated requests have in common.

    Attributes:
        number: Its number, unique among all templates of the process that sends them.
        model_name: See `InferRequest`, also for what follows.
        model_version: ...
        inputs: The inputs.
        requested_outputs: ...
        load: Number of the load that the sender took for the model's; see `VersionRoute.number`.
        is_decoupled: See `VersionRoute`.
        segment: Number of the segment with the inputs of such requests; None if their inputs travel in messages.
    """

    number: int
    model_name: str
    model_version: int
    inputs: tuple[TemplateInput, ...]
    requested_outputs: tuple[str, ...]
    load: int
    is_decoupled: bool
    segment: int | None


class TracedArrival(NamedTuple):
    """What the coordinator needs to trace a request.

    Attributes:
        protocol: `HTTP` or `GRPC`.
        received: When it had arrived, in nanoseconds of the monotonic clock, which all processes share.
        headers: Its headers among `PROPAGATED_HEADERS`.
    """

    protocol: str
    received: int
    headers: Mapping[str, str]


class GuestCaller(NamedTuple):
    """The guest of a replica that makes a call, and what it has said of the call.

    Attributes:
        guest: Its number, as its process has told.
        number: See `ModelCall`, also for what follows.
        is_decoupled: ...
        is_blocking: ...
        is_awaited: ...
        traced_by: ...
        headers: What its own calls to the server carry on; see `Worker.propagated`.
        propagated: The same of the request that caused the call; None if the guest has not told which one did.
        traced: The number on the link of the request whose trace it belongs to; None for none.
    """

    guest: int
    number: int
    is_decoupled: bool
    is_blocking: bool
    is_awaited: bool
    traced_by: int | None
    headers: Mapping[str, str]
    propagated: Mapping[str, str] | None
    traced: int | None


class Origin(NamedTuple):
    """What a process has to know of a request beside its content.

    Attributes:
        arrival: How it came from a client, if it may be traced.
        needs_idle: Whether it is a call, which only an idle instance may take.
        caller: The guest of the sender that makes this call, which is to be submitted like those of guests here.
    """

    arrival: TracedArrival | None = None
    needs_idle: bool = False
    caller: GuestCaller | None = None


class RegionUse(NamedTuple):
    """The tensors of a request that are in regions of GPU memory: the region's name, offset and bytes of each.

    Attributes:
        inputs: By position; their bytes are not in the request.
        outputs: By name.
    """

    inputs: Mapping[int, tuple[str, int, int]]
    outputs: Mapping[str, tuple[str, int, int]]


class FullRequest(NamedTuple):
    """A request that has more than a template and an id.

    *size* bytes of inputs follow the pickled message (`pack_before`).
    """

    number: int
    template: int
    request_id: str
    parameters: Mapping[str, Parameter]
    correlation_id: int | str
    flags: int
    priority: int
    timeout_us: int
    scans: tuple[StringScan | None, ...]
    place: int
    size: int
    propagated: Mapping[str, str]
    origin: Origin | None
    regions: RegionUse | None = None


class FullResponse(NamedTuple):
    """A response that has more than outputs of a known layout. *size* bytes of these follow it (`pack_before`).

    With *is_rejection* the request was not accepted; with *is_reroute* because the version is gone whose segment its
    inputs were written to, or because no instance is idle: the sender sends it again, to what serves now.
    """

    number: int
    final: bool
    model_name: str
    model_version: int
    request_id: str
    outputs: tuple[tuple[str, Datatype, tuple[int, ...], int, tuple[int, int] | None], ...]
    size: int
    token: int
    parameters: Mapping[str, Parameter]
    error: ErrorFields | None
    is_rejection: bool = False
    is_reroute: bool = False


class ResponseLayout(NamedTuple):
    """What repeated responses have in common.

    Attributes:
        number: Its number.
        model_name: See `InferResponse`, also for `model_version`.
        outputs: Name, datatype, shape, and start and end in a message, of each output.
    """

    number: int
    model_name: str
    model_version: int
    outputs: tuple[tuple[str, Datatype, tuple[int, ...], int, int], ...]


class RemoteCall(NamedTuple):
    """A call of a method of the engine's facade, or of another service there; as ORDER, one of a process."""

    number: int
    method: str
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]


class CallResult(NamedTuple):
    """The result of a call; *error* if it raised."""

    number: int
    value: Any
    error: ErrorFields | None


class Notice(NamedTuple):
    """Something about replicas that has no result: the name of what it is, and what belongs to it."""

    name: str
    arguments: tuple[Any, ...]


class SegmentAnnouncement(NamedTuple):
    """A segment whose descriptor came with this message; see `PLACE`."""

    number: int
    capacity: int


class ErrorFields(NamedTuple):
    """An error as plain values."""

    kind: str
    message: str
    code: Code
    is_model_response: bool
    traceback_text: str = ""


class ProcessReport(NamedTuple):
    """What a process reports of itself.

    Attributes:
        started: A line for the log about each service that it has started.
        error: Why it cannot serve; None if it can.
        families: Its metrics, where these were asked for.
    """

    started: Sequence[str] = ()
    error: ErrorFields | None = None
    families: Sequence[Family] | None = None


def error_fields(error: NaiadError) -> ErrorFields:
    """The fields of an error."""
    traceback_text = error.traceback_text if isinstance(error, ModelError) else ""
    return ErrorFields(type(error).__name__, error.message, error.code, is_model_response(error), traceback_text)


def error_of(fields: ErrorFields) -> NaiadError:
    """The error that *fields* describe, of the same class."""
    if fields.kind == ModelError.__name__:
        return ModelError(
            fields.message,
            code=fields.code,
            traceback_text=fields.traceback_text,
            is_model_response=fields.is_model_response,
        )
    kind: type[NaiadError] = getattr(errors, fields.kind, NaiadError)
    error = kind(fields.message)
    error.code = fields.code
    return error


def pack(kind: int, message: Any) -> bytes:
    """The frame of a pickled message."""
    return wire.frame(kind, pickle.dumps(message, pickle.HIGHEST_PROTOCOL))


def pack_before(kind: int, message: Any, size: int) -> bytes:
    """The beginning of a frame: a pickled message, which *size* bytes follow that are sent as they are."""
    pickled = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return wire.FRAME.pack(len(pickled) + size, kind, 0) + pickled


def unpack(payload: bytes | memoryview) -> Any:
    """The pickled message of a payload, or at its beginning."""
    return pickle.loads(payload)  # noqa: S301 - from the other process of the pair


def input_offsets(inputs: Sequence[TemplateInput]) -> tuple[tuple[int, ...], int]:
    """Where each input begins, and the bytes of all: as `RequestPlan.pack_inputs` lays them out."""
    offsets, end = offsets_of([each.size for each in inputs])
    return tuple(offsets), end
