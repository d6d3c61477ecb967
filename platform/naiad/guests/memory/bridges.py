"""Bridges: memory in which long tensors go from guest to guest without a copy here; `naiad_stub.bridges` is their half.

A bridge has one guest that writes to it, and the guests of one load of a model that read it. It is made when a long
tensor has gone that way once, by a copy. From then on inputs of a call, its results, and what one step of an ensemble
passes to the next are read where the first guest wrote them, if

- the request or response has all its tensors side by side in the bridge, as the reader expects them;
- the reader is of the load that the bridge leads to, and has said that it has mapped the bridge.

Anything else is copied; the server maps every bridge, too.

A block is the writer's again when nothing refers to its bytes: not the server, and not the reader (`held`, and
`ExecutingBatch.places`). A bridge ends with its writer, and with the last of its readers; parts that are referred to
stay valid. What the guests write is theirs, so offsets are checked here, as those of other segments are.
"""

from __future__ import annotations

import array
import itertools
import os
import socket
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from naiad_stub.messages import CloseBridge, OpenBridge, UseBridge, pack
from naiad_stub.segment import ALIGNMENT, Segment, create_memory
from naiad_stub.wire import BRIDGE_SHIFT

from naiad.core.heap import address_of
from naiad.guests.memory.tracking import Bytes, track
from naiad.protocol.inference import Buffer, InputPlace

_CAPACITY = 4 << 30  # bytes of a bridge, which are addresses until they are written to
_MAX_BRIDGES = 64  # Bridges that one guest may write to. Each takes a descriptor and addresses here.
_MAX_NAMES = 64  # names by which the guest may know the reader of one bridge
_NUMBERS = itertools.count(1)
_LAST_NUMBER = 1 << 22
_BYTE = b"\0"


class HasData(Protocol):
    """A tensor with its elements."""

    @property
    def data(self) -> Buffer: ...


class BlockOwner(Protocol):
    """The memory of a guest to which blocks are released: `InstanceMemory`."""

    released: deque[int]
    has_large_released: bool


class Bridge:
    """One bridge."""

    def __init__(self, number: int, name: str, writer: GuestBridges, reader: int, memory: BlockOwner) -> None:
        """Create and map it; *name* shows in /proc/PID/maps. Raises OSError if even a small segment is refused."""
        self.number = number
        self.writer = writer
        self.reader = reader  # the number of the load whose guests read it
        self.descriptor, self.capacity = create_memory(f"naiad-{name}-bridge", _CAPACITY)
        self._segment = Segment(self.descriptor, self.capacity, owner=self)
        self.view = self._segment.view
        self._memory = memory
        self._address = address_of(self.view)
        self._borrowed: dict[int, weakref.ref[Bytes]] = {}  # by offset
        self.readers: set[GuestBridges] = set()
        self.names: set[tuple[str, int]] = set()

    def borrow(self, offset: int, size: int) -> memoryview:
        """*size* bytes from *offset* on; the block there is released when the last reference to them is gone.

        Both must have been checked against the bridge's size.
        """
        block = self.number << BRIDGE_SHIFT | offset

        def on_dropped(_: object) -> None:
            self._borrowed.pop(offset, None)
            self._memory.released.append(block)
            self._memory.has_large_released = True

        view, self._borrowed[offset] = track(self.view, offset, size, on_dropped)
        return view

    def start_of(self, tensors: Sequence[HasData], offsets: Sequence[int]) -> int:
        first = tensors[0].data
        assert isinstance(first, memoryview)
        source = first.obj
        start = address_of(first) - offsets[0]
        for tensor, offset in zip(tensors, offsets, strict=True):
            data = tensor.data
            if not isinstance(data, memoryview) or data.obj is not source or address_of(data) != start + offset:
                return -1
        start -= self._address
        return -1 if start < 0 or start % ALIGNMENT else start

    def close(self) -> None:
        if self.descriptor < 0:
            return
        os.close(self.descriptor)
        self.descriptor = -1
        for guest in (self.writer, *self.readers):
            guest.on_closed(self)
        self.readers.clear()
        self.view = memoryview(b"")
        self._segment.close()


