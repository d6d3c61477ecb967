"""Requests to EXECUTE, RESPONSES to responses: the host's half of `naiad_stub.exchange`.

What is written was checked by the engine. What is read comes from a process that runs a stranger's code: every index,
offset and size is checked against its bounds, and whatever does not fit is a `ProtocolError`, never a crash.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import orjson
from naiad_stub import wire
from naiad_stub.layout import KEPT, Place
from naiad_stub.layout import pack as pack_layout
from naiad_stub.layout import unpack as unpack_layout
from naiad_stub.segment import align

from naiad.errors import Code, ModelError, OutOfMemoryError, ProtocolError
from naiad.memory.instance import COPY_LIMIT, InstanceMemory
from naiad.protocol.datatypes import BYTE_SIZES, Datatype
from naiad.protocol.inference import NO_PARAMETERS, InferRequest, InferResponse, OutputTensor

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

_DATATYPES = tuple(Datatype)
_BF16 = 14
_RELEASES_RIDE = 16


class Interface:
    """Names that both sides refer to by their position, and the layouts a model's outputs have had.

    Attributes:
        model_name: The model.
        model_version: Its version.
        inputs: Position of each input's name.
        outputs: Names of the outputs.
        output_positions: Position of each output's name.
        layouts: Layouts of outputs by their packed bytes, checked when they were first seen.
    """

    __slots__ = ("inputs", "layouts", "model_name", "model_version", "output_positions", "outputs")

    def __init__(self, model_name: str, model_version: int, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        self.model_name = model_name
        self.model_version = model_version
        self.inputs = {name: position for position, name in enumerate(inputs)}
        self.outputs = tuple(outputs)
        self.output_positions = {name: position for position, name in enumerate(outputs)}
        self.layouts: dict[bytes, OutputLayout] = {}


class OutputLayout:
    """Outputs of a response but for their bytes.

    Attributes:
        entries: Name, datatype, shape, start and end within the block of each output.
        end: Where the last of them ends.
        stranger: Name of an output that is not configured, empty if there is none.
    """

    __slots__ = ("end", "entries", "stranger")

    def __init__(self, entries: list[tuple[str, Datatype, tuple[int, ...], int, int]], end: int, stranger: str) -> None:
        self.entries = entries
        self.end = end
        self.stranger = stranger


class Answer(NamedTuple):
    """One entry of RESPONSES: key of the request, response (None: a final mark alone), whether it is the last."""

    key: int
    response: InferResponse | None
    final: bool


def write_execute(
    number: int, batch: Sequence[tuple[int, InferRequest]], interface: Interface, memory: InstanceMemory
) -> tuple[bytes, int]:
    """Lay the inputs of a batch out in the input segment and describe it.

    Args:
        number: The batch's number.
        batch: Keys and requests, checked against the model.
        interface: Of the model.
        memory: Of the instance.

    Returns:
        One EXECUTE frame, and the input block to release when the batch is done (-1: none).

    Raises:
        OutOfMemoryError: If the inputs do not fit into the free part of the segment.
    """
    layouts = [_input_layout(request, interface) for _, request in batch]
    size = layouts[0][2] if len(layouts) == 1 else sum([align(layout[2]) for layout in layouts])
    block = memory.inputs.allocate(size) if size else -1
    if size and block < 0:
        raise OutOfMemoryError(
            f"inputs of {size} bytes do not fit into the input segment of '{interface.model_name}' "
            f"({memory.inputs.in_use} of {memory.inputs.capacity} bytes in use)"
        )
    returned = memory.returned
    count = len(returned)
    if count < _RELEASES_RIDE and not memory.is_release_due:
        count = 0  # small blocks go back many at a time
    memory.is_release_due = False
    payload = wire.EXECUTE_HEAD.pack(number, len(batch), count)
    if count:
        payload += struct.pack(f"<{count}Q", *[returned.popleft() for _ in range(count)])
    segment = memory.inputs.view
    base = max(block, 0)
    for (key, request), layout in zip(batch, layouts):  # noqa: B905 - equal by construction, on the request path
        payload += _pack_request(key, request, layout[0], base)
        for tensor, offset in zip(request.inputs, layout[1]):  # noqa: B905 - likewise
            data = tensor.data
            start = base + offset
            segment[start : start + len(data)] = data
        base += align(layout[2])
    return wire.FRAME.pack(len(payload), wire.Kind.EXECUTE, 0) + payload, block


def _input_layout(request: InferRequest, interface: Interface) -> tuple[bytes, list[int], int]:
    """The packed layout of a request's inputs, their offsets, and the bytes they take together."""
    pattern = request.pattern
    if pattern is not None and pattern.layout_of is interface:
        return pattern.layout
    places = []
    end = 0
    for tensor in request.inputs:
        offset = align(end)
        end = offset + len(tensor.data)
        places.append(Place(interface.inputs[tensor.name], "", tensor.datatype, tensor.shape, offset, len(tensor.data)))
    positions = interface.output_positions
    requested = [positions[name] for name in request.requested_outputs] if request.requested_outputs else None
    packed = pack_layout(places, requested), [place.offset for place in places], end
    if pattern is not None:
        pattern.layout_of, pattern.layout = interface, packed
    return packed


