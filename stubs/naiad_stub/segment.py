"""Shared segments: anonymous memory that host and guest both map, and who holds which part of it.

Each instance has two segments: inputs, which the host allocates, and outputs, which the guest allocates. So no
allocator is shared between processes; the other side only returns offsets. A segment is a sparse memfd of 64 GiB:
mapping it costs nothing, memory is used by the pages that were touched, and `trim` returns free pages to the system.
Where memfd is missing, an unlinked temporary file serves. Neither has a name in a file system, so a crash leaves
nothing behind.

The allocator keeps a list of free blocks for each block size, and cuts new blocks off the unused end (`_end`):

    |  block  |  free  |  block  |  block  | ...unused, never touched... |
    0                                     _end                       capacity

Block sizes are rounded to four steps per doubling (`block_size`), so that a freed block nearly always fits a later
request of about the same size. If neither a free block nor the end has room, neighbouring free blocks are joined
(`_compact`). That is slow, but happens only to traffic of many sizes in a small segment.

Shared by host and guest; imports nothing of ours.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import time
from typing import Any, Optional

ALIGNMENT = 64
"""Tensors start at multiples of this many bytes: a cache line, and enough for every vector load."""

DEFAULT_CAPACITY = 64 << 30
_SMALLEST_BLOCK = max(4096, mmap.PAGESIZE)  # only whole pages can be returned to the system
_LEAST_CAPACITY = 1 << 28
_TRIM_STEP = 4 << 20
"""Bytes that a trim with a time limit returns at once: the kernel takes about 0.2 ms for each MiB."""


def create_memory(name: str, capacity: int = DEFAULT_CAPACITY) -> tuple[int, int]:
    """Create anonymous memory that another process can map.

    Args:
        name: Shown in /proc/PID/maps.
        capacity: Size in bytes; halved until it is within the limits on file size and address space.

    Returns:
        File descriptor (not inherited unless passed on) and the capacity reached.

    Raises:
        OSError: If not even 256 MiB can be allocated.
    """
    descriptor = _anonymous_file(name)
    try:
        while True:
            # Sparse files count fully towards the limits on file size and address space, though they use no memory. So
            # both are tried, and the size is halved until the system accepts it.
            try:
                os.ftruncate(descriptor, capacity)
                mmap.mmap(descriptor, capacity).close()
            except (OSError, OverflowError):
                if capacity // 2 < _LEAST_CAPACITY:
                    raise
                capacity //= 2
            else:
                _forbid_resizing(descriptor)
                return descriptor, capacity
    except BaseException:
        os.close(descriptor)
        raise


def _anonymous_file(name: str) -> int:
    if hasattr(os, "memfd_create"):
        try:
            return os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError:
            pass  # a sandbox that forbids it
    import tempfile

    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _forbid_resizing(descriptor: int) -> None:
    """Seal the size, if the system can: if the other side truncated the file, reading it would raise SIGBUS here."""
    import fcntl

    if hasattr(fcntl, "F_ADD_SEALS"):  # Python 3.9
        with contextlib.suppress(OSError):  # a plain file
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)


def block_size(size: int) -> int:
    """Bytes reserved for *size*: at least a page, with four steps to each doubling.

    The rounding wastes addresses but no memory, since pages that are not touched are not allocated.
    """
    if size <= _SMALLEST_BLOCK:
        return _SMALLEST_BLOCK
    # Sizes are 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, ... times a power of two.
    step = max(1 << max((size - 1).bit_length() - 3, 0), _SMALLEST_BLOCK)
    return -(-size // step) * step


class Mapping(mmap.mmap):
    """Mapped memory that says whose it is.

    Attributes:
        owner: What the one who mapped it says; None for nothing.
    """

    owner: Any = None


class Segment:
    """A mapped segment and, on the side that allocates, the blocks in use.

    Attributes:
        view: The whole mapping as writable bytes.
        capacity: Its size in bytes.
        in_use: Bytes of blocks in use.
    """

    __slots__ = ("_end", "_free", "_freed", "_map", "_sizes", "_touched", "_trimmed", "capacity", "in_use", "view")

    def __init__(self, descriptor: int, capacity: int, start: int = 0, owner: Any = None) -> None:
        """Map *capacity* bytes of *descriptor* from *start* on; the caller may close it afterwards.

        The mapping has *owner* until `close`.
        """
        mapped = Mapping(descriptor, capacity, offset=start)
        mapped.owner = owner
        self._map: Optional[Mapping] = mapped
        self.view = memoryview(mapped)
        self.capacity = capacity
        self.in_use = 0
        self._end = 0  # where the unused rest begins
        self._touched = 0  # the largest `_end` since the last trim: pages up to there may be allocated
        self._free = {}  # type: dict[int, list[int]]
        self._sizes = {}  # type: dict[int, int]
        self._freed = 0  # bytes of blocks released since the last trim; 0: a trim has nothing to do
        self._trimmed = None  # type: Optional[tuple[object, int, int]] # of an unfinished trim: of what, and how far

    def allocate(self, size: int) -> int:
        """The offset of a block of *size* bytes, -1 if the segment is full.

        The block released last is used first: its pages are in the processor's cache, and few pages are touched at all.
        """
        block = _SMALLEST_BLOCK if size <= _SMALLEST_BLOCK else block_size(size)
        free = self._free.get(block)
        if free:
            offset = free.pop()
        else:
            offset = self._end
            if offset + block > self.capacity:
                offset = self._compact(block)
                if offset < 0:
                    return -1
            else:
                self._end = offset + block
        self._sizes[offset] = block
        self.in_use += block
        return offset

    def release(self, offset: int) -> bool:
        """Free a block; False if none at *offset* is in use, which is a fault of the other side."""
        block = self._sizes.pop(offset, 0)
        if not block:
            return False
        self.in_use -= block
        self._freed += block
        free = self._free.get(block)
        if free is None:
            self._free[block] = [offset]
        else:
            free.append(offset)
        return True

    def has_block(self, offset: int, size: int) -> bool:
        """Whether a block in use begins at *offset* and has *size* bytes."""
        return self._sizes.get(offset) == size

    @property
    def has_untrimmed(self) -> bool:
        """Whether blocks were freed since the last trim, or that has ended before its end."""
        return self._freed > 0

    def trim(self, seconds: float = 0.0) -> int:
        """Return the pages of free blocks to the system; the bytes of blocks freed since the last trim.

        Args:
            seconds: Time after which to end, even if pages are left: then `has_untrimmed` is true, and the next trim
                continues. 0 for no limit.
        """
        freed, self._freed = self._freed, 0
        mapped = self._map
        if not freed or mapped is None or not hasattr(mmap, "MADV_REMOVE"):
            return 0
        touched = max(self._touched, self._end)
        if self.in_use == 0:
            self.forget_free()
        runs = [(offset, block) for block, offsets in self._free.items() for offset in offsets]
        runs.append((self._end, touched - self._end))
        deadline = time.perf_counter() + seconds if seconds else 0.0
        # A trim that ended before its end is continued if nothing was allocated or freed since: calls for 4,000 steps
        # whose pages are gone take longer than a trim may.
        state, first, begin = (freed, runs), 0, -1
        if self._trimmed is not None and self._trimmed[0] == state:
            _, first, begin = self._trimmed
        self._trimmed = None
        try:
            for number in range(first, len(runs)):
                offset, size = runs[number]
                for start in range(max(offset, begin), offset + size, _TRIM_STEP if deadline else max(size, 1)):
                    if deadline and time.perf_counter() > deadline:
                        self._touched = touched
                        self._freed = freed
                        self._trimmed = state, number, start
                        return 0
                    step = min(_TRIM_STEP, offset + size - start) if deadline else size
                    mapped.madvise(mmap.MADV_REMOVE, start, step)
                begin = -1
        except OSError:
            return 0  # a temporary file on a file system that cannot punch holes: its pages stay allocated
        self._touched = self._end
        return freed

    def forget_free(self) -> None:
        """Where nothing is in use, forget the free blocks: the sizes of an earlier load must not fragment the next one.

        Their pages stay allocated until the next trim.
        """
        self._touched = max(self._touched, self._end)
        self._end = 0
        self._free.clear()

    def discard(self, start: int, size: int) -> None:
        """Return *size* bytes from *start* on to the system, whichever blocks they are in."""
        if self._map is not None and hasattr(mmap, "MADV_REMOVE"):
            with contextlib.suppress(OSError):  # as in `trim`
                self._map.madvise(mmap.MADV_REMOVE, start, size)

    def _compact(self, block: int) -> int:
        """A block of *block* bytes out of joined neighbouring free blocks; -1 if no run of them is long enough."""
        # `_end` may move back below. Pages above it were touched all the same, and the next trim must know of them.
        self._touched = max(self._touched, self._end)
        runs = []  # type: list[list[int]]
        for offset, size in sorted((offset, size) for size, offsets in self._free.items() for offset in offsets):
            if runs and sum(runs[-1]) == offset:
                runs[-1][1] += size
            else:
                runs.append([offset, size])
        # The last free run borders on the unused end: it becomes part of it, and can serve blocks of any size.
        if runs and sum(runs[-1]) == self._end:
            self._end = runs.pop()[0]
        found = -1
        for run in runs:
            if run[1] >= block:
                found = run[0]
                run[0] += block
                run[1] -= block
                break
        self._free = {}
        # Joined runs keep their whole size, which `allocate` rarely asks for. The next compaction uses them.
        for offset, size in runs:
            if size:
                self._free.setdefault(size, []).append(offset)
        if found < 0 and self._end + block <= self.capacity:
            found = self._end
            self._end += block
        return found

    def close(self) -> None:
        """Unmap, now or when the last view into the segment is gone."""
        view, self.view = self.view, memoryview(b"")
        mapped, self._map = self._map, None
        try:
            if mapped is not None:
                mapped.owner = None
            view.release()
            if mapped is not None:
                mapped.close()
        except BufferError:
            # Views are referenced, and the mapping is freed with the last of them. This object must not refer to it
            # any more: it is often part of a reference cycle, and those are collected rarely.
            pass


def align(offset: int) -> int:
    """The next offset at which a tensor may start."""
    return (offset + ALIGNMENT - 1) & -ALIGNMENT
