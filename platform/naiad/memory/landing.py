"""Parts of an instance's input segment that a request is read into from its socket, before it is known whole.

The system writes to the segment itself, so that a tensor of megabytes is not copied on its way to the guest. A block is
free when nobody refers to it any more: neither the request, which may have to be read again for another guest, nor the
guest. A lost reference cannot leak it, as with outputs that are lent.

A guest may write to what it was sent. So bytes that landed are sent from where they are only once.
"""

from __future__ import annotations

import ctypes
import weakref
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from naiad_stub.segment import ALIGNMENT, Segment

from naiad.memory.watched import Bytes, watch
from naiad.protocol.inference import Buffer

_SHARE = 8
"""One part in so many of a segment may be in use where something lands."""


class _Landing(NamedTuple):
    """Where bytes land: their block, where they begin in the segment, and their address."""

    block: int
    start: int
    address: int


class Landings:
    """Of one input segment.

    Attributes:
        waiting: What may yet be sent from where it landed, by the id of its array, which lives as long as its entry.
        sent: Arrays that the guest has, by block.
        dropped: Blocks nobody refers to any more. Appended to by whichever thread drops the last reference.
    """

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self.waiting: dict[int, _Landing] = {}
        self.sent: dict[int, object] = {}
        self.dropped: deque[int] = deque()
        self._watched: dict[int, weakref.ref[Bytes]] = {}  # by block

    def land(self, size: int, ahead: int) -> memoryview | None:
        """Room for *size* bytes to be read into, the first *ahead* of which are no tensors.

        None where too much of the segment would be in use: what is still under way must not keep others out.
        """
        self.free_dropped()
        segment = self._segment
        if segment.in_use + size > segment.capacity // _SHARE:
            return None
        block = segment.allocate(size + ALIGNMENT)
        if block < 0:
            return None
        start = block + -ahead % ALIGNMENT

        def gone(_: object) -> None:
            self.waiting.pop(key, None)
            del self._watched[block]
            self.dropped.append(block)

        view, self._watched[block] = watch(segment.view, start, size, gone)
        key = id(view.obj)
        self.waiting[key] = _Landing(block, start, _address(view))
        return view

    def take(self, tensors: Sequence[Buffer], offsets: Sequence[int]) -> tuple[int, int] | None:
        """The block in which *tensors* have landed and where in the segment they begin.

        The block is the guest's then, and in `sent`.

        Args:
            tensors: Bytes of each.
            offsets: Where the guest will look for each, from the first on.

        Returns:
            None where they lie anywhere else, or in another order or at other distances, and so have to be copied.
        """
        if not tensors or not isinstance(tensors[0], memoryview):
            return None
        array = tensors[0].obj
        landing = self.waiting.get(id(array))
        if landing is None:
            return None
        first = _address(tensors[0])
        start = landing.start + first - landing.address
        if start % ALIGNMENT:
            return None
        for tensor, offset in zip(tensors, offsets, strict=True):
            if not isinstance(tensor, memoryview) or tensor.obj is not array or _address(tensor) != first + offset:
                return None
        del self.waiting[id(array)]
        self.sent[landing.block] = array
        return landing.block, start

    def free_dropped(self) -> None:
        """Take blocks back that nobody refers to any more."""
        while self.dropped:
            self._segment.release(self.dropped.popleft())

    def close(self) -> None:
        """The guest is gone."""
        self.sent.clear()


_NO_BYTES = ctypes.c_char * 0


def _address(data: memoryview) -> int:
    return ctypes.addressof(_NO_BYTES.from_buffer(data))
