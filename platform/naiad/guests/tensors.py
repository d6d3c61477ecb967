"""Reads tensors that a guest wrote, to its output segment or a message: outputs of its model, inputs of its calls.

The guest runs untrusted code, so every datatype, shape, offset and size is checked.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from math import prod

from naiad_stub import wire
from naiad_stub.layout import Place

from naiad.core.errors import ProtocolError
from naiad.guests.memory.device_bytes import DeviceBlock
from naiad.guests.memory.instance import InstanceMemory
from naiad.protocol.datatypes import BYTE_SIZES, Datatype
from naiad.protocol.device_bytes import DeviceBytes, DeviceUse, WrittenBytes, as_data
from naiad.protocol.inference import Buffer

_DATATYPES = tuple(Datatype)
_BF16 = 14
_SLICE_LIMIT = 4096  # up to this many bytes, slices of a copy are copied again: that is cheaper than making views


class TensorLayout:
    """The tensors of one message, without their bytes."""

    __slots__ = ("as_result", "end", "entries", "unknown_output")

    def __init__(self, entries: list[tuple[str, Datatype, tuple[int, ...], int, int]], end: int) -> None:
        self.entries = entries  # name, datatype, shape, and start and end within its block, of each tensor
        self.end = end  # where the last of them ends
        self.unknown_output = ""  # name of an output that is not configured; empty without one
        # Their layout in RESULT, packed when they were first the result of a call.
        self.as_result: tuple[bytes, list[int], int] | None = None


def check_layout(places: Sequence[Place], names: Sequence[str], sender: str) -> TensorLayout:
    """The layout that *places* describe; raise ProtocolError if a datatype, shape or size is impossible."""
    entries = []
    for place, name in zip(places, names, strict=True):
        if not 0 < place.code <= _BF16 or (place.shape and min(place.shape) < 0):
            raise ProtocolError(f"tensor '{name}' of {sender} has no valid datatype or shape")
        width = BYTE_SIZES[place.code]
        if width and prod(place.shape) * width != place.size:
            raise ProtocolError(f"tensor '{name}' of {sender} has {place.size} bytes for shape {list(place.shape)}")
        entries.append((name, _DATATYPES[place.code], place.shape, place.offset, place.offset + place.size))
    return TensorLayout(entries, max([entry[4] for entry in entries], default=0))


def copy_or_borrow(
    blocks: Sequence[int],
    layout: TensorLayout,
    memory: InstanceMemory,
    sender: str,
    *,
    apart: bool,
    handles: Sequence[tuple[bytes, bytes]] = (),
) -> Sequence[Buffer]:
    """The bytes of each tensor of *layout*: copied if they are few, else borrowed from the output segment.

    *blocks*, one at least, are released when the last reference to their bytes is gone. *apart*: each tensor with bytes
    is in a separate block; else all are in one. *handles* has UUID and handle of each block that is in GPU memory.
    ProtocolError if a block is missing or outside the segment.
    """
    data: Buffer
    if apart:
        return _borrow_each(blocks, layout, memory, sender, handles)
    block = blocks[0]
    if block > wire.BRIDGE_OFFSETS and len(blocks) == 1:
        offset = block & wire.BRIDGE_OFFSETS
        bridge = memory.bridges.written.get(block >> wire.BRIDGE_SHIFT)
        if bridge is None or offset + layout.end > bridge.capacity:
            raise ProtocolError(f"tensors of '{sender}' are outside its segments")
        data = bridge.borrow(offset, layout.end)
        return [data[start:end] for _, _, _, start, end in layout.entries]
    if block + layout.end > len(memory.outputs) or len(blocks) > 1:
        raise ProtocolError(f"tensors of '{sender}' are outside its segment")
    if layout.end <= memory.copy_limit:
        data = bytes(memory.outputs[block : block + layout.end])
        if len(layout.entries) > 1 and layout.end > _SLICE_LIMIT:
            data = memoryview(data)
        memory.released.append(block)
    else:
        data = memory.borrow(block, block, block + layout.end)
    return [data[start:end] for _, _, _, start, end in layout.entries]


def inline_tensors(message: bytes, start: int, layout: TensorLayout, sender: str) -> Sequence[Buffer]:
    """The bytes of each tensor in a message, from *start* on; raise ProtocolError if the message ends before them."""
    if start + layout.end > len(message):
        raise ProtocolError(f"tensors of '{sender}' exceed their message")
    return [message[start + begin : start + end] for _, _, _, begin, end in layout.entries]


def _borrow_each(
    blocks: Sequence[int],
    layout: TensorLayout,
    memory: InstanceMemory,
    sender: str,
    handles: Sequence[tuple[bytes, bytes]],
) -> Sequence[Buffer]:
    sizes = [end - start for _, _, _, start, end in layout.entries]
    own = [block for block in blocks if block != wire.WRITTEN_BLOCK]
    if len(blocks) != sum(size > 0 for size in sizes) or len(set(own)) != len(own):
        raise ProtocolError(f"tensors of '{sender}' have {len(blocks)} blocks instead of one each")
    remaining = iter(blocks)
    devices = iter(handles)
    buffers: list[Buffer] = []
    for (name, datatype, *_), size in zip(layout.entries, sizes, strict=True):
        block = next(remaining) if size else 0
        if block == wire.WRITTEN_BLOCK:
            buffers.append(as_data(WrittenBytes(size)))  # whether it had to be written is checked with its request
            continue
        if block >= wire.DEVICE_BLOCK:
            # Its place in the input segment of the guest that reads it stays empty, so it must have one.
            if size <= wire.INLINE_LIMIT or datatype is Datatype.BYTES:
                raise ProtocolError(f"tensor '{name}' of '{sender}' cannot be in GPU memory")
            uuid, handle = next(devices)
            owner = DeviceBlock(block, memory)
            buffers.append(as_data(DeviceBytes(uuid, handle, 0, size, memory.regions.exporter, owner)))
            continue
        if block + size > len(memory.outputs):
            raise ProtocolError(f"tensors of '{sender}' are outside its segment")
        buffers.append(memory.borrow(block, block, block + size) if size else b"")
    return buffers


def read_blocks(
    payload: bytes, position: int, count: int, flags: int
) -> tuple[Sequence[int], Sequence[tuple[bytes, bytes]], int]:
    """The blocks, UUID and handle of those in GPU memory, and the position after them; struct.error if cut off."""
    blocks = struct.unpack_from(f"<{count}Q", payload, position)
    position += 8 * count
    if not flags & wire.DEVICE:
        if count and max(blocks) >= wire.DEVICE_BLOCK:
            raise ProtocolError("a block in GPU memory has no handle")
        return blocks, (), position
    handles = []
    for block in blocks:
        if wire.DEVICE_BLOCK <= block < wire.WRITTEN_BLOCK:
            handles.append(wire.DEVICE_HANDLE.unpack_from(payload, position))
            position += wire.DEVICE_HANDLE.size
    return blocks, handles, position


def pack_device_places(tensors: Sequence[tuple[int, DeviceBytes]]) -> bytes:
    """Where tensors in GPU memory are, for a guest that is to read them."""
    places = [
        wire.DEVICE_PLACE.pack(at, each.uuid, each.handle, each.exporter.number, each.offset) for at, each in tensors
    ]
    return wire.DEVICE_COUNT.pack(len(places)) + b"".join(places)


def pack_readers(gpus: frozenset[bytes]) -> bytes:
    """The GPUs whose memory the readers of outputs can use."""
    return wire.DEVICE_COUNT.pack(len(gpus)) + b"".join(sorted(gpus))


def pack_output_places(use: DeviceUse, positions: Mapping[str, int]) -> bytes:
    """Where a guest is to write outputs, and which may stay in GPU memory; *positions* are those of their names."""
    packed = [
        wire.OUTPUT_PLACE.pack(
            positions[name], place.uuid, place.handle, place.exporter.number, place.offset, len(place)
        )
        for name, place in use.places.items()
        if name in positions
    ]
    packed += [
        wire.OUTPUT_PLACE.pack(positions[name], b"", b"", 0, 0, 0)
        for name in sorted(use.kept)
        if name in positions and name not in use.places
    ]
    return wire.DEVICE_COUNT.pack(len(packed)) + b"".join(packed)
