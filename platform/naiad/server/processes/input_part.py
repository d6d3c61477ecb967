"""This process's part of a version's segment of inputs of another process, in which it alone allocates.

That process returns a block when neither it nor a guest refers to its bytes. Bodies that were read into the part stay
where they are (`guests.memory.reservations`); other inputs are copied into a block.
"""

from __future__ import annotations

from collections.abc import Sequence

from naiad_stub.segment import Segment

from naiad.guests.memory.instance import TRIM_SECONDS
from naiad.guests.memory.reservations import InputReservations
from naiad.guests.memory.unsent_frames import InputCopy
from naiad.protocol.inference import InputTensor


class InputPart:
    """One part of the segment *number*, of the inputs of *load*; the caller closes *descriptor*."""

    def __init__(self, number: int, descriptor: int, start: int, capacity: int, load: int) -> None:
        self.number = number
        self.load = load
        self._segment = Segment(descriptor, capacity, start)
        self._reservations = InputReservations(self._segment)
        self._blocks: dict[int, int] = {}  # blocks that the owner has, by where their inputs begin

    @property
    def in_use(self) -> int:
        return self._segment.in_use

    def reserve(self, size: int, ahead: int) -> memoryview | None:
        return self._reservations.reserve(size, ahead)

    def place(
        self, inputs: Sequence[InputTensor], offsets: Sequence[int], size: int, copies: list[InputCopy] | None = None
    ) -> int:
        """Place inputs in the part; return where they begin, or -1 if the part is full.

        They take *size* bytes, each input at its offset from that start. Inputs that were read into the part with these
        offsets stay where they are. Others are copied; with *copies*, the caller makes the copies added to that list.
        """
        reservations = self._reservations
        if reservations.waiting:
            claimed = reservations.claim([tensor.data for tensor in inputs], offsets)
            if claimed is not None:
                block, start = claimed
                self._blocks[start] = block
                return start
        reservations.free_dropped()
        start = self._segment.allocate(size)
        if start < 0:
            return -1
        view = self._segment.view
        try:
            for tensor, offset in zip(inputs, offsets, strict=True):
                data = tensor.data
                if copies is None:
                    view[start + offset : start + offset + len(data)] = data
                else:
                    copies.append((view[start + offset : start + offset + len(data)], data))
        except BaseException:
            self._segment.release(start)
            raise
        self._blocks[start] = start
        return start

    def free(self, start: int) -> None:
        block = self._blocks.pop(start)
        if block in self._reservations.sent:
            del self._reservations.sent[block]  # this process may still refer to it
        else:
            self._segment.release(block)

    def trim(self) -> bool:
        """Return free pages to the system, for a few milliseconds; return whether any are left."""
        self._reservations.free_dropped()
        self._segment.trim(TRIM_SECONDS)
        return self._segment.has_untrimmed

    def close(self) -> None:
        self._reservations.close()
        self._segment.close()
