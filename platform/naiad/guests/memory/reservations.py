"""Reserved parts of an instance's input segment, into which a frontend reads the body of a request from its socket.

The kernel then writes to the segment itself, so that a tensor of megabytes is not copied on its way to the guest. The
frontend reserves before it knows the request; a reservation becomes the batch's input block (`claim`) if its tensors
have the layout that the guest expects. Otherwise they are copied, as for any other request.

A block has two users: the request, which may have to be sent again to another guest, and the guest. It is free when
neither refers to it. `guests.memory.tracking` reports when the request's last reference to its bytes is dropped.

A guest may write to its inputs. So reserved bytes are sent in place only once: a retry copies them.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from naiad_stub.segment import ALIGNMENT, Segment

from naiad.core.heap import address_of
from naiad.guests.memory.tracking import Bytes, track
from naiad.protocol.inference import Buffer

# A reservation is made only while at most 1/8 of the segment is in use: bodies still being received must not keep the
# inputs of complete requests out.
_MAX_SHARE = 8


class InputReservation(NamedTuple):
    """One reservation."""

    block: int
    start: int  # where its bytes begin in the segment
    address: int  # where they begin in this process's memory


class InputReservations:
    """The reservations in one input segment."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        # Reservations that may yet be claimed, by the id of their array. The entry goes with the array, so the id
        # cannot be that of another object.
        self.waiting: dict[int, InputReservation] = {}
        self.sent: dict[int, object] = {}  # arrays that the guest refers to, by block
        # Blocks without references. Filled by the thread that drops the last reference.
        self.dropped: deque[int] = deque()
        self._tracked: dict[int, weakref.ref[Bytes]] = {}  # by block

    def reserve(self, size: int, ahead: int) -> memoryview | None:
        """Memory for a body of *size* bytes that has *ahead* bytes before its tensors; None if it does not fit."""
        self.free_dropped()
        segment = self._segment
        if segment.in_use + size > segment.capacity // _MAX_SHARE:
            return None
        block = segment.allocate(size + ALIGNMENT)
        if block < 0:
            return None
        start = block + -ahead % ALIGNMENT  # so that the first tensor is aligned

        def on_dropped(_: object) -> None:
            self.waiting.pop(key, None)
            del self._tracked[block]
            self.dropped.append(block)

        view, self._tracked[block] = track(segment.view, start, size, on_dropped)
        key = id(view.obj)
        self.waiting[key] = InputReservation(block, start, address_of(view))
        return view

    def claim(self, tensors: Sequence[Buffer], offsets: Sequence[int]) -> tuple[int, int] | None:
        """The block of a reservation that holds *tensors*, and where in the segment they begin; the guest then owns it.

        The guest will look for each at *offsets*, relative to the first. None if they are elsewhere, in another order
        or at other distances: they must be copied.
        """
        if not tensors or not isinstance(tensors[0], memoryview):
            return None
        array = tensors[0].obj
        reservation = self.waiting.get(id(array))
        if reservation is None:
            return None
        first = address_of(tensors[0])
        start = reservation.start + first - reservation.address
        if start % ALIGNMENT:
            return None
        for tensor, offset in zip(tensors, offsets, strict=True):
            if not isinstance(tensor, memoryview) or tensor.obj is not array or address_of(tensor) != first + offset:
                return None
        del self.waiting[id(array)]
        self.sent[reservation.block] = array
        return reservation.block, start

    def free_dropped(self) -> None:
        while self.dropped:
            self._segment.release(self.dropped.popleft())

    def close(self) -> None:
        self.sent.clear()
