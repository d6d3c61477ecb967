"""Which parts of the two segments are in use, as the guest sees it.

Each side allocates in one segment only, so no allocator is shared between processes.

**Outputs** are allocated here. A response names its blocks; the host sends their offsets back in RELEASE_OUTPUTS once
nothing on its side refers to their bytes. If no block is free, the guest sends WANT_RELEASE and blocks until some are
released. Two rules keep it from blocking forever. A thread that needs several blocks takes all or none of them, so
that two threads cannot each wait for blocks that the other one has. And before it blocks, a thread sends the responses
it has ready (`before_waiting`), since the blocks of a response are released only after it was sent.

**Inputs** are the host's blocks: EXECUTE and RESULT name them. A model may keep its arrays for as long as it likes, so
a block may be released only when nothing refers to its bytes. `BorrowedBlock` detects this: all views are made from
one numpy array object, and a weak reference to it expires with the last view. The guest then sends RELEASE_INPUTS.
"""

from __future__ import annotations

import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, Callable, Dict, FrozenSet, List, Mapping, Optional, Sequence

import numpy as np

from naiad_stub.channel import FORKED, Channel, HostGoneError, Waiter
from naiad_stub.exceptions import TritonModelException
from naiad_stub.messages import MemoryUsage, ReleaseOutputs, WantRelease, pack
from naiad_stub.primitives import allocate_lock
from naiad_stub.runtime import allocate_private
from naiad_stub.segment import Segment, block_size
from naiad_stub.tensor import Tensor
from naiad_stub.wire import BRIDGE_OFFSETS, DEVICE_BLOCK

if TYPE_CHECKING:
    from naiad_stub.bridges import Bridges
    from naiad_stub.cuda.memory import DeviceMemory


class _ForeignSegment(Segment):
    """The segment in a child that the model forked: only the parent allocates."""

    __slots__ = ()

    def __init__(self) -> None:
        pass

    def allocate(self, size: int) -> int:  # noqa: ARG002 - no size is possible
        """Raise HostGoneError: the child has no host."""
        raise HostGoneError(FORKED)


# TRITONSERVER_MEMORY_CPU_PINNED and TRITONSERVER_MEMORY_GPU.
_PINNED_MEMORY, _GPU_MEMORY = 1, 2


def _nothing() -> None:
    pass


def _ignore(_text: str) -> None:
    pass


