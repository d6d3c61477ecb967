"""The two segments of one instance as the host sees them: inputs it allocates, outputs it reads and hands back.

Outputs leave in one of two ways. Small ones are copied, so their block is free at once. Large ones are lent: the
response refers to the segment itself and the block is free when the last reference to those bytes goes, however many
layers hold them until then (a transport's write buffer, gRPC's C core). A lost reference therefore cannot leak a block,
and nobody has to say "I am done".
"""

from __future__ import annotations

import os
import weakref
from collections import deque

from naiad_stub.segment import DEFAULT_CAPACITY, Segment, create_memory
from naiad_stub.wire import INLINE_LIMIT

from naiad.errors import OutOfMemoryError
from naiad.memory.landing import Landings
from naiad.memory.watched import Bytes, watch

COPY_LIMIT = 128 << 10
"""Outputs up to this many bytes are copied, which is cheaper than lending them: their block is warm when the next
response goes there. At 256 KiB it costs as much, above that more."""


class InstanceMemory:
    """Owns both segments of an instance; a context for as long as its process may live.

    Attributes:
        input_descriptor: memfd to pass to the guest; closed by `drop_descriptors`.
        output_descriptor: Likewise.
        inputs: The input segment.
        landings: Parts of it that requests are read into.
        outputs: The output segment as bytes.
        returned: Offsets of output blocks nobody refers to any more, to be told to the guest. Appended to by whichever
            thread drops the last reference.
        is_release_due: Whether a large block is among them, which the guest should use again before it touches others.
    """

    def __init__(self, name: str, *, capacity: int = DEFAULT_CAPACITY) -> None:
        """Create and map both segments; *name* shows in /proc/PID/maps.

        Raises:
            OutOfMemoryError: If the system refuses even small segments.
        """
        self.input_descriptor = self.output_descriptor = -1
        try:
            self.input_descriptor, input_size = create_memory(f"naiad-{name}-in", capacity)
            self.output_descriptor, output_size = create_memory(f"naiad-{name}-out", capacity)
            self.inputs = Segment(self.input_descriptor, input_size)
            self._outputs = Segment(self.output_descriptor, output_size)
        except OSError as error:
            self.drop_descriptors()
            raise OutOfMemoryError(
                f"cannot create shared memory for '{name}': {error}. Check the limits on address space (ulimit -v) "
                "and file size (ulimit -f)"
            ) from error
        self.landings = Landings(self.inputs)
        self.outputs = self._outputs.view
        self.returned: deque[int] = deque()
        self.is_release_due = False
        self._lent: dict[int, weakref.ref[Bytes]] = {}

    @property
    def output_capacity(self) -> int:
        """Bytes of the output segment."""
        return self._outputs.capacity

    @property
    def input_byte_size(self) -> int:
        """Bytes of blocks of the input segment that are in use."""
        self.landings.free_dropped()
        return self.inputs.in_use

    @property
    def lent(self) -> int:
        """How many output blocks are referred to by somebody."""
        return len(self._lent)

    def drop_descriptors(self) -> None:
        """Close the descriptors once the guest has its own."""
        for descriptor in (self.input_descriptor, self.output_descriptor):
            if descriptor >= 0:
                os.close(descriptor)
        self.input_descriptor = self.output_descriptor = -1

    def room_for(self, size: int) -> tuple[int, memoryview] | None:
        """Room for *size* bytes that the guest is to have: inputs of a batch, or results of a call.

        Returns:
            A block and the input segment; for few bytes, which travel in the message (INLINE_LIMIT), -1 - *size* and
            memory of their own. None where they do not fit into the free part of the segment.
        """
        if size <= INLINE_LIMIT:
            return -1 - size, memoryview(bytearray(size))
        if self.landings.dropped:
            self.landings.free_dropped()
        block = self.inputs.allocate(size)
        return None if block < 0 else (block, self.inputs.view)

    def full(self, problem: str) -> OutOfMemoryError:
        """The error for what has no room in the input segment, as *problem* says."""
        return OutOfMemoryError(f"{problem} ({self.inputs.in_use} of {self.inputs.capacity} bytes in use)")

    def release(self, block: int) -> None:
        """Take an input block back that the guest refers to no more."""
        if block in self.landings.sent:
            del self.landings.sent[block]  # the request may refer to it still
        else:
            self.inputs.release(block)

    def trim(self) -> None:
        """Give free pages of the input segment back to the system."""
        self.landings.free_dropped()
        self.inputs.trim()

    def lend(self, block: int, start: int, end: int) -> memoryview:
        """Bytes *start* to *end* of the output segment, whose *block* comes back when they are referred to no more.

        Both must have been checked against the segment's size.
        """

        def give_back(_: object) -> None:
            self._lent.pop(block, None)
            self.returned.append(block)
            self.is_release_due = True

        view, self._lent[block] = watch(self.outputs, start, end - start, give_back)
        return view

    def close(self) -> None:
        """Unmap; parts that are still lent stay valid until they are dropped."""
        self.drop_descriptors()
        self.landings.close()
        self.inputs.close()
        self.outputs = memoryview(b"")
        self._outputs.close()
