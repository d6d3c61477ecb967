"""Tensors that a guest has laid out, in its output segment or in a message: outputs of its model, inputs of its calls.

They come from a process that runs a stranger's code: every datatype, shape, offset and size is checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from naiad_stub.layout import Place

from naiad.errors import ProtocolError
from naiad.memory.instance import COPY_LIMIT, InstanceMemory
from naiad.protocol.datatypes import BYTE_SIZES, Datatype
from naiad.protocol.inference import Buffer

_DATATYPES = tuple(Datatype)
_BF16 = 14
_SLICED = 4096
"""Tensors that were copied out together are cut apart up to this size, which is cheaper than views of them."""


class TensorLayout:
    """Tensors of one message but for their bytes.

    Attributes:
        entries: Name, datatype, shape, start and end within its block of each tensor.
        end: Where the last of them ends.
        unknown_output: Name of an output that is not configured, empty if there is none.
        as_result: How they are packed for a model that called for them, once that was worked out.
    """

    __slots__ = ("as_result", "end", "entries", "unknown_output")

    def __init__(self, entries: list[tuple[str, Datatype, tuple[int, ...], int, int]], end: int) -> None:
        self.entries = entries
        self.end = end
        self.unknown_output = ""
        self.as_result: tuple[bytes, list[int], int] | None = None


def check_layout(places: Sequence[Place], names: Sequence[str], sender: str) -> TensorLayout:
    """The layout that *places* describe.

    Args:
        places: As unpacked.
        names: Their names.
        sender: Who sent them, for the error.

    Raises:
        ProtocolError: If a datatype, shape or size is not possible.
    """
    entries = []
    for place, name in zip(places, names, strict=True):
        if not 0 < place.code <= _BF16 or (place.shape and min(place.shape) < 0):
            raise ProtocolError(f"tensor '{name}' of {sender} has no valid datatype or shape")
        width = BYTE_SIZES[place.code]
        if width and prod(place.shape) * width != place.size:
            raise ProtocolError(f"tensor '{name}' of {sender} has {place.size} bytes for shape {list(place.shape)}")
        entries.append((name, _DATATYPES[place.code], place.shape, place.offset, place.offset + place.size))
    return TensorLayout(entries, max([entry[4] for entry in entries], default=0))


def take_over(
    blocks: Sequence[int], layout: TensorLayout, memory: InstanceMemory, sender: str, *, apart: bool
) -> Sequence[Buffer]:
    """The bytes of each tensor of *layout*: copied where they are few, else lent by the guest's segment.

    Args:
        blocks: The blocks they lie in, one at least; they go back to the guest when nobody refers to them any more.
        layout: As checked.
        memory: Of the guest.
        sender: For the error.
        apart: Each tensor that has bytes lies in a block of its own; else all are in one.

    Raises:
        ProtocolError: If a block is missing or lies outside the segment.
    """
    if apart:
        return _take_apart(blocks, layout, memory, sender)
    block = blocks[0]
    if block + layout.end > len(memory.outputs) or len(blocks) > 1:
        raise ProtocolError(f"tensors of '{sender}' lie outside their segment")
    if layout.end <= COPY_LIMIT:
        data: Buffer = bytes(memory.outputs[block : block + layout.end])
        if len(layout.entries) > 1 and layout.end > _SLICED:
            data = memoryview(data)
        memory.released.append(block)
    else:
        data = memory.borrow(block, block, block + layout.end)
    return [data[start:end] for _, _, _, start, end in layout.entries]


def inline_tensors(message: bytes, start: int, layout: TensorLayout, sender: str) -> Sequence[Buffer]:
    """The bytes of each tensor of *layout* where they lie in a message, from *start* on.

    Raises:
        ProtocolError: If the message ends before them.
    """
    if start + layout.end > len(message):
        raise ProtocolError(f"tensors of '{sender}' run past their message")
    return [message[start + begin : start + end] for _, _, _, begin, end in layout.entries]


def _take_apart(blocks: Sequence[int], layout: TensorLayout, memory: InstanceMemory, sender: str) -> Sequence[Buffer]:
    sizes = [end - start for _, _, _, start, end in layout.entries]
    if len(blocks) != sum(size > 0 for size in sizes) or len(set(blocks)) != len(blocks):
        raise ProtocolError(f"tensors of '{sender}' lie in {len(blocks)} blocks")
    remaining = iter(blocks)
    buffers: list[Buffer] = []
    for size in sizes:
        block = next(remaining) if size else 0
        if block + size > len(memory.outputs):
            raise ProtocolError(f"tensors of '{sender}' lie outside their segment")
        buffers.append(memory.borrow(block, block, block + size) if size else b"")
    return buffers
