"""Requests to EXECUTE, RESPONSES to responses: the host's half of `naiad_stub.exchange`.

Requests were checked by the engine. Responses come from a process that runs untrusted code: every index, offset and
size is checked against its bounds, and one that does not fit raises `ProtocolError`.

Both directions are on the request path, so each message is packed and unpacked by hand (see `naiad_stub.messages`), and
the layouts of tensors are recognised by their bytes (`naiad_stub.layout`).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import orjson
from naiad_stub import wire
from naiad_stub.layout import KEPT
from naiad_stub.layout import unpack as unpack_layout
from naiad_stub.memo import Memo
from naiad_stub.messages import ReleaseOutputs
from naiad_stub.messages import pack as pack_message
from naiad_stub.segment import align

from naiad.errors import Code, ModelError, ProtocolError
from naiad.memory.instance import InstanceMemory
from naiad.protocol.inference import NO_PARAMETERS, InferRequest, InferResponse, OutputTensor, Trace
from naiad.protocol.request_plan import PackedInputs, RequestPlan
from naiad.workers.tensors import TensorLayout, check_layout, copy_or_borrow, inline_tensors

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
"""Codes by the number `pb_utils.TritonError` gives them (TRITONSERVER_Error_Code)."""

_SMALL_BLOCKS_TOGETHER = 16  # released output blocks that wait for each other: see `InstanceMemory.released`


KeyedRequest: TypeAlias = tuple[int, InferRequest, PackedInputs | None]
"""A request of a batch: its key, itself, and its packed inputs; None where they are still to be packed."""


class ModelInterface:
    """What the exchange with all guests of one loaded version shares.

    Attributes:
        plan: The version's plan: the names that both sides refer to by their position.
        model_name: The model.
        model_version: Its version.
        layouts: Layouts of outputs by their packed bytes, checked when they were first seen.
    """

    __slots__ = ("layouts", "model_name", "model_version", "plan")

    def __init__(self, plan: RequestPlan) -> None:
        self.plan = plan
        self.model_name = plan.model_name
        self.model_version = plan.model_version
        self.layouts: Memo[bytes, TensorLayout] = Memo(KEPT)


class GuestResponse(NamedTuple):
    """One entry of RESPONSES.

    Attributes:
        key: Key of the request.
        response: The response; None for a mark alone.
        final: Whether it is the last.
        reschedule: Whether the model asks, instead, for the request to be scheduled again.
    """

    key: int
    response: InferResponse | None
    final: bool
    reschedule: bool = False


class ExecutingBatch(NamedTuple):
    """A batch that was sent to a guest, whose `execute` has not returned.

    Attributes:
        keys: Keys of its requests.
        block: Their input block, less than 0 if there is none.
        sent: When its inputs began to be copied (monotonic ns); 0 if the guest exited before it read the message.
        size: Rows of its requests together.
    """

    keys: Sequence[int]
    block: int
    sent: int
    size: int


def write_execute(
    number: int, batch: Sequence[KeyedRequest], interface: ModelInterface, memory: InstanceMemory
) -> tuple[bytes, int]:
    """Copy the inputs of a batch into the input segment, or into the message if they have few bytes, and pack EXECUTE.

    Args:
        number: The batch's number.
        batch: The requests, checked against the model.
        interface: The model's interface.
        memory: The instance's memory.

    Returns:
        The EXECUTE frame, after a frame that releases output blocks if there are any; and the input block to release
        when the batch is done (less than 0: none).

    Raises:
        OutOfMemoryError: If the inputs do not fit into the free part of the segment.
    """
    layouts = [packed or interface.plan.pack_inputs(request) for _, request, packed in batch]
    if memory.reservations.waiting and len(batch) == 1:
        frames = _write_reserved(number, batch[0], layouts[0], memory)
        if frames is not None:
            return frames
    size = layouts[0][2] if len(layouts) == 1 else sum([align(layout[2]) for layout in layouts])
    room = memory.allocate_input(size)
    if room is None:
        raise memory.full_error(f"inputs of {size} bytes do not fit into the input segment of '{interface.model_name}'")
    block, segment = room
    base = max(block, 0)
    requests = b""
    for (key, request, _), layout in zip(batch, layouts):  # noqa: B905 - equal by construction, on the request path
        requests += _pack_request(key, request, layout[0], base)
        for tensor, offset in zip(request.inputs, layout[1]):  # noqa: B905 - equal by construction, on the request path
            data = tensor.data
            start = base + offset
            segment[start : start + len(data)] = data
        base += align(layout[2])
    rest = b"".join((segment, requests)) if block < 0 else requests
    return _execute_frames(number, len(batch), block, rest, memory), block


def _write_reserved(
    number: int, keyed: KeyedRequest, layout: PackedInputs, memory: InstanceMemory
) -> tuple[bytes, int] | None:
    """The same for inputs that a frontend read into the segment (`reservations`); None if they must be copied."""
    key, request, _ = keyed
    claimed = memory.reservations.claim([tensor.data for tensor in request.inputs], layout[1])
    if claimed is None:
        return None
    block, start = claimed
    return _execute_frames(number, 1, block, _pack_request(key, request, layout[0], start), memory), block


def _execute_frames(number: int, count: int, block: int, rest: bytes, memory: InstanceMemory) -> bytes:
    payload = wire.EXECUTE_HEAD.pack(number, count, block) + rest
    frames = wire.FRAME.pack(len(payload), wire.Kind.EXECUTE, 0) + payload
    if (
        memory.has_large_released or len(memory.released) >= _SMALL_BLOCKS_TOGETHER
    ):  # small blocks go back many at a time
        frames = pack_released(memory) + frames
    return frames


def pack_released(memory: InstanceMemory) -> bytes:
    """The frame that releases output blocks that were read; empty if there are none."""
    memory.has_large_released = False
    released = memory.released
    offsets = [released.popleft() for _ in range(len(released))]
    return pack_message(ReleaseOutputs(offsets)) if offsets else b""


def _pack_request(key: int, request: InferRequest, layout: bytes, base: int) -> bytes:
    request_id = request.request_id.encode() if request.request_id else b""
    parameters = orjson.dumps(dict(request.parameters)) if request.parameters else b""
    correlation, correlation_text, correlation_size = request.correlation_id, b"", wire.NO_STRING
    if isinstance(correlation, str):
        correlation_text = correlation.encode()
        correlation, correlation_size = 0, len(correlation_text)
    flags, rest = request.flags, layout
    if request.trace is not None:
        flags, rest = _traced(flags, request.trace, layout)
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


def _traced(flags: int, trace: Trace, layout: bytes) -> tuple[int, bytes]:
    context = trace.context
    if context is None:
        return flags, layout
    return flags | wire.TRACED, wire.TRACE_SIZE.pack(len(context)) + context + layout


class Responses(NamedTuple):
    """One RESPONSES message.

    Attributes:
        number: The batch.
        done: Whether its `execute` has returned.
        kept: Whether the model still refers to its inputs.
        started: When `execute` began (monotonic ns).
        ended: When it returned, or the response was sent.
        responses: The responses.
    """

    number: int
    done: bool
    kept: bool
    started: int
    ended: int
    responses: list[GuestResponse]


def read_responses(payload: bytes, interface: ModelInterface, memory: InstanceMemory) -> Responses:
    """Decode RESPONSES, and copy or borrow the outputs.

    Raises:
        ProtocolError: If anything in it is out of bounds.
    """
    try:
        number, count, flags, started, ended = wire.RESPONSES_HEAD.unpack_from(payload)
        position = wire.RESPONSES_HEAD.size
        responses = []
        for _ in range(count):
            response, position = _read_response(payload, position, interface, memory)
            responses.append(response)
    except (struct.error, IndexError, UnicodeDecodeError, ValueError, wire.WireError) as error:
        raise ProtocolError(f"'{interface.model_name}' sent a malformed response: {error}") from error
    if position != len(payload):
        raise ProtocolError(f"'{interface.model_name}' sent a response of {len(payload)} bytes that ends at {position}")
    return Responses(number, bool(flags & wire.DONE), bool(flags & wire.KEPT), started, ended, responses)


def _read_response(
    payload: bytes, position: int, interface: ModelInterface, memory: InstanceMemory
) -> tuple[GuestResponse, int]:
    key, flags, code, count, text_size, layout_size = wire.RESPONSE_HEAD.unpack_from(payload, position)
    position += wire.RESPONSE_HEAD.size
    text_at = position + 8 * count
    end = text_at + text_size + layout_size
    if end > len(payload):
        raise ProtocolError(f"'{interface.model_name}' sent a response that runs past its message")
    final = bool(flags & wire.FINAL)
    if flags & wire.EMPTY:
        return GuestResponse(key, None, final, bool(flags & wire.RESCHEDULE)), end
    text = str(payload[text_at : text_at + text_size], "utf-8") if text_size else ""
    name, version = interface.model_name, interface.model_version
    if flags & wire.ERROR:
        error = ModelError(text, code=CODES[code], is_model_response=bool(flags & wire.ANSWERED))
        return GuestResponse(key, InferResponse(name, version, "", (), NO_PARAMETERS, error), final), end
    parameters = _parameters(text, interface) if text else NO_PARAMETERS
    data = payload[text_at + text_size : end]
    layout = interface.layouts.get(data) or _read_layout(data, interface)
    if count:
        blocks = struct.unpack_from(f"<{count}Q", payload, position)
        buffers = copy_or_borrow(blocks, layout, memory, name, apart=bool(flags & wire.OWN_BLOCKS))
    else:
        buffers = inline_tensors(payload, end, layout, name)
        end += layout.end
    if layout.unknown_output:
        # CORE src/infer_response.cc, AddOutput
        text = f"unexpected inference output '{layout.unknown_output}' for model '{name}'"
        error = ModelError(text, code=Code.INVALID_ARG)
        return GuestResponse(key, InferResponse(name, version, "", (), NO_PARAMETERS, error), final), end
    outputs = [
        OutputTensor(output, datatype, shape, buffer)
        for (output, datatype, shape, _, _), buffer in zip(layout.entries, buffers)  # noqa: B905 - by construction
    ]
    return GuestResponse(key, InferResponse(name, version, "", outputs, parameters, None, layout), final), end


def _parameters(text: str, interface: ModelInterface) -> dict[str, Any]:
    parameters = orjson.loads(text)
    if not isinstance(parameters, dict):
        raise ProtocolError(f"'{interface.model_name}' sent response parameters that are not a JSON object")
    return parameters


def _read_layout(data: bytes, interface: ModelInterface) -> TensorLayout:
    """Unpack and check a layout of outputs that is not in the memo."""
    places, _ = unpack_layout(data)
    names = [
        place.name if place.position == wire.OTHER_NAME else interface.plan.output_names[place.position]
        for place in places
    ]
    layout = check_layout(places, names, f"'{interface.model_name}'")
    layout.unknown_output = next((name for name in names if name not in interface.plan.output_positions), "")
    interface.layouts[data] = layout
    return layout
