"""Tensors in GPU memory, which the server passes from guest to guest without reading them: it has no CUDA.

A guest copies such a tensor into a region that other processes can open, and sends the region's handle. The region is
the guest's own block like one in its output segment: it gets the block back when nothing here refers to the tensor.

In requests and responses, a `DeviceBytes` takes the place of a tensor's bytes. It has their number alone, which is what
the checks of requests need. Only calls between models have such tensors; everything else gets bytes, as guests keep
outputs in GPU memory only for requests that allow it.
"""

from __future__ import annotations

import itertools
import weakref
from collections import deque
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from naiad.protocol.inference import Buffer

_numbers = itertools.count(1)
_serials = itertools.count(1)
_SIGN = 1 << 64


class DeviceRegions:
    """What the server knows of the GPU memory that one guest shares with others.

    Attributes:
        number: The guest's number among all guests that ever ran.
        ended: Numbers of guests that have ended whose memory this one may have open, not yet sent to it.
    """

    def __init__(self) -> None:
        self.number = next(_numbers)
        self.ended: list[int] = []
        self._importers: weakref.WeakSet[DeviceRegions] = weakref.WeakSet()
        self._held: dict[int, list[DeviceBytes]] = {}  # by input block: what the guest reads

    def add_importer(self, importer: DeviceRegions) -> None:
        """The guest of *importer* reads memory of this one."""
        self._importers.add(importer)

    def hold(self, block: int, tensors: Iterable[DeviceBytes]) -> None:
        """Keep *tensors* until the guest has released its input block *block*."""
        held = self._held.setdefault(block, [])
        for tensor in tensors:
            held.append(tensor)
            tensor.memory.regions.add_importer(self)

    def release(self, block: int) -> None:
        """The guest has released an input block."""
        if self._held:
            self._held.pop(block, None)

    def close(self) -> None:
        """The guest has ended: it reads nothing, and those that read its memory should close it."""
        self._held.clear()
        for importer in self._importers:
            importer.ended.append(self.number)
        self._importers.clear()


class GuestRegions(Protocol):
    """The memory of a guest, as the bytes in it see it: `InstanceMemory`."""

    released: deque[int]
    has_large_released: bool
    regions: DeviceRegions


class DeviceBytes:
    """The bytes of one tensor in GPU memory.

    Attributes:
        uuid: UUID of the GPU.
        handle: The driver's handle of the memory.
        memory: That of the guest whose memory it is.
        serial: Tells it from all others: handles are used again for other tensors.
    """

    __slots__ = ("__weakref__", "_block", "_size", "handle", "memory", "serial", "uuid")

    def __init__(self, uuid: bytes, handle: bytes, size: int, block: int, memory: GuestRegions) -> None:
        self.uuid = uuid
        self.handle = handle
        self.memory = memory
        self.serial = next(_serials)
        self._block = block
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __del__(self) -> None:
        self.memory.released.append(self._block - _SIGN)  # as RELEASE_OUTPUTS has it, a signed number
        self.memory.has_large_released = True


def device_bytes(data: Buffer) -> DeviceBytes | None:
    """What *data* of a tensor is if that is in GPU memory; None for bytes."""
    found: object = data
    return found if type(found) is DeviceBytes else None


def as_data(tensor: DeviceBytes) -> Buffer:
    """*tensor* as the `data` of a tensor, whose type has bytes alone: few readers ever meet anything else."""
    return cast("Buffer", tensor)


def on_device(tensors: Sequence[Buffer]) -> list[tuple[int, DeviceBytes]]:
    """The *tensors* in GPU memory, with their positions."""
    found = []
    for position, data in enumerate(tensors):
        device = device_bytes(data)
        if device is not None:
            found.append((position, device))
    return found
