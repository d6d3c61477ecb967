"""GPU memory that guests share with each other through the server, which passes handles on (`protocol.device_bytes`).

A guest copies a tensor into a region that other processes can open, and sends the region's handle. The region is the
guest's own block like one in its output segment: it gets the block back when nothing here refers to the tensor.
"""

from __future__ import annotations

from collections.abc import Iterable

from naiad.guests.memory.bridges import BlockOwner
from naiad.protocol.device_bytes import DeviceBytes, Exporter, Importer

_SIGN = 1 << 64


class DeviceRegions:
    """What the server knows of the GPU memory that one guest shares with others."""

    def __init__(self) -> None:
        self.exporter = Exporter()  # the guest, as the owner of memory that others read
        self.importer = Importer()  # the guest, as a reader of others' memory
        self._held: dict[int, list[DeviceBytes]] = {}  # by input block: what the guest reads

    def open(self, tensors: Iterable[DeviceBytes]) -> None:
        for tensor in tensors:
            tensor.exporter.add_importer(self.importer)

    def hold(self, block: int, tensors: Iterable[DeviceBytes]) -> None:
        """Keep *tensors* until the guest has released its input block *block*."""
        self._held.setdefault(block, []).extend(tensors)

    def release(self, block: int) -> None:
        if self._held:
            self._held.pop(block, None)

    def close(self) -> None:
        self._held.clear()
        self.exporter.end()


class DeviceBlock:
    """A guest's region with one tensor; the guest gets it back with the last reference to this object."""

    __slots__ = ("_block", "_memory")

    def __init__(self, block: int, memory: BlockOwner) -> None:
        self._block = block
        self._memory = memory

    def __del__(self) -> None:
        self._memory.released.append(self._block - _SIGN)  # as RELEASE_OUTPUTS has it, a signed number
        self._memory.has_large_released = True
