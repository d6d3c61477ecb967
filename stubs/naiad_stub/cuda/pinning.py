"""Blocks of the output segment that are registered with the driver, so that copies from a GPU are faster.

Registering 64 MiB takes 7.4 ms and makes a copy take 1.2 ms instead of 4.6 (H200). So a block is registered when it is
copied to for the second time: models that send large tensors use few blocks again and again. The driver writes to the
pages that it found when the block was registered. So a block is registered only in its exact extent, and no longer than
its pages stay: before the system gets them back (`drop_free`), and before another block is cut out of them.
"""

from __future__ import annotations

from typing import Callable, Dict

from naiad_stub.cuda.driver import Device, device
from naiad_stub.cuda.memory import DeviceMemory, address_of
from naiad_stub.datatypes import Buffer
from naiad_stub.primitives import allocate_lock

LEAST_BYTES = 4 << 20
"""Smaller copies take less than the bookkeeping saves."""


class PinnedBlocks:
    """The registered blocks of one segment.

    Args:
        segment: The segment.
        on_change: Called when other blocks are registered.

    Attributes:
        size: The bytes that are registered.
    """

    def __init__(self, segment: Buffer, on_change: Callable[[], None]) -> None:
        self.size = 0
        self._on_change = on_change
        self._base, self._keep = address_of(segment)
        self._lock = allocate_lock()
        self._seen: Dict[int, int] = {}  # size by offset: blocks that were copied to
        self._registered: Dict[int, int] = {}  # size by offset
        self._devices: Dict[int, Device] = {}  # by offset
        self._is_possible = True

    def copy(self, memory: DeviceMemory, block: int, size: int) -> None:
        """Copy *memory* into the block at *block*, which has *size* bytes and which the caller owns."""
        if memory.size >= LEAST_BYTES and self._is_possible:
            with self._lock:
                self._prepare(memory.ordinal, block, size)
        elif self._registered:
            with self._lock:
                self._drop_overlapping(block, size)
        memory.copy_to(self._base + block)

    def drop_free(self, has_block: Callable[[int, int], bool]) -> None:
        """Unregister what is not a block in use, as *has_block* says of an offset and size."""
        with self._lock:
            for offset, size in list(self._registered.items()):
                if not has_block(offset, size):
                    self._unregister(offset)
            self._seen.clear()

    def _prepare(self, ordinal: int, block: int, size: int) -> None:
        if self._registered.get(block) == size:
            return
        self._drop_overlapping(block, size)
        if self._seen.get(block) != size:
            self._seen[block] = size
            return
        found = device(ordinal)
        if found.attempt("cuMemHostRegister_v2", self._base + block, size, 0):
            self._is_possible = False  # a limit of the system, or a sandbox: copies are slower, nothing else
            return
        self._registered[block] = size
        self._devices[block] = found
        self.size += size
        self._on_change()

    def _drop_overlapping(self, block: int, size: int) -> None:
        # The exact block may stay. Nothing is copied to any other one that overlaps: the caller owns these bytes.
        for offset, length in list(self._registered.items()):
            if offset < block + size and block < offset + length and (offset, length) != (block, size):
                self._unregister(offset)

    def _unregister(self, offset: int) -> None:
        self.size -= self._registered.pop(offset)
        self._on_change()
        self._devices.pop(offset).attempt("cuMemHostUnregister", self._base + offset)
