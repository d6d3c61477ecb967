"""Who holds which part of the two segments, as the guest sees it.

Output blocks are allocated here and come back when the host has read them. Input blocks are the host's; what the model
still refers to is kept for it, whatever it does with its arrays, and is given back when the last reference goes.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections import deque
from typing import Any, Callable, Dict, List, Optional, Sequence

import numpy as np

from naiad_stub.channel import Channel, HostGoneError, Waiter
from naiad_stub.exceptions import TritonModelException
from naiad_stub.messages import ReleaseOutputs, WantRelease, pack
from naiad_stub.segment import Segment, block_size
from naiad_stub.tensor import Tensor


class _ParentsSegment(Segment):
    """A segment that only another process may allocate from."""

    __slots__ = ()

    def __init__(self) -> None:
        pass

    def allocate(self, size: int) -> int:  # noqa: ARG002
        """Refuse."""
        raise HostGoneError


def _nothing() -> None:
    pass


class OutputBlocks:
    """Blocks of the output segment, from any thread; waits for the host where the segment is full.

    Attributes:
        view: The segment as bytes.
        before_waiting: Called by a thread before it waits for room, to send what it keeps back, which takes room.
    """

    def __init__(self, segment: Segment, channel: Channel) -> None:
        self.view = segment.view
        self.before_waiting: Callable[[], None] = _nothing
        self._segment = segment
        self._channel = channel
        self._lock = threading.Lock()
        self._waiting: List[Waiter] = []
        self._held: Dict[int, int] = {}  # blocks the model writes to, and their sizes: not (only) the host's
        self._sent: set[int] = set()  # those among them that the host has, too
        self._references: Dict[int, Any] = {}
        self._dropped: deque[int] = deque()  # those that the model let go, by callbacks that must not lock
        channel.add_handler(ReleaseOutputs, self._on_release)

    def allocate(self, size: int) -> int:
        """Reserve *size* bytes; return their offset.

        Raises:
            TritonModelException: If there is no room and nothing that could make any.
        """
        while True:
            with self._lock:
                if self._dropped:
                    self._free_dropped()
                offset = self._segment.allocate(size)
                if offset >= 0:
                    return offset
                waiter = self._begin_to_wait(size)
            self._wait(waiter)

    def allocate_each(self, sizes: Sequence[int]) -> List[int]:
        """Reserve blocks of these sizes; return their offsets. None is reserved while this waits for the others.

        Raises:
            TritonModelException: If there is no room and nothing that could make any.
        """
        while True:
            with self._lock:
                if self._dropped:
                    self._free_dropped()
                offsets: List[int] = []
                for size in sizes:
                    offset = self._segment.allocate(size)
                    if offset < 0:
                        break
                    offsets.append(offset)
                else:
                    return offsets
                for offset in offsets:
                    self._segment.release(offset)
                waiter = self._begin_to_wait(sum(sizes))
            self._wait(waiter)

    def _wait(self, waiter: Waiter) -> None:
        self.before_waiting()
        self._channel.send(pack(WantRelease()))
        self._channel.wait(waiter)

    def _begin_to_wait(self, size: int) -> Waiter:
        held = sum(block for offset, block in self._held.items() if offset not in self._sent)
        if size > self._segment.capacity or self._segment.in_use <= held:
            raise TritonModelException(
                f"outputs of {size} bytes do not fit into the output segment of {self._segment.capacity} bytes"
                + (f", of which the model itself holds {held}" if held else "")
            )
        waiter = Waiter()
        self._waiting.append(waiter)
        return waiter

    def _on_release(self, message: ReleaseOutputs) -> None:
        with self._lock:
            for offset in message.blocks:
                if offset in self._sent:
                    self._sent.discard(offset)
                    if offset in self._held:
                        continue  # the model may still write to it
                self._segment.release(offset)
            waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            self._channel.finish(waiter)

    def forget(self) -> None:
        """In a process the model forked: what it wrote would land in its parent's answers."""
        self._lock = threading.Lock()  # another thread may have held it
        self._segment = _ParentsSegment()

    def trim(self) -> None:
        """Give free pages back to the system, and to the host what waits for a message to take it along."""
        with self._lock:
            self._free_dropped()
            self._segment.trim()
        self._channel.post(b"")

    # -- blocks the model writes to itself ------------------------------------------------------------------------

    def hold(self, size: int) -> tuple[int, memoryview]:
        """Reserve a block for the model to write to: its offset and its bytes, which stay its own while referred to."""
        offset = self.allocate(max(size, 1))
        array = np.frombuffer(self.view, np.uint8, size, offset)
        with self._lock:
            self._held[offset] = block_size(max(size, 1))
        self._references[offset] = weakref.ref(array, lambda _: self._let_go(offset))
        return offset, array.data

    def take_over(self, tensor: Tensor) -> int:
        """The held block a tensor lies in, which is the host's from now on, too; -1 if the tensor must be copied.

        It must be if it was sent before: the host may hand the block back while the later message is under way.
        """
        offset, tensor._place = tensor._place, None  # noqa: SLF001 - made for this
        if offset is None:
            return -1
        with self._lock:
            self._sent.add(offset)
        return int(offset)

    def _let_go(self, offset: int) -> None:
        self._references.pop(offset, None)
        self._dropped.append(offset)

    def _free_dropped(self) -> None:
        for _ in range(len(self._dropped)):
            offset = self._dropped.popleft()
            del self._held[offset]
            if offset not in self._sent:
                self._segment.release(offset)


class InputLease:
    """One input block that requests or results refer to.

    Attributes:
        view: The segment's bytes; every tensor is a part of it.
    """

    __slots__ = ("_array", "view")

    def __init__(self, segment: memoryview) -> None:
        self._array: Any = np.frombuffer(segment, np.uint8)
        self.view: memoryview = self._array.data

    def references(self) -> int:
        """How many references there are to what all views are made of, this question's own among them."""
        return sys.getrefcount(self._array)

    def end(
        self, block: int, kept: Dict[int, Any], give_back: Callable[[int], None], *, is_known: bool = True
    ) -> Optional[Callable[[], None]]:
        """Let go of the block; None where nobody refers to it any more.

        Else *give_back* is called with it when the last reference goes, on whichever thread that happens; *kept* holds
        what that takes. Unless *is_known*, the host has yet to be told that the block is kept, and must not hear
        earlier that it is given back: then not before what is returned was called.
        """
        self.view = _NOTHING
        if self.references() == _ALONE:
            return None
        array = self._array
        is_gone = False

        def settle() -> None:
            if is_gone and is_known and kept.pop(block, None) is not None:  # one thread only gets it
                give_back(block)

        def gone(_: Any) -> None:
            nonlocal is_gone
            is_gone = True
            settle()

        def tell() -> None:
            nonlocal is_known
            is_known = True
            settle()

        kept[block] = weakref.ref(array, gone)
        self._array = None
        return tell


_NOTHING = memoryview(b"")


def _count_alone() -> int:
    """What `references` answers where there is no view; interpreters differ in how they count a question's own."""
    lease = InputLease(_NOTHING)
    lease.view = _NOTHING
    return lease.references()


_ALONE = _count_alone()
