"""Requests to EXECUTE, RESPONSES to responses: the host's half of `naiad_stub.exchange`.

Requests were checked by the engine. Responses come from a process that runs untrusted code: every index, offset and
size is checked against its bounds, and one that does not fit raises `ProtocolError`.

Both directions are on the request path, so each message is packed and unpacked by hand (see `naiad_stub.messages`), and
the layouts of tensors are recognised by their bytes (`naiad_stub.layout`).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import repeat
from typing import Any, NamedTuple, TypeAlias

import orjson
from naiad_stub import wire
from naiad_stub.layout import KEPT
from naiad_stub.layout import unpack as unpack_layout
from naiad_stub.memo import Memo
from naiad_stub.messages import ExportersEnded, ReleaseOutputs
from naiad_stub.messages import pack as pack_message
from naiad_stub.segment import align

from naiad.core.errors import Code, ModelError, ProtocolError
from naiad.guests.memory.instance import InstanceMemory
from naiad.guests.memory.link_memory import SharedInputs
from naiad.guests.memory.unsent_frames import COPIED_AT_ONCE, InputCopy
from naiad.guests.tensors import (
    TensorLayout,
    check_layout,
    copy_or_borrow,
    inline_tensors,
    pack_device_places,
    pack_output_places,
    pack_readers,
    read_blocks,
)
from naiad.protocol.device_bytes import DeviceUse, device_bytes, on_device
from naiad.protocol.inference import (
    NO_PARAMETERS,
    InferRequest,
    InferResponse,
    InputPlace,
    OutputTensor,
)
from naiad.protocol.metadata import MemoryUse
from naiad.protocol.request_plan import PackedInputs, RequestPlan

# Codes by the number `pb_utils.TritonError` gives them (TRITONSERVER_Error_Code).
CODES = (
    Code.UNKNOWN,
    Code.INTERNAL,
    Code.NOT_FOUND,
    Code.INVALID_ARG,
    Code.UNAVAILABLE,
    Code.UNSUPPORTED,
    Code.ALREADY_EXISTS,
    Code.CANCELLED,
)

_SMALL_BLOCKS_TOGETHER = 16  # released output blocks that wait for each other: see `InstanceMemory.released`


# A request of a batch: its key, itself, and its packed inputs; None where they are still to be packed.
KeyedRequest: TypeAlias = tuple[int, InferRequest, PackedInputs | None]


class ModelInterface:
    """What the exchange with all guests of one loaded version shares."""

    __slots__ = ("_noticed", "layouts", "model_name", "model_version", "notices", "plan")

    def __init__(self, plan: RequestPlan) -> None:
        self.plan = plan  # the version's plan: the names that both sides refer to by their position
        self.model_name = plan.model_name
        self.model_version = plan.model_version
        # Layouts of outputs by their packed bytes, checked when they were first seen.
        self.layouts: Memo[bytes, TensorLayout] = Memo(KEPT)
        # Sentences about outputs that contradict the configuration; `take_notices` empties it.
        self.notices: list[str] = []
        self._noticed: set[str] = set()  # outputs

    def compare(self, layout: TensorLayout) -> None:
        for name, datatype, shape, _, _ in layout.entries:
            rule = self.plan.output_rules.get(name)
            if rule is None or name in self._noticed or rule.matches(datatype, shape):
                continue
            self._noticed.add(name)
            forms = [f"{kind.config_name} [{','.join(map(str, dims))}]" for kind, dims in ((datatype, shape), rule)]
            self.notices.append(
                f"output '{name}' is not what the configuration declares: a response has it as {forms[0]}, declared is "
                f"{forms[1]}; clients get it as it is; correct config.pbtxt or the response"
            )

    def take_notices(self) -> list[str]:
        taken, self.notices = self.notices, []
        return taken


class GuestResponse(NamedTuple):
    """One entry of RESPONSES."""

    key: int
    response: InferResponse | None  # the response; None for a mark alone
    final: bool
    reschedule: bool = False  # whether the model asks, instead, for the request to be scheduled again


class ExecutingBatch(NamedTuple):
    """A batch that was sent to a guest, whose `execute` has not returned."""

    keys: Sequence[int]
    block: int  # their input block, less than 0 without one
    sent: int  # when its inputs began to be copied (monotonic ns); 0 if the guest exited before it read the message
    size: int
    # Where the inputs are that other processes or other guests wrote; they stay there while something refers to this.
    places: Sequence[InputPlace | None] = ()


def shared_places(batch: Sequence[KeyedRequest], shared: SharedInputs) -> Sequence[InputPlace | None]:
    """Where the inputs of each request are in *shared*, None where they are elsewhere; empty if all are."""
    segment = shared.number
    places = [
        request.place if packed is not None and request.place is not None and request.place.segment == segment else None
        for _, request, packed in batch
    ]
    return places if any(places) else ()


def bridge_places(
    batch: Sequence[KeyedRequest],
    places: Sequence[InputPlace | None],
    interface: ModelInterface,
    memory: InstanceMemory,
) -> Sequence[InputPlace | None]:
    """*places*, as `shared_places` gives them, with those of long inputs that are in bridges which the guest reads."""
    found: list[InputPlace | None] | None = None
    for index, (_, request, packed) in enumerate(batch):
        size = packed[2] if packed is not None else sum([len(tensor.data) for tensor in request.inputs])
        if (
            size < wire.BRIDGE_FROM
            or request.reader < 0
            or request.device is not None
            or (places and places[index] is not None)
        ):
            continue
        offsets = (packed or interface.plan.pack_inputs(request))[1]
        place = memory.bridges.place_of(request.inputs, offsets, request.model_name, request.model_version)
        if place is not None:
            found = found or list(places) or [None] * len(batch)
            found[index] = place
    return found or places


def write_execute(
    number: int,
    batch: Sequence[KeyedRequest],
    interface: ModelInterface,
    memory: InstanceMemory,
    places: Sequence[InputPlace | None] = (),
    copies: list[InputCopy] | None = None,
) -> tuple[bytes, int]:
    """Copy the inputs of a batch into the input segment, or into the message if they have few bytes, and pack EXECUTE.

    *places*, as `shared_places` and `bridge_places` give them, are of inputs that are not copied. *copies* gets the
    copies of a batch with many bytes, which the caller has to make; None to make all of them here.

    Returns the EXECUTE frame, after a frame that releases output blocks if there are any; and the input block to
    release when the batch is done (less than 0: none). OutOfMemoryError if the inputs do not fit into the free part of
    the segment.
    """
    if len(batch) == 1 and not memory.reservations.waiting:
        key, request, packed = batch[0]
        layout = packed or interface.plan.pack_inputs(request)
        if layout[2] <= wire.INLINE_LIMIT and (request.device is None or not request.device.has_inputs):
            return _inline_frames(number, key, request, layout, interface, memory), -1 - layout[2]
    layouts = [packed or interface.plan.pack_inputs(request) for _, request, packed in batch]
    # A body that a frontend read into the segment need not be copied. Only a batch of one can use it unchanged: the
    # guest expects the inputs of a batch in one block, one after the other.
    if memory.reservations.waiting and len(batch) == 1 and not places:
        frames = _write_reserved(number, batch[0], layouts[0], interface, memory)
        if frames is not None:
            return frames
    # The inputs of a batch share one block, so that one release frees them. Each request begins at an aligned offset.
    # Its packed layout counts from there, so it is the same in any batch and can be taken from a memo.
    if places:
        size = sum([align(layout[2]) for layout, place in zip(layouts, places, strict=True) if place is None])
    else:
        size = layouts[0][2] if len(layouts) == 1 else sum([align(layout[2]) for layout in layouts])
    room = memory.allocate_input(size)
    if room is None:
        raise memory.full_error(f"inputs of {size} bytes do not fit into the input segment of '{interface.model_name}'")
    block, segment = room
    if size <= COPIED_AT_ONCE:
        copies = None
    try:
        requests = _write_inputs(batch, layouts, block, segment, places, copies, interface, memory)
    except BaseException:
        if block >= 0:
            memory.release_input(block)
        raise
    rest = b"".join((segment, requests)) if block < 0 else requests
    return _execute_frames(number, len(batch), block, rest, memory), block


def _write_inputs(
    batch: Sequence[KeyedRequest],
    layouts: Sequence[PackedInputs],
    block: int,
    segment: memoryview,
    places: Sequence[InputPlace | None],
    copies: list[InputCopy] | None,
    interface: ModelInterface,
    memory: InstanceMemory,
) -> bytes:
    # Inputs that travel in the message come before its requests; the guest counts their offsets from 0.
    base = max(block, 0)
    requests = b""
    # All of equal length by construction; this is the request path.
    for (key, request, _), layout, place in zip(batch, layouts, places or repeat(None)):  # noqa: B905 - as said above
        if place is not None:
            requests += _pack_request(key, request, layout[0], place.start, interface, memory, wire.SHARED_INPUTS)
            continue
        requests += _pack_request(key, request, layout[0], base, interface, memory)
        if request.device is not None and request.device.has_inputs:
            _copy_others(request, layout[1], base, block, segment, copies, memory)
            base += align(layout[2])
            continue
        for tensor, offset in zip(request.inputs, layout[1]):  # noqa: B905 - as said above
            # The only copy that the host makes of an input: between memoryviews, without an object in between.
            data = tensor.data
            start = base + offset
            if copies is None:
                segment[start : start + len(data)] = data
            else:
                copies.append((memoryview(segment)[start : start + len(data)], data))
        base += align(layout[2])
    return requests


def _copy_others(
    request: InferRequest,
    offsets: Sequence[int],
    base: int,
    block: int,
    segment: memoryview,
    copies: list[InputCopy] | None,
    memory: InstanceMemory,
) -> None:
    devices = []
    for tensor, offset in zip(request.inputs, offsets, strict=True):
        device = device_bytes(tensor.data)
        if device is not None:
            devices.append(device)
            continue
        start = base + offset
        end = start + len(tensor.data)
        if copies is None:
            segment[start:end] = tensor.data
        else:
            copies.append((memoryview(segment)[start:end], tensor.data))
    if devices and block >= 0:  # inputs in the message are few bytes, which the guest copies at once
        memory.regions.hold(block, devices)


def check_sendable(keyed: KeyedRequest, interface: ModelInterface, memory: InstanceMemory) -> None:
    """Pack a request and look at its inputs as `write_execute` does; raise what that raises, and change nothing."""
    key, request, packed = keyed
    layout = packed or interface.plan.pack_inputs(request)
    _pack_request(key, request, layout[0], 0, interface, memory)
    for tensor, offset in zip(request.inputs, layout[1], strict=True):
        if device_bytes(tensor.data) is not None:
            continue
        with memoryview(tensor.data) as data:
            if offset + len(data) > layout[2]:
                raise ValueError(f"input '{tensor.name}' ends at {offset + len(data)} of {layout[2]} bytes")


def _inline_frames(
    number: int,
    key: int,
    request: InferRequest,
    layout: PackedInputs,
    interface: ModelInterface,
    memory: InstanceMemory,
) -> bytes:
    """EXECUTE of one request whose inputs travel in the message, which most small requests are."""
    size = layout[2]
    inputs = b"".join([tensor.data for tensor in request.inputs])
    if len(inputs) != size:  # there is room between them
        block = bytearray(size)
        for tensor, offset in zip(request.inputs, layout[1]):  # noqa: B905 - equal by construction, on the request path
            block[offset : offset + len(tensor.data)] = tensor.data
        inputs = bytes(block)
    rest = inputs + _pack_request(key, request, layout[0], 0, interface, memory)
    head = wire.EXECUTE_FRAME.pack(wire.EXECUTE_HEAD.size + len(rest), wire.Kind.EXECUTE, 0, number, 1, -1 - size)
    return with_released(head + rest, memory)


def _write_reserved(
    number: int, keyed: KeyedRequest, layout: PackedInputs, interface: ModelInterface, memory: InstanceMemory
) -> tuple[bytes, int] | None:
    """EXECUTE for inputs that a frontend read into the segment (`reservations`); None if they must be copied."""
    key, request, _ = keyed
    claimed = memory.reservations.claim([tensor.data for tensor in request.inputs], layout[1])
    if claimed is None:
        return None
    block, start = claimed
    try:
        packed = _pack_request(key, request, layout[0], start, interface, memory)
    except BaseException:
        memory.release_input(block)
        raise
    return _execute_frames(number, 1, block, packed, memory), block


def _execute_frames(number: int, count: int, block: int, rest: bytes, memory: InstanceMemory) -> bytes:
    size = wire.EXECUTE_HEAD.size + len(rest)
    return with_released(wire.EXECUTE_FRAME.pack(size, wire.Kind.EXECUTE, 0, number, count, block) + rest, memory)


def with_released(frames: bytes, memory: InstanceMemory) -> bytes:
    """*frames* behind one that releases output blocks, if that is due."""
    # The guest can use a released block only after it was told, which costs a message. So small blocks wait until there
    # are several. A large one is released at once: the guest would otherwise touch new pages for its next output, and
    # the kernel would have to clear each of them.
    if (
        memory.has_large_released or len(memory.released) >= _SMALL_BLOCKS_TOGETHER
    ):  # small blocks go back many at a time
        frames = pack_released(memory) + frames
    return frames


def pack_released(memory: InstanceMemory) -> bytes:
    """The frame that releases output blocks that were read; empty without such blocks."""
    memory.has_large_released = False
    released = memory.released
    offsets = [released.popleft() for _ in range(len(released))]
    frame = pack_message(ReleaseOutputs(offsets)) if offsets else b""
    importer = memory.regions.importer
    if importer.ended:
        ended, importer.ended = importer.ended, []
        frame += pack_message(ExportersEnded(ended))
    return frame


def _pack_request(
    key: int,
    request: InferRequest,
    layout: bytes,
    base: int,
    interface: ModelInterface,
    memory: InstanceMemory,
    host_flags: int = 0,
) -> bytes:
    request_id = request.request_id.encode() if request.request_id else b""
    parameters = orjson.dumps(dict(request.parameters)) if request.parameters else b""
    correlation, correlation_text, correlation_size = request.correlation_id, b"", wire.NO_STRING
    if isinstance(correlation, str):
        correlation_text = correlation.encode()
        correlation, correlation_size = 0, len(correlation_text)
    flags, rest = request.flags | host_flags, layout
    # Without `packs_inputs`, outputs may include states of sequences, which are for the server alone.
    if request.reader > 0 and request.device is None and interface.plan.packs_inputs:
        bridge = memory.bridges.to_reader(request.reader)
        if bridge:
            flags, rest = flags | wire.BRIDGE_OUTPUTS, wire.BRIDGE_NUMBER.pack(bridge) + rest
    if request.device is not None:
        flags, rest = _with_devices(flags, request, request.device, layout, interface, memory)
    # Few requests are traced, so the head has no field for it: a flag says that a context comes before the layout.
    if request.trace is not None or request.propagated:
        flags, rest = _traced(flags, request, rest)
    head = wire.REQUEST_HEAD.pack(
        key,
        correlation,
        request.timeout_us,
        flags,
        base,
        len(request_id),
        correlation_size,
        len(parameters),
        len(layout),
    )
    return head + request_id + correlation_text + parameters + rest


def _with_devices(
    flags: int,
    request: InferRequest,
    use: DeviceUse,
    layout: bytes,
    interface: ModelInterface,
    memory: InstanceMemory,
) -> tuple[int, bytes]:
    rest = layout
    if use.readers is not None and (use.keeps_outputs or use.kept):
        flags, rest = flags | wire.GPU_READERS, pack_readers(use.readers) + rest
    if use.keeps_outputs:
        flags |= wire.DEVICE_OUTPUTS
    if use.places or use.kept:
        memory.regions.open(use.places.values())
        flags, rest = flags | wire.OUTPUT_PLACES, pack_output_places(use, interface.plan.output_positions) + rest
    devices = on_device([tensor.data for tensor in request.inputs]) if use.has_inputs else ()
    if devices:
        memory.regions.open([device for _, device in devices])
        flags, rest = flags | wire.DEVICE_INPUTS, pack_device_places(devices) + rest
    return flags, rest


def _traced(flags: int, request: InferRequest, layout: bytes) -> tuple[int, bytes]:
    context = None if request.trace is None else request.trace.context
    if request.propagated:  # the server's own span, if there is one, is the parent of what the model causes
        context = orjson.dumps({**request.propagated, **(orjson.loads(context) if context else {})})
    if context is None:
        return flags, layout
    return flags | wire.TRACED, wire.TRACE_SIZE.pack(len(context)) + context + layout


_FLAGS = (1 << wire.REPORTS_SHIFT) - 1
_SINGLE_RESPONSE = struct.Struct(wire.RESPONSES_HEAD.format + wire.RESPONSE_HEAD.format[1:])


class SingleResponse(NamedTuple):
    """A RESPONSES message with one final response, whose outputs are in the message and nothing else is."""

    number: int
    key: int
    started: int  # when `execute` began and returned (monotonic ns)
    ended: int
    layout: TensorLayout
    outputs: bytes  # their bytes, as *layout* places them
    reports: bytes = b""  # what a native backend has reported of the batch, as `read_reports` takes it

    def as_any(self, interface: ModelInterface) -> GuestResponse:
        """The same as `read_responses` would have decoded it."""
        outputs = self.outputs
        tensors = [
            OutputTensor(name, datatype, shape, outputs[start:end])
            for name, datatype, shape, start, end in self.layout.entries
        ]
        response = InferResponse(
            interface.model_name, interface.model_version, "", tensors, NO_PARAMETERS, None, self.layout
        )
        return GuestResponse(self.key, response, True)


def write_forwarded(
    number: int, key: int, request_id: bytes, layout: bytes, inputs: bytes, context: bytes, memory: InstanceMemory
) -> bytes:
    """EXECUTE of one request with an id, inputs, which are in *inputs* as *layout* says, and at most a context."""
    flags = 0
    described = layout
    if context:
        flags, described = wire.TRACED, wire.TRACE_SIZE.pack(len(context)) + context + layout
    head = wire.REQUEST_HEAD.pack(key, 0, 0, flags, 0, len(request_id), wire.NO_STRING, 0, len(layout))
    rest = b"".join((inputs, head, request_id, described))
    size = wire.EXECUTE_HEAD.size + len(rest)
    frame = wire.EXECUTE_FRAME.pack(size, wire.Kind.EXECUTE, 0, number, 1, -1 - len(inputs))
    return with_released(frame + rest, memory)


def read_single(payload: bytes, interface: ModelInterface) -> SingleResponse | None:
    """Decode RESPONSES of one short request, as most are; None if it is anything else (see `read_responses`).

    The layout must be one that was checked before, so everything that could be malformed has been looked at.
    """
    start = _SINGLE_RESPONSE.size
    if len(payload) < start:
        return None
    number, count, flags, started, ended, key, kind, _, blocks, text_size, layout_size = _SINGLE_RESPONSE.unpack_from(
        payload
    )
    reports = flags >> wire.REPORTS_SHIFT
    if count != 1 or flags & _FLAGS != wire.DONE or kind != wire.FINAL or blocks or text_size:
        return None
    end = start + layout_size
    layout = interface.layouts.get(payload[start:end])
    if layout is None or layout.unknown_output:
        return None
    outputs_end = end + layout.end
    if outputs_end + reports * wire.REPORT.size != len(payload):
        return None
    if not reports:
        return SingleResponse(number, key, started, ended, layout, payload[end:])
    return SingleResponse(number, key, started, ended, layout, payload[end:outputs_end], payload[outputs_end:])


class Responses(NamedTuple):
    """One RESPONSES message."""

    number: int
    done: bool
    kept: bool  # whether the model still refers to its inputs
    kept_shared: bool  # whether it still refers to those that other processes wrote
    started: int  # when `execute` began, and when it returned or the response was sent (monotonic ns)
    ended: int
    responses: list[GuestResponse]
    reports: Sequence[ExecutionReport] = ()


def read_responses(payload: bytes, interface: ModelInterface, memory: InstanceMemory) -> Responses:
    """Decode RESPONSES, and copy or borrow the outputs."""
    try:
        number, count, flags, started, ended = wire.RESPONSES_HEAD.unpack_from(payload)
        position = wire.RESPONSES_HEAD.size
        responses = []
        for _ in range(count):
            response, position = _read_response(payload, position, interface, memory)
            responses.append(response)
    except (struct.error, IndexError, UnicodeDecodeError, ValueError, wire.WireError) as error:
        raise ProtocolError(f"'{interface.model_name}' sent a malformed response: {error}") from error
    count = flags >> wire.REPORTS_SHIFT
    reports = read_reports(payload[position : position + count * wire.REPORT.size]) if count else ()
    position += count * wire.REPORT.size
    if position != len(payload):
        raise ProtocolError(f"'{interface.model_name}' sent a response of {len(payload)} bytes that ends at {position}")
    done, kept, kept_shared = bool(flags & wire.DONE), bool(flags & wire.KEPT), bool(flags & wire.KEPT_SHARED)
    return Responses(number, done, kept, kept_shared, started, ended, responses, reports)


def _read_response(
    payload: bytes, position: int, interface: ModelInterface, memory: InstanceMemory
) -> tuple[GuestResponse, int]:
    key, flags, code, count, text_size, layout_size = wire.RESPONSE_HEAD.unpack_from(payload, position)
    position += wire.RESPONSE_HEAD.size
    blocks, handles, text_at = read_blocks(payload, position, count, flags) if count else ((), (), position)
    end = text_at + text_size + layout_size
    # The guest chose these sizes. With their sum checked, no slice below can leave the payload; a wrong split between
    # text and layout shows as a layout that cannot be unpacked.
    if end > len(payload):
        raise ProtocolError(f"'{interface.model_name}' sent a response that runs past its message")
    final = bool(flags & wire.FINAL)
    if flags & wire.EMPTY:
        return GuestResponse(key, None, final, bool(flags & wire.RESCHEDULE)), end
    text = str(payload[text_at : text_at + text_size], "utf-8") if text_size else ""
    name, version = interface.model_name, interface.model_version
    if flags & wire.ERROR:
        text = wire.bounded_text(text)  # the stub does that, too, but a model may have its own stub
        error = ModelError(text, code=CODES[code], is_model_response=bool(flags & wire.ANSWERED))
        return GuestResponse(key, InferResponse(name, version, "", (), NO_PARAMETERS, error), final), end
    parameters = _parameters(text, interface) if text else NO_PARAMETERS
    data = payload[text_at + text_size : end]
    # Most responses of a model have the same names, datatypes and shapes. A layout is checked when its bytes are first
    # seen. Equal bytes need no second check: a layout does not say where in the segment the tensors are.
    layout = interface.layouts.get(data) or _read_layout(data, interface)
    if count:
        buffers = copy_or_borrow(blocks, layout, memory, name, apart=bool(flags & wire.OWN_BLOCKS), handles=handles)
    else:
        buffers = inline_tensors(payload, end, layout, name)
        end += layout.end
    # Only now, after the outputs were read: their blocks are released, and the next response is found, in any case.
    if layout.unknown_output:
        # CORE src/infer_response.cc, AddOutput
        text = f"unexpected inference output '{layout.unknown_output}' for model '{name}'"
        error = ModelError(text, code=Code.INVALID_ARG)
        return GuestResponse(key, InferResponse(name, version, "", (), NO_PARAMETERS, error), final), end
    outputs = [
        OutputTensor(output, datatype, shape, buffer)
        for (output, datatype, shape, _, _), buffer in zip(layout.entries, buffers)  # noqa: B905 - by construction
    ]
    response = InferResponse(name, version, "", outputs, parameters, None, layout)
    if flags & wire.DEVICE:
        response.is_on_device = True
    return GuestResponse(key, response, final), end


_LATEST_NS = 1 << 63  # no monotonic clock gets there: larger times are negative numbers


class ExecutionReport(NamedTuple):
    """What a native backend reports about one request, one batch or one response. Times are monotonic ns."""

    kind: int
    subject: int  # the key of the request, the rows of the batch, or the position of the response
    exec_start: int
    compute_start: int
    compute_end: int
    exec_end: int


_MEMORY_TYPES = ("CPU", "CPU_PINNED", "GPU")


def read_reports(payload: bytes) -> list[ExecutionReport]:
    """Decode REPORTS."""
    if len(payload) % wire.REPORT.size:
        raise ProtocolError(f"reports of {len(payload)} bytes are not whole records of {wire.REPORT.size}")
    reports = []
    for kind, subject, first, second, third, last in wire.REPORT.iter_unpack(payload):
        if kind > wire.REPORT_CANCELLED_RESPONSE:
            raise ProtocolError(f"unknown kind of report: {kind}")
        if first <= second <= third <= last < _LATEST_NS:
            reports.append(ExecutionReport(kind, subject, first, second, third, last))
            continue
        # Backends report anything with a failure, and some confuse their clocks: durations must not become negative.
        ordered = sorted((first, second, third, last))
        reports.append(ExecutionReport(kind, subject, *(ordered if ordered[-1] < _LATEST_NS else (0, 0, 0, 0))))
    return reports


def read_memory_usage(usage: Sequence[int]) -> tuple[MemoryUse, ...]:
    """Decode the field of MEMORY_USAGE."""
    if len(usage) % 3:
        raise ProtocolError(f"{len(usage)} numbers are not whole records of memory in use")
    found = []
    for kind, memory_id, size in zip(*[iter(usage)] * 3, strict=True):
        if kind >= len(_MEMORY_TYPES):
            raise ProtocolError(f"unknown type of memory: {kind}")
        signed = memory_id - (1 << 64) if memory_id >> 63 else memory_id
        found.append(MemoryUse(_MEMORY_TYPES[kind], signed, size))
    return tuple(found)


def _parameters(text: str, interface: ModelInterface) -> dict[str, Any]:
    parameters = orjson.loads(text)
    if not isinstance(parameters, dict):
        raise ProtocolError(f"'{interface.model_name}' sent response parameters that are not a JSON object")
    return parameters


def _read_layout(data: bytes, interface: ModelInterface) -> TensorLayout:
    places, _ = unpack_layout(data)
    names = [
        place.name if place.position == wire.OTHER_NAME else interface.plan.output_names[place.position]
        for place in places
    ]
    layout = check_layout(places, names, f"'{interface.model_name}'")
    interface.compare(layout)
    layout.unknown_output = next((name for name in names if name not in interface.plan.output_positions), "")
    interface.layouts[data] = layout
    return layout
