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
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from naiad_stub import wire

from naiad.core.errors import NaiadError
from naiad.protocol.datatypes import Datatype
from naiad.protocol.inference import Parameter, StringScan
from naiad.protocol.metadata import ModelMetadata
from naiad.protocol.request_plan import offsets_of

if TYPE_CHECKING:  # who unpickles a plan imports this module, and needs no configuration
    from naiad.config.server.options import ServerOptions
    from naiad.core.logs import LogSettings

# What a request says of its place among others, in the order in which `InferRequest` has it after the parameters.
scheduling_of = attrgetter("correlation_id", "flags", "priority", "timeout_us")
MAX_FRAME = 0xFFFFFFFF  # the longest payload, of a body that found no room in a segment


def _read_only(content: dict[Any, Any]) -> MappingProxyType[Any, Any]:
    return MappingProxyType(content)


# Options and configurations have read-only mappings, which pickle does not know.
copyreg.pickle(MappingProxyType, lambda proxy: (_read_only, (dict(proxy),)))


class FrameKind:
    """Numbers of the kinds of messages; plain integers, as in `naiad_stub.wire`."""

    # to the process with the models (the coordinator, or one with a replica)
    SHORT_REQUEST = 1
    REQUEST = 2
    CONFIRM_SENT = 3
    RELEASE_OUTPUTS = 4
    # from the process with the models
    RESPONSE = 20
    FULL_RESPONSE = 21
    INPUTS_FREE = 22
    # in both directions
    CALL = 40
    RESULT = 41


# Number of the request, of its template, offset of its inputs in the part (-1: in the message), bytes of its id and of
# its context (the headers that requests caused by it carry on, as guests get them). These follow, and then the inputs,
# each at an aligned offset.
SHORT_REQUEST = struct.Struct("<IIqHH")
# The head of the frame and the one of the message, packed in one step.
SHORT_REQUEST_FRAME = struct.Struct(wire.FRAME.format + SHORT_REQUEST.format[1:])
MAX_SHORT_TEXT = 0xFFFF  # a longer id or context makes a request a rare one
NUMBER = struct.Struct("<I")
CONFIRM_SENT = struct.Struct("<II")  # request, responses
# Number of the request, of the layout, flags, token to return once the outputs are not referred to any more. Then the
# outputs: their bytes, as the layout places them, or for each (PLACED) its place.
RESPONSE = struct.Struct("<IIBI")
# The head of the frame and the one of the message, packed in one step.
RESPONSE_FRAME = struct.Struct(wire.FRAME.format + RESPONSE.format[1:])
PLACE = struct.Struct("<IQ")  # segment, offset
FINAL = 1
PLACED = 2
NO_RESPONSE = 4  # an end without a response
NO_PLACE = -1


class ProcessConfiguration(NamedTuple):
    """The first message to a process beside the coordinator."""

    options: ServerOptions
    log: LogSettings
    processes: int  # without the coordinator
    created: int  # see `ListenerServices.created`


class VersionRoute(NamedTuple):
    """What a process knows of the version that serves a name and version."""

    number: int  # of the load (`Target.number`)
    is_decoupled: bool
    metadata: ModelMetadata  # as `EngineFacade.model_metadata` gives it for that name and version
    config: Mapping[str, Any]  # as `EngineFacade.model_config`
    row: int | None = None  # on the load table; None if the coordinator has all of its instances


class TemplateInput(NamedTuple):
    """An input without its bytes."""

    name: str
    datatype: Datatype
    shape: tuple[int, ...]
    size: int


class RequestTemplate(NamedTuple):
    """What repeated requests have in common."""

    number: int  # unique among all templates of the process that sends them
    model_name: str
    model_version: int
    inputs: tuple[TemplateInput, ...]
    requested_outputs: tuple[str, ...]
    load: int  # number of the load that the sender took for the model's; see `VersionRoute.number`
    is_decoupled: bool
    segment: int | None  # with the inputs of such requests; None if their inputs travel in messages


class TracedArrival(NamedTuple):
    """What the coordinator needs to trace a request."""

    protocol: str  # `HTTP` or `GRPC`
    received: int  # in nanoseconds of the monotonic clock, which all processes share
    headers: Mapping[str, str]  # its headers among `PROPAGATED_HEADERS`


class GuestCaller(NamedTuple):
    """The guest of a replica that makes a call, and what it has said of the call; see `ModelCall`."""

    guest: int  # its number, as its process has told
    number: int
    is_decoupled: bool
    is_blocking: bool
    is_awaited: bool
    traced_by: int | None
    headers: Mapping[str, str]  # what its own calls to the server carry on; see `Worker.propagated`
    propagated: Mapping[str, str] | None  # the same of the request that caused the call; None if it is unknown
    traced: int | None  # number on the link of the request whose trace it belongs to; None for none


# What the coordinator has to know of a request beside its content: how it came from a client, if it may be traced, or
# the guest that makes this call, which is treated like those of guests there.
Origin: TypeAlias = TracedArrival | GuestCaller


class RegionUse(NamedTuple):
    """The tensors of a request that are in regions of GPU memory: the region's name, offset and bytes of each."""

    inputs: Mapping[int, tuple[str, int, int]]  # by position; their bytes are not in the request
    outputs: Mapping[str, tuple[str, int, int]]  # by name


class FullRequest(NamedTuple):
    """A request that has more than a template and an id.

    *size* bytes of inputs follow the pickled message (`pack_before`).
    """

    number: int
    template: int
    request_id: str
    parameters: Mapping[str, Parameter]
    scheduling: tuple[int | str, int, int, int]  # see `scheduling_of`
    scans: tuple[StringScan | None, ...]
    place: int
    size: int
    propagated: Mapping[str, str]
    origin: Origin | None
    needs_idle: bool = False  # it is a call, which only an idle instance may take
    is_traced: bool = False  # whether it is traced where it comes from
    context: bytes | None = None  # that the model gets of its trace
    regions: RegionUse | None = None


class FullResponse(NamedTuple):
    """A response that has more than outputs of a known layout. *size* bytes of these follow it (`pack_before`)."""

    number: int
    final: bool
    model_name: str
    model_version: int
    request_id: str
    # Name, datatype, shape, bytes, and where they are if they do not follow.
    outputs: tuple[tuple[str, Datatype, tuple[int, ...], int, tuple[int, int] | None], ...]
    size: int
    token: int
    parameters: Mapping[str, Parameter]
    error: NaiadError | None


class ResponseLayout(NamedTuple):
    """What repeated responses have in common."""

    number: int
    model_name: str
    model_version: int
    # Name, datatype, shape, start and end in a message.
    outputs: tuple[tuple[str, Datatype, tuple[int, ...], int, int], ...]


class RemoteCall(NamedTuple):
    """A call of a service of the other process, by its name."""

    number: int  # 0 if no result is sent back
    name: str
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]
    has_descriptor: bool = False  # whether a descriptor came with it, the first argument


class CallResult(NamedTuple):
    """The result of a call; *error* if it raised."""

    number: int
    value: Any
    error: NaiadError | None


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
