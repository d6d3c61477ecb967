"""Tensors in GPU memory, which the server passes on without reading them: it has no CUDA.

In requests and responses, a `DeviceBytes` takes the place of a tensor's bytes. It says how another process finds them:
by the driver's handle of an allocation. It has their number, which is what the checks of requests need.

The memory belongs to an exporter: a guest, or a client that has registered a region of it. While a `DeviceBytes`
exists, its owner may not use the memory for anything else.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, cast

from naiad_stub.wire import CLIENT_MEMORY

Buffer: TypeAlias = bytes | bytearray | memoryview  # as in `protocol.inference`, which imports this module

_numbers = itertools.count(1)
_serials = itertools.count(1)


class Importer:
    """A guest that reads GPU memory of others."""

    def __init__(self) -> None:
        self.ended: list[int] = []  # exporters that ended, whose memory it may have open: to be told


class Exporter:
    """A guest, or a registered region of a client, whose GPU memory guests open."""

    def __init__(self, *, is_client: bool = False) -> None:
        self.number = next(_numbers) | (CLIENT_MEMORY if is_client else 0)  # of all exporters ever
        self._importers: weakref.WeakSet[Importer] = weakref.WeakSet()

    def add_importer(self, importer: Importer) -> None:
        """The guest of *importer* may have opened its memory."""
        self._importers.add(importer)

    def end(self) -> None:
        """Its memory is no longer valid: those that have opened it should close it."""
        for importer in self._importers:
            importer.ended.append(self.number)
        self._importers.clear()


class DeviceBytes:
    """The bytes of one tensor in GPU memory."""

    __slots__ = ("__weakref__", "_size", "exporter", "handle", "offset", "owner", "serial", "uuid")

    def __init__(self, uuid: bytes, handle: bytes, offset: int, size: int, exporter: Exporter, owner: object) -> None:
        self.uuid = uuid
        self.handle = handle  # the driver's handle of the allocation, in which the bytes begin at *offset*
        self.offset = offset
        self.exporter = exporter
        self.owner = owner  # keeps the memory in use
        self.serial = next(_serials)  # tells it from all others: handles are used again for other tensors
        self._size = size

    def __len__(self) -> int:
        return self._size

    def first(self, size: int) -> DeviceBytes:
        return DeviceBytes(self.uuid, self.handle, self.offset, size, self.exporter, self.owner)


class WrittenBytes:
    """The bytes of an output that its guest has written to the place that the request names for it."""

    __slots__ = ("_size",)

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size


@dataclass(slots=True, kw_only=True)
class DeviceUse:
    """What a request has to do with GPU memory."""

    has_inputs: bool = False  # some inputs are there: their data is a `DeviceBytes`
    keeps_outputs: bool = False  # the sink takes all outputs there
    kept: frozenset[str] = frozenset()  # outputs that it takes there, by name
    places: Mapping[str, DeviceBytes] = field(default_factory=dict)  # where outputs are to be written, by name
    readers: frozenset[bytes] | None = None  # GPUs whose memory readers of outputs can use; None if unknown

    def settled(self, output: str, data: Buffer) -> Buffer | None:
        """The data of an output as it is passed on: its place, if it was written there; None if not allowed."""
        found: object = data
        place = self.places.get(output)
        if place is not None:
            if type(found) is WrittenBytes:
                return as_data(place.first(len(found))) if len(found) <= len(place) else None
            return None if len(data) else data
        if type(found) is DeviceBytes:
            return data if self.keeps_outputs or output in self.kept else None
        return None if type(found) is WrittenBytes else data


def device_bytes(data: Buffer) -> DeviceBytes | None:
    """What *data* of a tensor is if that is in GPU memory; None for bytes."""
    found: object = data
    return found if type(found) is DeviceBytes else None


def as_data(tensor: DeviceBytes | WrittenBytes) -> Buffer:
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
