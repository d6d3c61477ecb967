"""CALL to requests, responses to RESULT: calls that a model makes to other models.

Inputs are read where the calling guest wrote them; outputs are copied once, into the caller's input segment. The guest
runs untrusted code, so everything that it sends is checked.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import orjson
from naiad_stub import wire
from naiad_stub.layout import KEPT, Place
from naiad_stub.layout import pack as pack_layout
from naiad_stub.layout import unpack as unpack_layout
from naiad_stub.memo import Memo
from naiad_stub.segment import align

from naiad.core.errors import Code, ProtocolError
from naiad.guests.exchange import CODES
from naiad.guests.memory.instance import InstanceMemory
from naiad.guests.tensors import (
    TensorLayout,
    check_layout,
    copy_or_borrow,
    inline_tensors,
    pack_device_places,
    read_blocks,
)
from naiad.protocol.device_bytes import DeviceUse, WrittenBytes, device_bytes, on_device
from naiad.protocol.inference import (
    NO_PARAMETERS,
    Buffer,
    InferRequest,
    InferResponse,
    InputTensor,
    OutputTensor,
)

_CODE_NUMBERS = {code: number for number, code in enumerate(CODES)}


class ModelCall(NamedTuple):
    """One call."""

    number: int
    request: InferRequest
    is_decoupled: bool
    is_blocking: bool  # whether the calling instance does nothing else until the call ends
    is_awaited: bool  # the same, but only while the instance executes a batch
    traced_by: int | None = None  # key of the caller's request to whose trace it belongs; None for none
    uses_device: bool = False


class _CommonPart(NamedTuple):
    model: str
    outputs: tuple[str, ...]
    layout: TensorLayout
    layout_key: object


class CallDecoder:
    """Decodes the calls of one guest."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._common_parts: Memo[tuple[int, bytes], _CommonPart] = Memo(KEPT)

    def read(self, payload: bytes, memory: InstanceMemory) -> ModelCall:
        """Decode CALL, and copy or borrow its inputs; raise ProtocolError if anything in it is out of bounds."""
        try:
            return self._read(payload, memory)
        except (struct.error, IndexError, ValueError, wire.WireError) as error:
            raise ProtocolError(f"'{self._name}' sent a malformed call: {error}") from error

    def _read(self, payload: bytes, memory: InstanceMemory) -> ModelCall:
        (
            number,
            correlation,
            timeout,
            sequence_flags,
            version,
            flags,
            own,
            count,
            id_size,
            correlation_size,
            parameters_size,
            model_size,
            outputs_size,
            layout_size,
        ) = wire.CALL_HEAD.unpack_from(payload)
        position = wire.CALL_HEAD.size
        blocks, handles, position = read_blocks(payload, position, count, own) if count else ((), (), position)
        traced_by, position = _read_trace(payload, position, flags)
        request_id = str(payload[position : position + id_size], "utf-8") if id_size else ""
        position += id_size
        if correlation_size != wire.NO_STRING:
            correlation = str(payload[position : position + correlation_size], "utf-8")
            position += correlation_size
        parameters = orjson.loads(payload[position : position + parameters_size]) if parameters_size else NO_PARAMETERS
        position += parameters_size
        end = position + model_size + outputs_size + layout_size
        common = payload[position:end]
        repeated = self._common_parts.get((version, common)) or self._read_common(
            version, common, model_size, outputs_size
        )
        layout = repeated.layout
        if end + (0 if count else layout.end) != len(payload):
            raise ProtocolError(f"'{self._name}' sent a call of {len(payload)} bytes that does not end there")
        request = InferRequest(
            repeated.model,
            version,
            _named(
                layout,
                copy_or_borrow(blocks, layout, memory, self._name, apart=bool(own & wire.OWN_BLOCKS), handles=handles)
                if count
                else inline_tensors(payload, end, layout, self._name),
            ),
            request_id,
            repeated.outputs,
            parameters,
            correlation,
            sequence_flags,
            0,
            timeout,
            repeated.layout_key,
        )
        if own & wire.DEVICE and any(isinstance(tensor.data, WrittenBytes) for tensor in request.inputs):
            raise ProtocolError(f"'{self._name}' sent a call with an input that it has not sent")
        keeps_outputs = bool(flags & wire.CALL_DEVICE_OUTPUTS)
        request.reader = memory.bridges.load if flags & wire.CALL_BRIDGES else -1
        if handles or keeps_outputs:
            request.device = DeviceUse(has_inputs=bool(handles), keeps_outputs=keeps_outputs)
        return ModelCall(
            number,
            request,
            bool(flags & wire.CALL_DECOUPLED),
            bool(flags & wire.CALL_BLOCKING),
            bool(flags & wire.CALL_AWAITED),
            traced_by,
            bool(flags & wire.CALL_USES_DEVICE),
        )

    def _read_common(self, version: int, common: bytes, model_size: int, outputs_size: int) -> _CommonPart:
        layout_at = model_size + outputs_size
        outputs = str(common[model_size:layout_at], "utf-8")
        places, _ = unpack_layout(common[layout_at:])
        repeated = _CommonPart(
            str(common[:model_size], "utf-8"),
            tuple(outputs.split("\0")) if outputs else (),
            check_layout(places, [place.name for place in places], f"a call of '{self._name}'"),
            object(),
        )
        self._common_parts[version, common] = repeated
        return repeated


