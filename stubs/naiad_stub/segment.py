"""Shared segments: anonymous memory that host and guest both map, and who holds which part of it.

Each instance has two segments, inputs (the host allocates) and outputs (the guest allocates), so no allocator is
shared between processes: the other side only hands offsets back. A segment is a sparse memfd: mapping 64 GiB costs
nothing, touched pages are what is used, `trim` gives them back. Where memfd is missing an unlinked temporary file
serves. Nothing has a name, so nothing can be left behind.

Shared by host and guest; imports nothing of ours.
"""

from __future__ import annotations

import contextlib
import mmap
import os

ALIGNMENT = 64
"""Tensors start at multiples of this, in bytes: a cache line, and enough for every vector load."""

DEFAULT_CAPACITY = 64 << 30
_SMALLEST_BLOCK = max(4096, mmap.PAGESIZE)  # only whole pages can be given back
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
    descriptor = _anonymous_file(name)
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
    """Where the system can: reading behind the end of a file that the other side cut short would kill the reader."""
    import fcntl

    if hasattr(fcntl, "F_ADD_SEALS"):  # Python 3.9
        with contextlib.suppress(OSError):  # a plain file
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)


def block_size(size: int) -> int:
    """Bytes reserved for *size*: at least a page, with four steps to each doubling.

    Few sizes mean that a freed block nearly always fits the next request; the rounding wastes addresses, not memory,
    because untouched pages are never there.
    """
    if size <= _SMALLEST_BLOCK:
        return _SMALLEST_BLOCK
    step = max(1 << max((size - 1).bit_length() - 3, 0), _SMALLEST_BLOCK)
    return -(-size // step) * step


class Segment:
    """A mapped segment and, on the side that allocates, the blocks in use.

    Attributes:
        view: The whole mapping as writable bytes.
        capacity: Its size in bytes.
        in_use: Bytes of blocks handed out.
    """

    __slots__ = ("_end", "_free", "_freed", "_map", "_sizes", "_touched", "capacity", "in_use", "view")

    def __init__(self, descriptor: int, capacity: int) -> None:
        """Map *descriptor*, which may be closed afterwards."""
        self._map = mmap.mmap(descriptor, capacity)
        self.view = memoryview(self._map)
        self.capacity = capacity
        self.in_use = 0
        self._end = 0  # blocks are cut off the rest here when no free one fits
        self._touched = 0  # how far `_end` has been since pages were given back
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
                offset = self._compact(block)
                if offset < 0:
                    return -1
            else:
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
        touched = max(self._touched, self._end)
        if self.in_use == 0:
            self._end = 0
            self._free.clear()
        runs = [(offset, block) for block, offsets in self._free.items() for offset in offsets]
        runs.append((self._end, touched - self._end))
        try:
            for offset, size in runs:
                if size:
                    self._map.madvise(mmap.MADV_REMOVE, offset, size)
        except OSError:
            return 0  # a temporary file on a file system without holes: its pages stay until it goes
        self._touched = self._end
        return freed

    def _compact(self, block: int) -> int:
        """Reserve *block* bytes from neighbouring free blocks of other sizes; -1 where even together they do not do.

        Dear, but only for traffic of many sizes in a small segment: what is cut up wrongly is joined again.
        """
        self._touched = max(self._touched, self._end)
        runs = []  # type: list[list[int]]
        for offset, size in sorted((offset, size) for size, offsets in self._free.items() for offset in offsets):
            if runs and sum(runs[-1]) == offset:
                runs[-1][1] += size
            else:
                runs.append([offset, size])
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
        for offset, size in runs:
            if size:
                self._free.setdefault(size, []).append(offset)
        if found < 0 and self._end + block <= self.capacity:
            found = self._end
            self._end += block
        return found

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