class OutputBlocks:
    """Blocks of the output segment, for all threads.

    Attributes:
        view: The segment as bytes.
        bridges: Bridges that have blocks as well; None without any.
        before_waiting: Called by a thread before it waits for a free block.
        on_notice: Called with a sentence for the log.
    """

    def __init__(
        self,
        segment: Segment,
        channel: Channel,
        gpu_pools: Optional[Mapping[str, int]] = None,
        bridges: Optional[Bridges] = None,
    ) -> None:
        """All of *segment* is free; *gpu_pools* as in `LoadSpec`."""
        self.view = segment.view
        self.bridges = bridges
        self._gpu_pools = gpu_pools or {}
        self.before_waiting: Callable[[], None] = _nothing
        self.on_notice: Callable[[str], None] = _ignore
        self._unreadable: set[bytes] = set()  # GPUs that `on_notice` has named
        self._segment = segment
        self._channel = channel
        self._lock = allocate_lock()
        self._waiting: List[Waiter] = []
        # Blocks of `Tensor.allocate`. Such a block may have two users: the model, until its last array is gone, and
        # the host, from the response until RELEASE_OUTPUTS. It is free when neither uses it.
        self._model_blocks: Dict[int, int] = {}  # size by offset: the model refers to them
        self._sent: set[int] = set()  # those of them that the host refers to as well
        self._references: Dict[int, Any] = {}
        self._dropped: deque[int] = (
            deque()
        )  # the model's last reference is gone; filled by callbacks, which cannot lock
        self._pinned: Any = None  # PinnedBlocks once a tensor in GPU memory was sent
        self._exports: Any = None  # Exports once one was sent to be read there
        channel.add_handler(ReleaseOutputs, self._on_release)

    def allocate(self, size: int) -> int:
        """The offset of a block of *size* bytes; waits while the segment is full.

        Raises:
            TritonModelException: If the bytes do not fit and no block can become free.
        """
        while True:
            with self._lock:
                if self._dropped:
                    self._free_dropped()
                offset = self._segment.allocate(size)
                if offset >= 0:
                    return offset
                waiter = self._add_waiter(size)
            self._wait(waiter)

    def allocate_each(self, sizes: Sequence[int]) -> List[int]:
        """The offsets of blocks of these sizes; waits until there are all, and holds none of them while it waits.

        Raises:
            TritonModelException: If the bytes do not fit and no block can become free.
        """
        is_unfragmented = False
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
                # The first of several blocks may be in the middle of an empty segment, where an earlier one was.
                if not self._segment.in_use and not is_unfragmented:
                    self._segment.forget_free()
                    is_unfragmented = True
                    continue
                waiter = self._add_waiter(sum(sizes))
            self._wait(waiter)

    def _wait(self, waiter: Waiter) -> None:
        self.before_waiting()
        self._channel.send(pack(WantRelease()))
        self._channel.wait(waiter)

    def _add_waiter(self, size: int) -> Waiter:
        held = sum(block for offset, block in self._model_blocks.items() if offset not in self._sent)
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
                if offset < 0:  # in GPU memory
                    self._exports.release(offset + DEVICE_BLOCK)
                    continue
                if offset > BRIDGE_OFFSETS:
                    if self.bridges is not None:
                        self.bridges.release(offset)
                    continue
                if offset in self._sent:
                    self._sent.discard(offset)
                    if offset in self._model_blocks:
                        continue  # the model may still write to it
                self._segment.release(offset)
            waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            self._channel.finish(waiter)

    def release(self, blocks: Sequence[int]) -> None:
        """Free *blocks*, which were allocated or exported and are not sent."""
        with self._lock:
            for offset in blocks:
                if offset >= DEVICE_BLOCK:
                    self._exports.release(offset - DEVICE_BLOCK)
                else:
                    self._segment.release(offset)
            waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            self._channel.finish(waiter)

    def detach(self) -> None:
        """Stop allocating, in a child that the model forked: its writes would land in responses of its parent."""
        self._lock = allocate_lock()  # another thread of the parent may have held it
        self._segment = _ForeignSegment()
        if self.bridges is not None:
            self.bridges.detach()

    def trim(self) -> None:
        """Return free pages to the system, and send what waits to go along with a message."""
        with self._lock:
            self._free_dropped()
            if self._pinned is not None:
                self._pinned.drop_free(self._segment.has_block)
            self._segment.trim()
        if self.bridges is not None:
            self.bridges.trim()
        if self._exports is not None:
            self._exports.trim()
        self._channel.post(b"")

    def copy_from_device(self, memory: DeviceMemory, block: int) -> None:
        """Copy GPU memory into the block at *block*, which was allocated for its size."""
        (self._pinned or self._create_pinned()).copy(memory, block, block_size(memory.size))

    def export(self, memory: DeviceMemory, readers: Optional[FrozenSet[bytes]] = None) -> Optional[tuple[int, bytes]]:
        """Copy GPU memory to where other processes can read it: its block and packed DEVICE_HANDLE.

        None if it has to be copied to the CPU, also because its GPU is not among the *readers*.
        """
        if readers is not None and not self._is_readable(memory, readers):
            return None
        exported: Optional[tuple[int, bytes]] = (self._exports or self._create_exports()).add(memory)
        return None if exported is None else (exported[0] + DEVICE_BLOCK, exported[1])

    def _is_readable(self, memory: DeviceMemory, readers: FrozenSet[bytes]) -> bool:
        from naiad_stub.cuda.driver import device

        uuid = device(memory.ordinal).uuid()
        if uuid in readers:
            return True
        if uuid not in self._unreadable:
            self._unreadable.add(uuid)
            self.on_notice(
                f"tensors in the memory of GPU {memory.ordinal} ({uuid.hex()}) go through the CPU to a model that "
                "cannot use them: its process does not see that GPU (CUDA_VISIBLE_DEVICES), or works on one without "
                "direct access to it"
            )
        return False

    def _create_exports(self) -> Any:
        from naiad_stub.cuda.sharing import Exports

        with self._lock:
            if self._exports is None:  # no other thread has exported its first tensor meanwhile
                self._exports = Exports(self._report_usage, self._gpu_pools)
            return self._exports

    def _create_pinned(self) -> Any:
        from naiad_stub.cuda.pinning import PinnedBlocks

        with self._lock:
            if self._pinned is None:  # no other thread has sent its first tensor meanwhile
                self._pinned = PinnedBlocks(self.view, self._report_usage)
            return self._pinned

    def _report_usage(self) -> None:
        """Tell the host how much memory is registered with the driver, and how much of each GPU is kept for tensors."""
        usage: List[int] = []
        if self._pinned is not None:
            usage += [_PINNED_MEMORY, 0, self._pinned.size]
        if self._exports is not None:
            for ordinal, size in sorted(self._exports.sizes.copy().items()):
                usage += [_GPU_MEMORY, ordinal, size]
        self._channel.post(pack(MemoryUsage(usage)))

    # -- blocks that the model writes to itself -------------------------------------------------------------------

    def allocate_for_model(self, size: int) -> tuple[Optional[int], memoryview]:
        """A block for `Tensor.allocate`: its offset, and its bytes, which stay the model's while it refers to them.

        In a child that the model forked: None, and memory of that process.
        """
        if isinstance(self._segment, _ForeignSegment):
            return allocate_private(size)
        offset = self.allocate(max(size, 1))
        array = np.frombuffer(self.view, np.uint8, size, offset)
        with self._lock:
            self._model_blocks[offset] = block_size(max(size, 1))
        self._references[offset] = weakref.ref(array, lambda _: self._on_dropped(offset))
        return offset, array.data

    def hand_over(self, tensor: Tensor) -> int:
        """The block that *tensor* was allocated in, from now on the host's as well; -1 if the tensor must be copied.

        A tensor that was sent before is copied: the host may release the block for the first message while the second
        one is on its way.
        """
        offset = tensor._place
        if not isinstance(offset, int):
            return -1
        tensor._place = None
        with self._lock:
            self._sent.add(offset)
        return offset

    def _on_dropped(self, offset: int) -> None:
        # A weak reference's callback: it runs between any two lines, possibly of a thread that holds the lock.
        self._references.pop(offset, None)
        self._dropped.append(offset)

    def _free_dropped(self) -> None:
        for _ in range(len(self._dropped)):
            offset = self._dropped.popleft()
            del self._model_blocks[offset]
            if offset not in self._sent:
                self._segment.release(offset)


