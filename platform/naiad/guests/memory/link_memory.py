"""Memory that other processes of the server share with guests: parts of a version's inputs, and the guests' outputs.

Another process writes inputs into its part of a segment that the guests of one loaded version map, and reads outputs
in the guests' output segments. The owner of the models keeps the descriptors, and decides when bytes are free. Only
servers of several processes have any of this.
"""

from __future__ import annotations

import itertools
import mmap
import os
import weakref
from collections.abc import Callable
from typing import Protocol

from naiad_stub.segment import Segment, create_memory

from naiad.core.heap import address_of
from naiad.guests.memory.tracking import Bytes, track
from naiad.protocol.inference import Buffer

# Parts beyond two for each process: after an exit, a part stays in use until the guests are done with it.
_SPARE_PARTS = 2


class SharedInputs:
    """The segment of inputs of one loaded version, in parts."""

    def __init__(self, number: int, name: str, parts: int, on_close: Callable[[int], None]) -> None:
        """Create and map the segment; *on_close* gets its number. Raises OSError if even a small one is refused."""
        self.number = number
        # The descriptor is for the guests and the other processes; -1 once it is closed.
        self.descriptor, self.capacity = create_memory(f"naiad-{name}-links")
        self._segment = Segment(self.descriptor, self.capacity)
        self.view = self._segment.view
        self.part_size = self.capacity // parts & -mmap.ALLOCATIONGRANULARITY
        self._free = list(range(parts))
        self._retired: set[int] = set()
        self._references: dict[int, dict[int, weakref.ref[Bytes]]] = {part: {} for part in self._free}
        self._on_close = on_close

    @property
    def is_closed(self) -> bool:
        return self.descriptor < 0

    def take_part(self) -> int | None:
        """The number of a part for another process; None if all are in use."""
        return self._free.pop(0) if self._free else None

    def retire_part(self, part: int) -> None:
        """The frontend process of a part has exited: another one may have the part once its bytes are free."""
        self._retired.add(part)
        self._reuse(part)

    def lend(self, part: int, start: int, size: int, on_dropped: Callable[[], None]) -> memoryview:
        """*size* bytes of a part; *on_dropped* is called after the last reference to them."""
        references = self._references[part]

        def drop(_: object) -> None:
            references.pop(start, None)
            on_dropped()
            if part in self._retired:
                self._reuse(part)

        view, references[start] = track(self.view, part * self.part_size + start, size, drop)
        return view

    def _reuse(self, part: int) -> None:
        if self._references[part] or self.descriptor < 0:
            return
        self._retired.discard(part)
        self._segment.discard(part * self.part_size, self.part_size)
        self._free.append(part)

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
            self.view = memoryview(b"")
            self._segment.close()
            self._on_close(self.number)


class OutputSegment:
    """The output segment of a guest."""

    __slots__ = ("_address", "capacity", "descriptor", "number")

    def __init__(self, number: int, descriptor: int, capacity: int, view: memoryview) -> None:
        self.number = number
        self.descriptor = os.dup(descriptor)
        self.capacity = capacity
        self._address = address_of(view)

    def offset_of(self, data: memoryview) -> int:
        return address_of(data) - self._address


class MemoryUser(Protocol):
    """Another process that may have mapped segments."""

    def forget_part(self, number: int) -> None:
        """A segment of inputs ends with its version."""

    def forget_segment(self, number: int) -> None:
        """The guest of an output segment has exited: each of them that stays mapped takes 64 GiB of addresses."""


class LinkMemory:
    """All segments that other processes may map."""

    def __init__(self, processes: int = 1) -> None:
        self.processes = processes  # that may share them; set, if at all, before the first segment is made
        self.inputs: dict[int, SharedInputs] = {}
        self.users: list[MemoryUser] = []  # the other processes that share them now
        self._outputs: dict[int, OutputSegment] = {}  # by the id of the mapping
        self._numbers = itertools.count(1)

    def add_inputs(self, name: str) -> SharedInputs:
        """A segment for a version's inputs; *name* shows in /proc/PID/maps. Raises OSError if it is refused."""
        made = SharedInputs(next(self._numbers), name, 2 * self.processes + _SPARE_PARTS, self._remove_inputs)
        self.inputs[made.number] = made
        return made

    def _remove_inputs(self, number: int) -> None:
        del self.inputs[number]
        for user in self.users:
            user.forget_part(number)

    def add_outputs(self, descriptor: int, view: memoryview) -> None:
        self._outputs[id(view.obj)] = OutputSegment(next(self._numbers), descriptor, len(view), view)

    def remove_outputs(self, view: memoryview) -> None:
        segment = self._outputs.pop(id(view.obj), None)
        if segment is not None:
            os.close(segment.descriptor)
            for user in self.users:
                user.forget_segment(segment.number)

    def find(self, data: Buffer) -> OutputSegment | None:
        # Borrowed bytes are slices of an array over a segment (`guests.memory.tracking`).
        if not isinstance(data, memoryview) or not data.nbytes:
            return None
        base = getattr(data.obj, "base", None)
        return self._outputs.get(id(base.obj)) if isinstance(base, memoryview) else None