def _pack_request(key: int, request: InferRequest, layout: bytes, base: int) -> bytes:
    request_id = request.request_id.encode() if request.request_id else b""
    parameters = orjson.dumps(dict(request.parameters)) if request.parameters else b""
    correlation, correlation_text, correlation_size = request.correlation_id, b"", wire.NO_STRING
    if isinstance(correlation, str):
        correlation_text = correlation.encode()
        correlation, correlation_size = 0, len(correlation_text)
    head = wire.REQUEST_HEAD.pack(
        key,
        correlation,
        request.timeout_us,
        request.flags,
        base,
        len(request_id),
        correlation_size,
        len(parameters),
        len(layout),
    )
    return head + request_id + correlation_text + parameters + layout


class Responses(NamedTuple):
    """One RESPONSES message: the batch, whether it is done, begin and end of execute (monotonic ns), the answers."""

    number: int
    done: bool
    started: int
    ended: int
    answers: list[Answer]


def read_responses(payload: bytes, interface: Interface, memory: InstanceMemory) -> Responses:
    """Decode RESPONSES and take the outputs over.

    Raises:
        ProtocolError: If anything in it is out of bounds.
    """
    try:
        number, count, flags, started, ended = wire.RESPONSES_HEAD.unpack_from(payload)
        position = wire.RESPONSES_HEAD.size
        answers = []
        for _ in range(count):
            answer, position = _read_answer(payload, position, interface, memory)
            answers.append(answer)
    except (struct.error, IndexError, UnicodeDecodeError, ValueError, wire.WireError) as error:
        raise ProtocolError(f"'{interface.model_name}' sent a malformed response: {error}") from error
    if position != len(payload):
        raise ProtocolError(f"'{interface.model_name}' sent a response of {len(payload)} bytes that ends at {position}")
    return Responses(number, bool(flags & wire.DONE), started, ended, answers)


def _read_answer(payload: bytes, position: int, interface: Interface, memory: InstanceMemory) -> tuple[Answer, int]:
    key, block, flags, code, text_size, layout_size = wire.RESPONSE_HEAD.unpack_from(payload, position)
    position += wire.RESPONSE_HEAD.size
    end = position + text_size + layout_size
    if end > len(payload):
        raise ProtocolError(f"'{interface.model_name}' sent a response that runs past its message")
    final = bool(flags & wire.FINAL)
    if flags & wire.EMPTY:
        return Answer(key, None, final), end
    text = str(payload[position : position + text_size], "utf-8") if text_size else ""
    name, version = interface.model_name, interface.model_version
    if flags & wire.ERROR:
        error = ModelError(text, code=CODES[code])
        return Answer(key, InferResponse(name, version, "", (), NO_PARAMETERS, error), final), end
    parameters = _parameters(text, interface) if text else NO_PARAMETERS
    data = payload[position + text_size : end]
    layout = interface.layouts.get(data) or _read_layout(data, interface)
    outputs = _take_over(block, layout, memory, interface)
    if layout.stranger:
        # CORE src/infer_response.cc, AddOutput
        text = f"unexpected inference output '{layout.stranger}' for model '{name}'"
        error = ModelError(text, code=Code.INVALID_ARG)
        return Answer(key, InferResponse(name, version, "", (), NO_PARAMETERS, error), final), end
    return Answer(key, InferResponse(name, version, "", outputs, parameters, None, layout), final), end


def _parameters(text: str, interface: Interface) -> dict[str, Any]:
    parameters = orjson.loads(text)
    if not isinstance(parameters, dict):
        raise ProtocolError(f"'{interface.model_name}' sent response parameters that are no object")
    return parameters


def _read_layout(data: bytes, interface: Interface) -> OutputLayout:
    """Unpack and check a layout that was not seen before."""
    places, _ = unpack_layout(data)
    entries = []
    stranger = ""
    for place in places:
        name = place.name if place.position == wire.OTHER_NAME else interface.outputs[place.position]
        if name not in interface.output_positions:
            stranger = name
        width = BYTE_SIZES[place.code]
        if not 0 < place.code <= _BF16 or (place.shape and min(place.shape) < 0):
            raise ProtocolError(f"output '{name}' of '{interface.model_name}' has no valid datatype or shape")
        if width and prod(place.shape) * width != place.size:
            raise ProtocolError(
                f"output '{name}' of '{interface.model_name}' has {place.size} bytes for shape {list(place.shape)}"
            )
        entries.append((name, _DATATYPES[place.code], place.shape, place.offset, place.offset + place.size))
    layout = OutputLayout(entries, max([entry[4] for entry in entries], default=0), stranger)
    if len(interface.layouts) >= KEPT:
        interface.layouts.clear()
    interface.layouts[data] = layout
    return layout


def _take_over(block: int, layout: OutputLayout, memory: InstanceMemory, interface: Interface) -> list[OutputTensor]:
    if block < 0:
        if any(start != end for _, _, _, start, end in layout.entries):
            raise ProtocolError(f"outputs of '{interface.model_name}' lie in no block")
        return [OutputTensor(name, datatype, shape, b"") for name, datatype, shape, _, _ in layout.entries]
    if block + layout.end > len(memory.outputs):
        raise ProtocolError(f"outputs of '{interface.model_name}' lie outside their segment")
    if layout.end <= COPY_LIMIT:
        data = bytes(memory.outputs[block : block + layout.end])
        memory.returned.append(block)
        return [
            OutputTensor(name, datatype, shape, data[start:end]) for name, datatype, shape, start, end in layout.entries
        ]
    lent = memory.lend(block, block, block + layout.end)
    return [
        OutputTensor(name, datatype, shape, lent[start:end]) for name, datatype, shape, start, end in layout.entries
    ]