def _named(layout: TensorLayout, buffers: Sequence[Buffer]) -> list[InputTensor]:
    return [
        InputTensor(name, datatype, shape, buffer)
        for (name, datatype, shape, _, _), buffer in zip(layout.entries, buffers)  # noqa: B905 - by construction
    ]


def _read_trace(payload: bytes, position: int, flags: int) -> tuple[int | None, int]:
    if not flags & wire.CALL_TRACED:
        return None, position
    (key,) = wire.CALL_TRACE.unpack_from(payload, position)
    return key, position + wire.CALL_TRACE.size


def write_result(number: int, response: InferResponse | None, final: bool, memory: InstanceMemory) -> bytes:  # noqa: FBT001 - as `Sink.send`
    """Copy a response into the caller's input segment, or into the message if it has few bytes, and pack RESULT.

    A response of None is a final mark alone. OutOfMemoryError if the outputs do not fit into the free part of the
    segment.
    """
    flags = wire.FINAL if final else 0
    if response is None:
        return _pack(number, -1, -1, flags | wire.EMPTY, 0, b"", b"")
    if response.error is not None:
        text = response.error.message.encode("utf-8", "replace")
        code = _CODE_NUMBERS.get(response.error.code, 0)
        return _pack(number, -1, response.model_version, flags | wire.ERROR, code, text, b"")
    layout, offsets, size = _layout_of(response)
    if size >= wire.BRIDGE_FROM and not response.is_on_device:
        place = memory.bridges.place_of(response.outputs, offsets)
        if place is not None and memory.bridges.hold(place):
            parameters = orjson.dumps(dict(response.parameters)) if response.parameters else b""
            return _pack(number, place.start, response.model_version, flags, 0, parameters, layout)
    room = memory.allocate_input(size)
    if room is None:
        raise memory.full_error(
            f"a response of {size} bytes does not fit into the input segment of the model that called for it"
        )
    block, segment = room
    base = max(block, 0)
    places = b""
    try:
        outputs: Sequence[OutputTensor] = response.outputs
        if response.is_on_device:
            devices = on_device([tensor.data for tensor in outputs])
            if devices:
                places, flags = pack_device_places(devices), flags | wire.DEVICE
                found = [device for _, device in devices]
                memory.regions.open(found)
                memory.regions.hold(block, found)
        for tensor, offset in zip(outputs, offsets):  # noqa: B905 - equal by construction
            data = tensor.data
            if places and device_bytes(data) is not None:
                continue
            start = base + offset
            segment[start : start + len(data)] = data
        parameters = orjson.dumps(dict(response.parameters)) if response.parameters else b""
        version = response.model_version
        inline = segment if block < 0 else b""
        return _pack(number, block, version, flags, 0, parameters, layout, inline, places)
    except BaseException:
        if block >= 0:
            memory.release_input(block)
        raise


def error_result(number: int, message: str, code: Code) -> bytes:
    """A RESULT frame that ends a call with an error."""
    text = message.encode("utf-8", "replace")
    return _pack(number, -1, -1, wire.FINAL | wire.ERROR, _CODE_NUMBERS[code], text, b"")


def result_block(frame: bytes) -> int:
    """The input block that a RESULT frame refers to; less than 0 without one."""
    return int(wire.RESULT_HEAD.unpack_from(frame, wire.FRAME.size)[1])


def _pack(
    number: int,
    block: int,
    version: int,
    flags: int,
    code: int,
    text: bytes,
    layout: bytes,
    inline: Buffer = b"",
    places: bytes = b"",
) -> bytes:
    head = wire.RESULT_HEAD.pack(number, block, version, flags, code, len(text), len(layout))
    return wire.frame(wire.Kind.RESULT, head + text + places + layout + inline)


def _layout_of(response: InferResponse) -> tuple[bytes, list[int], int]:
    known = response.layout
    if isinstance(known, TensorLayout):
        if known.as_result is None:
            known.as_result = _pack_layout(response)
        return known.as_result
    return _pack_layout(response)


def _pack_layout(response: InferResponse) -> tuple[bytes, list[int], int]:
    places = []
    end = total = 0
    for tensor in response.outputs:
        offset = align(end)
        size = len(tensor.data)
        end = offset + size
        total += size
        places.append(Place(wire.OTHER_NAME, tensor.name, tensor.datatype, tensor.shape, offset, size))
    return pack_layout(places), [place.offset for place in places], end if total else 0