class BorrowedBlock:
    """One input block that received tensors refer to.

    Attributes:
        view: The bytes of the segment; every tensor must be a slice of it.
    """

    __slots__ = ("_array", "view")

    def __init__(self, segment: memoryview) -> None:
        self._array: Any = np.frombuffer(segment, np.uint8)
        self.view: memoryview = self._array.data

    def drop(self) -> Any:
        """Drop this object's reference; return a weak reference to the array, None if no other references are left."""
        reference = weakref.ref(self._array)
        self.view = _NO_BYTES
        self._array = None
        return None if reference() is None else reference


_NO_BYTES = memoryview(b"")


class KeptBlocks:
    """Input blocks that the model refers to beyond the batch or the result they came with."""

    def __init__(self, release: Callable[[int], None]) -> None:
        """Call *release* with a block when nothing refers to it any more, on whichever thread that happens."""
        self._release = release
        self._references: Dict[int, Any] = {}

    def add(self, block: int, *references: Optional[Any]) -> None:
        """Watch *block*, or release it at once, by what `BorrowedBlock.drop` returned for each of its parts."""
        found = [each() for each in references if each is not None]
        arrays = [array for array in found if array is not None]
        if not arrays:  # also where the last reference went since `drop`
            self._release(block)
            return
        # Several threads may drop the last references at once: one of them takes the last item.
        rest = [True] + [False] * (len(arrays) - 1)

        def on_dropped(_: Any) -> None:
            if rest.pop():
                self._references.pop(block, None)
                self._release(block)

        self._references[block] = [weakref.ref(array, on_dropped) for array in arrays]
