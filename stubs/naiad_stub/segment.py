"""Shared segments: anonymous memory that host and guest both map, and who holds which part of it.

Each instance has two segments, inputs (the host allocates) and outputs (the guest allocates), so no allocator is
shared between processes: the other side only hands offsets back. A segment is a sparse memfd: mapping 64 GiB costs
nothing, touched pages are what is used, `trim` gives them back. Where memfd is missing an unlinked temporary file
serves. Nothing has a name, so nothing can be left behind.

Shared by host and guest; imports nothing of ours.
"""

from __future__ import annotations

import mmap
import os

ALIGNMENT = 64
"""Tensors start at multiples of this, in bytes: a cache line, and enough for every vector load."""

DEFAULT_CAPACITY = 64 << 30
_SMALLEST_BLOCK = 4096
_LEAST_CAPACITY = 1 << 28


def create_memory(name: str, capacity: int = DEFAULT_CAPACITY) -> tuple[int, int]:
    """Make anonymous memory that another process can map.

    Args:
        name: Shown in /proc/PID/maps, for people who look there.
        capacity: Wanted size in bytes; halved where a limit on file or address space refuses it.

    Returns:
        File descriptor (not inherited unless passed on) and the capacity reached.

    Raises:
        OSError: Where not even 256 MiB can be had.
    """
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
    else:
        import tempfile

        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    try:
        while True:
            try:
                os.ftruncate(descriptor, capacity)
                mmap.mmap(descriptor, capacity).close()
            except (OSError, OverflowError):
                if capacity // 2 < _LEAST_CAPACITY:
                    raise
                capacity //= 2
            else:
                return descriptor, capacity
    except BaseException:
        os.close(descriptor)
        raise


def block_size(size: int) -> int:
    """Bytes reserved for *size*: at least a page, with four steps to each doubling.

    Few sizes mean that a freed block nearly always fits the next request; the rounding wastes addresses, not memory,
    because untouched pages are never there.
    """
    if size <= _SMALLEST_BLOCK:
        return _SMALLEST_BLOCK
    step = 1 << max((size - 1).bit_length() - 3, 12)
    return -(-size // step) * step


class Segment:
    """A mapped segment and, on the side that allocates, the blocks in use.

    Attributes:
        view: The whole mapping as writable bytes.
        capacity: Its size in bytes.
        in_use: Bytes of blocks handed out.
    """

    __slots__ = ("_end", "_free", "_freed", "_map", "_sizes", "capacity", "in_use", "view")

    def __init__(self, descriptor: int, capacity: int) -> None:
        """Map *descriptor*, which may be closed afterwards."""
        self._map = mmap.mmap(descriptor, capacity)
        self.view = memoryview(self._map)
        self.capacity = capacity
        self.in_use = 0
        self._end = 0  # blocks are cut off the untouched rest here when no free one fits
        self._free = {}  # type: dict[int, list[int]]
        self._sizes = {}  # type: dict[int, int]
        self._freed = 0  # bytes of blocks released since the last trim: whether a trim is worth its calls

    def allocate(self, size: int) -> int:
        """Reserve *size* bytes and return their offset, or -1 where the segment is full.

        The block used last is used first: its pages are warm, and the segment stays as small as the traffic allows.
        """
        block = _SMALLEST_BLOCK if size <= _SMALLEST_BLOCK else block_size(size)
        free = self._free.get(block)
        if free:
            offset = free.pop()
        else:
            offset = self._end
            if offset + block > self.capacity:
                return -1
            self._end = offset + block
        self._sizes[offset] = block
        self.in_use += block
        return offset

    def release(self, offset: int) -> bool:
        """Take a block back; False where *offset* is not in use (the other side is at fault)."""
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

    def trim(self) -> int:
        """Give the pages of free blocks back to the system; return the bytes of blocks freed since the last trim."""
        freed, self._freed = self._freed, 0
        if not freed or not hasattr(mmap, "MADV_REMOVE"):
            return 0
        if self.in_use == 0:
            self._map.madvise(mmap.MADV_REMOVE, 0, self._end)
            self._end = 0
            self._free.clear()
            return freed
        for block, offsets in self._free.items():
            for offset in offsets:
                self._map.madvise(mmap.MADV_REMOVE, offset, block)
        return freed

    def close(self) -> None:
        """Unmap, as soon as the last view into the segment is gone."""
        try:
            self.view.release()
            self._map.close()
        except BufferError:
            pass  # views are still referenced; the mapping goes with the last of them


def align(offset: int) -> int:
    """The next offset at which a tensor may start."""
    return (offset + ALIGNMENT - 1) & -ALIGNMENT
