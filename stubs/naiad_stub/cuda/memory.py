"""Regions of GPU memory: what a tensor refers to there, and copies of it.

Order: a model queues its kernels on a stream and returns before they have run. A reader of the bytes must wait for
them. An object with `__dlpack__` was told the default stream, and has made it wait for its own: then waiting for that
stream is enough. The stream of a bare capsule is unknown, so all of the device's work is awaited.
"""

from __future__ import annotations

import ctypes
from typing import Any, Callable, List, Optional, Tuple

from naiad_stub.cuda.driver import LEGACY_STREAM, CudaError, Driver, device
from naiad_stub.datatypes import Buffer


class DeviceMemory:
    """Some bytes in the memory of one GPU, valid as long as this object is.

    Attributes:
        size: Their number.
    """

    __slots__ = ("__weakref__", "_find", "_is_ordered", "_owner", "_place", "size")

    def __init__(self, address: int, size: int, ordinal: int, owner: object, *, is_ordered: bool) -> None:
        """Bytes that *owner* keeps; *is_ordered* if the default stream waits for the work that writes them."""
        self.size = size
        self._place: Optional[Tuple[int, int]] = (address, ordinal)
        self._find: Optional[Callable[[], Tuple[int, int, object]]] = None
        self._owner = owner
        self._is_ordered = is_ordered

    @classmethod
    def found_by(cls, find: Callable[[], Tuple[int, int, object]], size: int) -> DeviceMemory:
        """Bytes that are complete, whose address, device and owner *find* returns when they are first needed."""
        self = cls(0, size, 0, None, is_ordered=True)
        self._place = None
        self._find = find
        return self

    @property
    def address(self) -> int:
        """Where they begin."""
        return (self._place or self._found())[0]

    @property
    def ordinal(self) -> int:
        """The GPU's number in this process."""
        return (self._place or self._found())[1]

    def _found(self) -> Tuple[int, int]:
        find = self._find
        if find is not None:  # else another thread has just found them
            address, ordinal, self._owner = find()
            self._place = address, ordinal
            self._find = None
        assert self._place is not None
        return self._place

    def wait(self) -> None:
        """Wait until the work that writes these bytes is complete."""
        with device(self.ordinal) as driver:
            self._wait(driver)

    def _wait(self, driver: Driver) -> None:
        purpose = f"wait for the work of GPU {self.ordinal}"
        if self._is_ordered:
            driver.call(purpose, "cuStreamSynchronize", LEGACY_STREAM)
        else:
            driver.call(purpose, "cuCtxSynchronize")

    def copy_to(self, address: int) -> None:
        """Copy these bytes to memory of the CPU at *address*."""
        if not self.size:
            return
        with device(self.ordinal) as driver:
            if not self._is_ordered:  # else the copy waits by itself: it is ordered by the default stream
                self._wait(driver)
            purpose = f"copy {self.size} bytes of the memory of GPU {self.ordinal} to the CPU"
            driver.call(purpose, "cuMemcpyDtoH_v2", address, self.address, self.size)

    def read(self) -> memoryview:
        """A copy of these bytes in memory of the CPU."""
        copied = bytearray(self.size)
        if self.size:
            self.copy_to(address_of(memoryview(copied))[0])
        return memoryview(copied)

    def copy(self) -> DeviceMemory:
        """A copy of these bytes on the same GPU."""
        if not self.size:
            return self
        made = Allocation(self.ordinal, self.size)
        self.copy_on_device(made.address)
        return DeviceMemory(made.address, self.size, self.ordinal, made, is_ordered=True)

    def moved_to(self, ordinal: int) -> DeviceMemory:
        """These bytes in the memory of another GPU, copied when they are first needed; then this memory is released."""

        def find() -> Tuple[int, int, object]:
            if self.ordinal == ordinal:
                return self.address, ordinal, self
            made = Allocation(ordinal, self.size)
            self.copy_to_gpu(made.address, ordinal)
            return made.address, ordinal, made

        return DeviceMemory.found_by(find, self.size)

    def copy_to_gpu(self, address: int, ordinal: int) -> None:
        """Copy these bytes to *address* in the memory of any GPU; complete when this returns."""
        if self.ordinal == ordinal:
            self.copy_on_device(address, is_complete=True)
            return
        if not self._is_ordered:
            self.wait()
        device(ordinal).copy_from(device(self.ordinal), self.address, address, self.size)

    def copy_on_device(self, address: int, *, is_complete: bool = False) -> None:
        """Copy these bytes to *address* on the same GPU; with *is_complete*, wait until that has happened."""
        with device(self.ordinal) as driver:
            if not self._is_ordered:
                self._wait(driver)
            purpose = f"copy {self.size} bytes of the memory of GPU {self.ordinal}"
            driver.call(purpose, "cuMemcpyDtoD_v2", address, self.address, self.size)
            if is_complete:
                driver.call(purpose, "cuStreamSynchronize", LEGACY_STREAM)


_reserves: List[Callable[[], None]] = []


def add_reserve(free: Callable[[], None]) -> None:
    """Have *free* called when a GPU is full: it frees memory that is kept for later."""
    _reserves.append(free)


def free_reserves() -> None:
    """Free the memory that this process keeps for later."""
    for free in _reserves:
        free()


class Allocation:
    """Memory that this module allocated; its finalizer frees it. A full GPU gets back what is kept for later.

    Attributes:
        address: Where it begins.
    """

    __slots__ = ("_device", "address")

    def __init__(self, ordinal: int, size: int) -> None:
        self.address = 0
        self._device = device(ordinal)
        address = ctypes.c_uint64()
        with self._device as driver:
            purpose = f"allocate {size} bytes of the memory of GPU {ordinal}"
            try:
                driver.call(purpose, "cuMemAlloc_v2", ctypes.byref(address), size)
            except CudaError as error:
                if not error.is_out_of_memory or not _reserves:
                    raise
                free_reserves()
                driver.call(purpose, "cuMemAlloc_v2", ctypes.byref(address), size)
        self.address = address.value

    def __del__(self) -> None:
        if self.address:
            self._device.attempt("cuMemFree_v2", self.address)


def copy_to_device(data: Buffer, address: int, ordinal: int) -> None:
    """Copy *data*, memory of the CPU, to *address* on a GPU; complete when this returns."""
    if not len(data):
        return
    source, keep = address_of(data)
    with device(ordinal) as driver:
        purpose = f"copy {len(data)} bytes to the memory of GPU {ordinal}"
        driver.call(purpose, "cuMemcpyHtoD_v2", address, source, len(data))
        # Of pageable memory, the last part may still be on its way.
        driver.call(purpose, "cuStreamSynchronize", LEGACY_STREAM)
    del keep


def uploaded(data: Buffer, ordinal: int) -> DeviceMemory:
    """A copy of *data*, memory of the CPU, on a GPU."""
    made = Allocation(ordinal, len(data))
    copy_to_device(data, made.address, ordinal)
    return DeviceMemory(made.address, len(data), ordinal, made, is_ordered=True)


def address_of(data: Buffer) -> Tuple[int, Any]:
    """The address of *data*, and an object that keeps it valid."""
    import numpy as np

    array: np.ndarray[Any, Any] = np.frombuffer(data, np.uint8)
    return array.ctypes.data, array