class GuestBridges:
    """The bridges of one guest."""

    def __init__(self, name: str, memory: BlockOwner) -> None:
        self.load = 0  # the number of the guest's load; 0 while it takes no part
        self.written: dict[int, Bridge] = {}
        self.held: dict[int, object] = {}  # results of calls in bridges that it refers to, by block
        self._name = name
        self._memory = memory
        self._by_reader: dict[int, Bridge] = {}
        self._read: dict[int, Bridge] = {}
        self._opened: set[int] = set()
        self._socket: socket.socket | None = None
        self._send: Callable[[bytes], None] = lambda _: None

    def start(self, load: int, sock: socket.socket, send: Callable[[bytes], None]) -> None:
        """Take part; *sock* passes descriptors to the guest and is closed by this object."""
        self.load = load
        self._socket = sock
        self._send = send

    # -- as the writer ------------------------------------------------------------------------------------------

    def to_reader(self, load: int) -> int:
        bridge = self._by_reader.get(load)
        return 0 if bridge is None else bridge.number

    def offer(self, load: int, model: str = "", version: int = 0) -> None:
        """Long tensors of this guest go to the guests of *load*: the next ones may go through a bridge.

        *load* is 0 for guests that take no part; *model* and *version* are as this guest calls them, if it does.
        """
        bridge = self._by_reader.get(load)
        if bridge is None:
            if not load or not self.load or self._socket is None or len(self.written) >= _MAX_BRIDGES:
                return
            number = next(_NUMBERS)
            if number > _LAST_NUMBER:
                return
            try:
                bridge = Bridge(number, self._name, self, load, self._memory)
            except OSError:
                return
            if not self._open(bridge, is_written=True):
                bridge.close()
                return
            self.written[number] = self._by_reader[load] = bridge
        if model and (model, version) not in bridge.names and len(bridge.names) < _MAX_NAMES:
            for other in self.written.values():
                other.names.discard((model, version))
            bridge.names.add((model, version))
            self._send(pack(UseBridge(bridge.number, model, [version])))

    # -- as the reader ------------------------------------------------------------------------------------------

    def place_of(
        self, tensors: Sequence[HasData], offsets: Sequence[int], model: str = "", version: int = 0
    ) -> InputPlace | None:
        """Where *tensors* are in a bridge that this guest reads, at *offsets* from there; None if they must be copied.

        Then the guest that made them may be offered a bridge for the next ones.
        """
        first = tensors[0].data
        owner = owner_of(first)
        if owner is None or not self.load:
            return None
        if isinstance(owner, GuestBridges):
            if owner is not self:
                owner.offer(self.load, model, version)
            return None
        if owner.reader != self.load:
            owner.writer.offer(self.load, model, version)
            return None
        if not self._can_read(owner):
            return None
        start = owner.start_of(tensors, offsets)
        if start < 0:
            return None
        assert isinstance(first, memoryview)
        return InputPlace(0, owner.number << BRIDGE_SHIFT | start, first)

    def hold(self, place: InputPlace) -> bool:
        """Keep the bytes at a place until the guest releases it as a block; False if it holds that block already."""
        if place.start in self.held:
            return False
        self.held[place.start] = place
        return True

    def on_opened(self, number: int) -> None:
        if number in self._read:
            self._opened.add(number)

    def _can_read(self, bridge: Bridge) -> bool:
        """Whether the guest has mapped a bridge; it is asked to if not."""
        if bridge.number not in self._read and self._open(bridge, is_written=False):
            self._read[bridge.number] = bridge
            bridge.readers.add(self)
        return bridge.number in self._opened

    # -- their end ----------------------------------------------------------------------------------------------

    def on_closed(self, bridge: Bridge) -> None:
        self._opened.discard(bridge.number)
        if self._read.pop(bridge.number, None) is not None or self.written.pop(bridge.number, None) is not None:
            if self._by_reader.get(bridge.reader) is bridge:
                del self._by_reader[bridge.reader]
            if self._socket is not None:
                self._send(pack(CloseBridge(bridge.number)))

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._send = lambda _: None
        self.load = 0
        self.held.clear()
        for bridge in list(self.written.values()):
            bridge.close()
        for bridge in list(self._read.values()):
            self.on_closed(bridge)
            bridge.readers.discard(self)
            if not bridge.readers:
                bridge.close()

    def _open(self, bridge: Bridge, *, is_written: bool) -> bool:
        """Pass a bridge to the guest; False if that is not possible now."""
        if self._socket is None or bridge.descriptor < 0:
            return False
        try:
            self._socket.sendmsg(
                [_BYTE], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [bridge.descriptor]))]
            )
        except OSError:  # it is full, or the guest has ended
            return False
        self._send(pack(OpenBridge(bridge.number, bridge.capacity, is_written)))
        return True


def owner_of(data: Buffer) -> Bridge | GuestBridges | None:
    """The bridge that *data* is in, or the bridges of the guest whose output segment it is in; None for elsewhere."""
    # Borrowed bytes are slices of an array over a segment (`guests.memory.tracking`).
    if not isinstance(data, memoryview):
        return None
    base = getattr(data.obj, "base", None)
    owner = getattr(base.obj, "owner", None) if isinstance(base, memoryview) else None
    return owner if isinstance(owner, Bridge | GuestBridges) else None
