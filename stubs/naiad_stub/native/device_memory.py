"""Pinned memory, and memory of GPUs, for backends that allocate through the server. Imported when one asks for it."""

from __future__ import annotations

from typing import Dict, Tuple

from naiad_stub.cuda.driver import CudaError, Device, device
from naiad_stub.cuda.memory import Allocation
from naiad_stub.exceptions import TritonModelException
from naiad_stub.native.errors import INTERNAL, UNSUPPORTED, ApiCallError
from naiad_stub.native.memory import CPU_PINNED, MEMORY_NAMES, Heap


class DeviceHeap:
    """What a backend has allocated there. A buffer that was never allocated here is an error, as in `Heap`."""

    def __init__(self, heap: Heap) -> None:
        """Nothing yet; pinned memory is that of *heap*."""
        self._heap = heap
        self._allocations: Dict[int, Allocation] = {}
        self._pinned: Dict[int, Tuple[Device, int]] = {}

    def allocate(self, memory_type: int, memory_id: int, size: int) -> int:
        """The address of *size* bytes of pinned memory, or of memory of the GPU *memory_id*.

        Raises:
            ApiCallError: If there are none.
        """
        try:
            if memory_type == CPU_PINNED:
                return self._pin(size)
            made = Allocation(memory_id, max(size, 1))
        except CudaError as error:
            raise ApiCallError(INTERNAL, str(error)) from None
        except TritonModelException as error:  # there is no driver, or no device
            kind = "Pinned" if memory_type == CPU_PINNED else MEMORY_NAMES[memory_type]
            raise ApiCallError(UNSUPPORTED, f"{kind} memory allocation is not supported: {error}") from None
        self._allocations[made.address] = made
        return made.address

    def _pin(self, size: int) -> int:
        found = device(0)  # which all devices may read
        address = self._heap.allocate(size)
        if not address:
            raise ApiCallError(INTERNAL, f"{size} bytes of memory cannot be allocated")
        try:
            with found as driver:
                driver.call(f"pin {size} bytes of memory", "cuMemHostRegister_v2", address, max(size, 1), _PORTABLE)
        except TritonModelException:
            self._heap.free(address)
            raise
        self._pinned[address] = found, size
        return address

    def free(self, memory_type: int, address: int) -> bool:
        """Free the buffer at *address*; False without one."""
        if memory_type != CPU_PINNED:
            return self._allocations.pop(address, None) is not None  # its finalizer frees the memory
        pinned = self._pinned.pop(address, None)
        if pinned is None:
            return False
        pinned[0].attempt("cuMemHostUnregister", address)
        return self._heap.free(address)


_PORTABLE = 1
"""CU_MEMHOSTREGISTER_PORTABLE: pinned for the contexts of all devices."""
