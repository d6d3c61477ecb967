"""Requests to EXECUTE, RESPONSES to responses: the host's half of `naiad_stub.exchange`.

What is written was checked by the engine. What is read comes from a process that runs a stranger's code: every index,
offset and size is checked against its bounds, and whatever does not fit is a `ProtocolError`, never a crash.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import orjson
from naiad_stub import wire
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
_NAME_LENGTH = struct.Struct("<H")


@dataclass(frozen=True, slots=True)
class Interface:
    """Names that both sides refer to by their position.

    Attributes:
        model_name: The model.
        model_version: Its version.
        inputs: Position of each input's name.
        outputs: Names of the outputs.
        output_positions: Position of each output's name.
    """

    model_name: str
    model_version: int
    inputs: dict[str, int]
    outputs: tuple[str, ...]
    output_positions: dict[str, int]


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
    size = 0
    for _, request in batch:
        for tensor in request.inputs:
            size = align(size) + len(tensor.data)
    block = memory.inputs.allocate(size) if size else -1
    if size and block < 0:
        raise OutOfMemoryError(
            f"inputs of {size} bytes do not fit into the input segment of '{interface.model_name}' "
            f"({memory.inputs.in_use} of {memory.inputs.capacity} bytes in use)"
        )
    released = b""
    count = len(memory.returned)
    if count:
        released = struct.pack(f"<{count}Q", *[memory.returned.popleft() for _ in range(count)])
    parts = [b"", wire.EXECUTE_HEAD.pack(number, len(batch), count), released]
    offset = max(block, 0)
    for key, request in batch:
        offset = _write_request(key, request, interface, memory.inputs.view, offset, parts)
    parts[0] = wire.FRAME.pack(sum(map(len, parts)), wire.Kind.EXECUTE, 0)
    return b"".join(parts), block


def _write_request(
    key: int, request: InferRequest, interface: Interface, segment: memoryview, offset: int, parts: list[bytes]
) -> int:
    request_id = request.request_id.encode() if request.request_id else b""
    parameters = orjson.dumps(dict(request.parameters)) if request.parameters else b""
    correlation, correlation_text, correlation_size = request.correlation_id, b"", wire.NO_STRING
    if isinstance(correlation, str):
        correlation_text = correlation.encode()
        correlation, correlation_size = 0, len(correlation_text)
    requested = request.requested_outputs
    parts.append(
        wire.REQUEST_HEAD.pack(
            key,
            correlation,
            request.timeout_us,
            request.flags,
            len(request.inputs),
            len(requested) if requested else wire.ALL_OUTPUTS,
            len(request_id),
            correlation_size,
            len(parameters),
        )
    )
    parts += (request_id, correlation_text, parameters)
    for tensor in request.inputs:
        offset = align(offset)
        data, shape = tensor.data, tensor.shape
        size = len(data)
        if size:
            segment[offset : offset + size] = data
        dimensions = len(shape)
        parts.append(
            wire.TENSOR[dimensions].pack(
                interface.inputs[tensor.name], tensor.datatype, dimensions, offset, size, *shape
            )
        )
        offset += size
    if requested:
        positions = interface.output_positions
        parts.append(struct.pack(f"<{len(requested)}H", *[positions[name] for name in requested]))
    return offset


class Responses(NamedTuple):
    """One RESPONSES message: the batch, whether it is done, when execute began and ended (monotonic ns), the answers."""

    number: int
    done: bool
    started: int
    ended: int
    answers: list[Answer]


def read_responses(payload: memoryview, interface: Interface, memory: InstanceMemory) -> Responses:
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
    except (struct.error, IndexError, UnicodeDecodeError, ValueError) as error:
        raise ProtocolError(f"'{interface.model_name}' sent a malformed response: {error}") from error
    return Responses(number, bool(flags & wire.DONE), started, ended, answers)


def _read_answer(
    payload: memoryview, position: int, interface: Interface, memory: InstanceMemory
) -> tuple[Answer, int]:
    key, block, flags, code, count, text_size = wire.RESPONSE_HEAD.unpack_from(payload, position)
    position += wire.RESPONSE_HEAD.size
    text = str(payload[position : position + text_size], "utf-8") if text_size else ""
    position += text_size
    final = bool(flags & wire.FINAL)
    if flags & wire.EMPTY:
        return Answer(key, None, final), position
    response = InferResponse(interface.model_name, interface.model_version)
    if flags & wire.ERROR:
        response.error = ModelError(text, code=CODES[code])
        return Answer(key, response, final), position
    if text:
        parameters = orjson.loads(text)
        if not isinstance(parameters, dict):
            raise ProtocolError(f"'{interface.model_name}' sent response parameters that are no object")
        response.parameters = parameters or NO_PARAMETERS
    entries = []
    for _ in range(count):
        entry, position = _read_tensor(payload, position, interface, len(memory.outputs))
        entries.append(entry)
    response.outputs = _take_over(block, entries, memory)
    for tensor in response.outputs:
        if tensor.name not in interface.output_positions:
            # CORE src/infer_response.cc, AddOutput
            response.error = ModelError(
                f"unexpected inference output '{tensor.name}' for model '{interface.model_name}'",
                code=Code.INVALID_ARG,
            )
            response.outputs = ()
            break
    return Answer(key, response, final), position


class _Entry(NamedTuple):
    name: str
    code: int
    shape: tuple[int, ...]
    offset: int
    size: int


def _read_tensor(payload: memoryview, position: int, interface: Interface, capacity: int) -> tuple[_Entry, int]:
    packer = wire.TENSOR[payload[position + 3]]
    index, code, _, offset, size, *shape = packer.unpack_from(payload, position)
    position += packer.size
    if index == wire.OTHER_NAME:
        (length,) = _NAME_LENGTH.unpack_from(payload, position)
        position += 2
        name = str(payload[position : position + length], "utf-8")
        position += length
    else:
        name = interface.outputs[index]
    width = BYTE_SIZES[code]
    if not 0 < code <= _BF16 or offset + size > capacity or (shape and min(shape) < 0):
        raise ProtocolError(f"output '{name}' of '{interface.model_name}' lies outside its segment")
    if width and prod(shape) * width != size:
        raise ProtocolError(f"output '{name}' of '{interface.model_name}' has {size} bytes for shape {shape}")
    return _Entry(name, code, tuple(shape), offset, size), position


def _take_over(block: int, entries: list[_Entry], memory: InstanceMemory) -> list[OutputTensor]:
    total = sum([entry.size for entry in entries])
    if block < 0 or total <= COPY_LIMIT:
        outputs = [
            OutputTensor(
                entry.name,
                _DATATYPES[entry.code],
                entry.shape,
                bytes(memory.outputs[entry.offset : entry.offset + entry.size]),
            )
            for entry in entries
        ]
        if block >= 0:
            memory.returned.append(block)
        return outputs
    start = min([entry.offset for entry in entries if entry.size])
    end = max([entry.offset + entry.size for entry in entries])
    lent = memory.lend(block, start, end)
    return [
        OutputTensor(
            entry.name,
            _DATATYPES[entry.code],
            entry.shape,
            lent[entry.offset - start : entry.offset - start + entry.size] if entry.size else b"",
        )
        for entry in entries
    ]
