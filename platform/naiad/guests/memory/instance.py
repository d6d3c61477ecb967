"""The two shared segments of one instance: inputs, which the host allocates, and outputs, which the guest allocates.

Outputs leave the output segment in one of two ways. Small ones are copied, so their block is free at once. Large ones
are **borrowed**: the response refers to the segment itself, and the block is released when the last reference to those
bytes is gone (`guests.memory.tracking`). Released blocks are listed in `released` and sent to the guest with one of the
next messages.

Inputs are copied into blocks that `allocate_input` finds, or are there already (`guests.memory.reservations`).
"""

from __future__ import annotations

import os
import weakref
from collections import deque

from naiad_stub.segment import DEFAULT_CAPACITY, Segment, create_memory
from naiad_stub.wire import BRIDGE_OFFSETS, INLINE_LIMIT

from naiad.core.errors import OutOfMemoryError
from naiad.guests.memory.bridges import GuestBridges
from naiad.guests.memory.device_bytes import DeviceRegions
from naiad.guests.memory.link_memory import LinkMemory
from naiad.guests.memory.reservations import InputReservations
from naiad.guests.memory.tracking import Bytes, track

# Outputs up to this many bytes are copied, which is cheaper than borrowing them: the block's pages are still in the
# cache when the next response is written there. At 256 KiB copying costs as much, above that more.
COPY_LIMIT = 128 << 10

TRIM_SECONDS = 0.002


class InstanceMemory:
    """Owns both segments of an instance, for as long as its process may live."""

    def __init__(self, name: str, *, capacity: int = DEFAULT_CAPACITY, shared: LinkMemory | None = None) -> None:
        """Create and map both segments; *name* shows in /proc/PID/maps. OutOfMemoryError if the system refuses.

        With *shared*, other processes read the outputs, and nothing is copied here.
        """
        # Memfds of the segments, for the guest; closed by `close_descriptors`.
        self.input_descriptor = self.output_descriptor = -1
        # Offsets of output blocks that the guest may free, not yet sent to it. Filled by the thread that drops the last
        # reference.
        self.released: deque[int] = deque()
        # Whether a borrowed block is among them: sent soon, so that the guest uses its pages again before it touches
        # others.
        self.has_large_released = False
        self.bridges = GuestBridges(name, self)
        try:
            self.input_descriptor, input_size = create_memory(f"naiad-{name}-in", capacity)
            self.output_descriptor, output_size = create_memory(f"naiad-{name}-out", capacity)
            self.inputs = Segment(self.input_descriptor, input_size)
            self._outputs = Segment(self.output_descriptor, output_size, owner=self.bridges)
        except OSError as error:
            self.close_descriptors()
            raise OutOfMemoryError(
                f"cannot create shared memory for '{name}': {error}. Check the limits on address space (ulimit -v) "
                "and file size (ulimit -f)"
            ) from error
        self.reservations = InputReservations(self.inputs)
        self.outputs = self._outputs.view
        self.regions = DeviceRegions()
        self._borrowed: dict[int, weakref.ref[Bytes]] = {}  # by block
        # Outputs up to this many bytes are copied out of their segment.
        self.copy_limit = COPY_LIMIT if shared is None else 0
        self._shared = shared
        if shared is not None:
            shared.add_outputs(self.output_descriptor, self.outputs)

    @property
    def output_capacity(self) -> int:
        return self._outputs.capacity

    @property
    def input_byte_size(self) -> int:
        self.reservations.free_dropped()
        return self.inputs.in_use

    @property
    def borrowed_count(self) -> int:
        return len(self._borrowed)

    def close_descriptors(self) -> None:
        for descriptor in (self.input_descriptor, self.output_descriptor):
            if descriptor >= 0:
                os.close(descriptor)
        self.input_descriptor = self.output_descriptor = -1

    def allocate_input(self, size: int) -> tuple[int, memoryview] | None:
        """Memory for *size* bytes on their way to the guest: the inputs of a batch, or the results of a call.

        Returns a block and the input segment; for up to INLINE_LIMIT bytes, which travel in the message, -1 - *size*
        and separate memory. None if they do not fit into the free part of the segment.
        """
        if size <= INLINE_LIMIT:
            return -1 - size, memoryview(bytearray(size))
        if self.reservations.dropped:
            self.reservations.free_dropped()
        block = self.inputs.allocate(size)
        return None if block < 0 else (block, self.inputs.view)

    def full_error(self, problem: str) -> OutOfMemoryError:
        return OutOfMemoryError(f"{problem} ({self.inputs.in_use} of {self.inputs.capacity} bytes in use)")

    def release_input(self, block: int) -> None:
        if block > BRIDGE_OFFSETS:
            self.bridges.held.pop(block, None)
            return
        self.regions.release(block)
        if block in self.reservations.sent:
            del self.reservations.sent[block]  # the request may still refer to it
        else:
            self.inputs.release(block)

    def trim(self) -> bool:
        """Return free pages of the input segment to the system, for a few milliseconds; return whether any are left."""
        self.reservations.free_dropped()
        self.inputs.trim(TRIM_SECONDS)
        return self.inputs.has_untrimmed

    def borrow(self, block: int, start: int, end: int) -> memoryview:
        """Bytes *start* to *end* of the output segment; *block* is released when the last reference to them is gone.

        All three must have been checked against the segment's size.
        """

        def on_dropped(_: object) -> None:
            self._borrowed.pop(block, None)
            self.released.append(block)
            self.has_large_released = True

        view, self._borrowed[block] = track(self.outputs, start, end - start, on_dropped)
        return view

    def close(self) -> None:
        """Unmap; parts that responses refer to stay valid until they are dropped."""
        self.close_descriptors()
        self.regions.close()
        self.bridges.close()
        self.reservations.close()
        self.inputs.close()
        if self._shared is not None:
            self._shared.remove_outputs(self.outputs)
        self.outputs = memoryview(b"")
        self._outputs.close()
