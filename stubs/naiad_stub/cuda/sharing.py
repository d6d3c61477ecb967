"""GPU memory that other guests read: exports of this process, and imports of others' exports.

A tensor that leaves this process is copied, on its GPU, into a region of a pool: 64 MiB take 49 us on an H200. So the
model may write to its own memory again at once, as it may with tensors on the CPU; memory works that has no handle for
other processes (JAX's, torch's expandable segments); and other processes never see the model's own memory. The regions
are used again and again, so their handles stay the same, and importers need not open them again (219 us).

An import opens its handle when the model first touches the tensor. It keeps the input block that it came with: the host
releases the region when that block is released. Before that, all work of the GPU that this process has queued is
waited for, since some of it may still read the region.

Memory that a client has registered is opened in the same way. What is copied from it or to it needs no block: the host
keeps the client's region in use until it has the response.
"""

from __future__ import annotations

import ctypes
import itertools
from collections import OrderedDict, deque
from typing import Callable, Deque, Dict, List, Mapping, Optional, Sequence, Tuple, Union
from weakref import WeakValueDictionary

from naiad_stub import wire
from naiad_stub.cuda.driver import CudaError, Device, IpcHandle, device, device_by_uuid
from naiad_stub.cuda.memory import Allocation, DeviceMemory, add_reserve, address_of, copy_to_device
from naiad_stub.datatypes import Buffer
from naiad_stub.exceptions import TritonModelException
from naiad_stub.primitives import allocate_lock
from naiad_stub.segment import block_size

_GRANULE = 2 << 20
"""The driver puts several smaller allocations into one block of this size, which would share a handle."""
POOL_BYTES = 1 << 30
"""What the regions of one process may have on a GPU if the server does not say. More goes through the CPU."""
_MOST_IDLE = 64
"""Handles that stay open without a tensor that refers to them."""
_LAZY_PEER_ACCESS = 1


class _Region:
    """Memory of the pool.

    Attributes:
        kind: Ordinal of the device, and bytes.
        memory: The allocation.
        handle: The packed DEVICE_HANDLE.
    """

    __slots__ = ("__weakref__", "handle", "kind", "memory")

    def __init__(self, kind: Tuple[int, int]) -> None:
        ordinal, size = kind
        self.kind = kind
        self.memory = Allocation(ordinal, size)
        found = device(ordinal)
        handle = IpcHandle()
        with found as driver:
            purpose = f"share memory of GPU {ordinal} with other processes"
            driver.call(purpose, "cuIpcGetMemHandle", ctypes.byref(handle), self.memory.address)
        self.handle = wire.DEVICE_HANDLE.pack(found.uuid(), bytes(handle))
        _own[found.uuid(), bytes(handle)] = self


_own: WeakValueDictionary[Tuple[bytes, bytes], _Region] = WeakValueDictionary()
"""The regions of this process by UUID and handle. One may come back: to a model that is two steps of an ensemble. The
driver opens no handle in the process that it is of."""


class Exports:
    """The regions of this process.

    Args:
        on_change: Called when there are other regions.
        limits: What the regions may have on a GPU, by its UUID in hexadecimal digits.

    Attributes:
        sizes: The bytes of the regions, by the number of the GPU.
    """

    def __init__(self, on_change: Callable[[], None], limits: Mapping[str, int]) -> None:
        self.sizes: Dict[int, int] = {}
        self._limits = limits
        self._limit_of: Dict[int, int] = {}  # by the number of the GPU
        self._on_change = on_change
        self._lock = allocate_lock()
        self._numbers = itertools.count()
        self._sent: Dict[int, _Region] = {}
        self._idle: Dict[Tuple[int, int], List[_Region]] = {}
        self._is_possible = True
        add_reserve(self.trim)

    def add(self, memory: DeviceMemory) -> Optional[Tuple[int, bytes]]:
        """Copy *memory* into a region: its number and packed handle; None if it has to go through the CPU.

        Raises:
            CudaError: If the copy fails.
        """
        region = self._take(memory)
        if region is None:
            return None
        try:
            memory.copy_on_device(region.memory.address, is_complete=True)
        except BaseException:
            self._put_back(region)
            raise
        with self._lock:
            number = next(self._numbers)
            self._sent[number] = region
        return number, region.handle

    def release(self, number: int) -> None:
        """That region has no reader any more."""
        with self._lock:
            region = self._sent.pop(number, None)
        if region is not None:
            self._put_back(region)

    def trim(self) -> None:
        """Free the regions that are not in use."""
        with self._lock:
            idle = [region for regions in self._idle.values() for region in regions]
            self._idle.clear()
            for region in idle:
                self._count(region.kind[0], -region.kind[1])
        if idle:
            self._on_change()
        del idle  # its finalizers free the memory

    def _count(self, ordinal: int, size: int) -> None:
        self.sizes[ordinal] = self.sizes.get(ordinal, 0) + size

    def _take(self, memory: DeviceMemory) -> Optional[_Region]:
        size = -(-block_size(memory.size) // _GRANULE) * _GRANULE
        ordinal = memory.ordinal
        kind = ordinal, size
        limit = self._limit_of.get(ordinal)
        if limit is None:
            uuid = device(ordinal).uuid().hex()
            limit = self._limit_of[ordinal] = self._limits.get(uuid, POOL_BYTES)
        with self._lock:
            regions = self._idle.get(kind)
            if regions:
                return regions.pop()
            if not self._is_possible or size > limit:
                return None
            is_full = self.sizes.get(ordinal, 0) + size > limit
        if is_full:  # others may be idle
            self.trim()
        with self._lock:
            if self.sizes.get(ordinal, 0) + size > limit:
                return None
            self._count(memory.ordinal, size)
        try:
            region = _Region(kind)
        except CudaError as error:
            with self._lock:
                self._count(memory.ordinal, -size)
                # A system without such handles (a container without the privilege for them) never gets them.
                self._is_possible = error.is_out_of_memory
            return None
        self._on_change()
        return region

    def _put_back(self, region: _Region) -> None:
        with self._lock:
            self._idle.setdefault(region.kind, []).append(region)


class MemoryPlace:
    """Some bytes of GPU memory of another process.

    Attributes:
        uuid: UUID of the GPU.
        handle: Handle of the allocation.
        exporter: Number of the exporter: a process, or a region of a client.
        offset: Where they begin in the allocation.
        size: Their number.
    """

    __slots__ = ("exporter", "handle", "offset", "size", "uuid")

    def __init__(self, uuid: bytes, handle: bytes, exporter: int, offset: int, size: int) -> None:
        self.uuid = uuid
        self.handle = handle
        self.exporter = exporter
        self.offset = offset
        self.size = size

    @property
    def is_of_client(self) -> bool:
        """Whether a client has registered the memory."""
        return bool(self.exporter & wire.CLIENT_MEMORY)

    def explain(self, error: TritonModelException, action: str) -> TritonModelException:
        """The error for *action*, as "read a tensor", which *error* has kept from happening."""
        advice = "; the model that sent it may have ended meanwhile: send the request again"
        if isinstance(error, CudaError) and error.is_out_of_memory:
            advice = ": send the request again"
        elif self.is_of_client:
            advice = "; register the region again, with the handle and the size of memory that is still allocated"
        return TritonModelException(f"cannot {action} of {self.size} bytes in GPU memory: {error}{advice}")


class _Opened:
    """Memory of another process that is mapped here.

    Attributes:
        key: UUID and handle.
        exporter: The process.
        address: Where it is mapped.
        ordinal: The GPU's number in this process.
        own: The region, if it is of this process and so need not be mapped.
        users: How many imports refer to it.
        is_ended: Whether the process has ended.
    """

    __slots__ = ("_size", "address", "exporter", "is_ended", "key", "ordinal", "own", "users")

    def __init__(self, key: Tuple[bytes, bytes], exporter: int, own: Optional[_Region] = None) -> None:
        self.own = own
        self.key = key
        self.exporter = exporter
        self.users = 0
        self.is_ended = False
        if own is not None:
            self.ordinal, self._size = own.kind
            self.address = own.memory.address
            return
        found = device_by_uuid(key[0])
        address = ctypes.c_uint64()
        with found as driver:
            purpose = f"open memory of GPU {found.ordinal} that another process has sent"
            handle = IpcHandle.from_buffer_copy(key[1])
            driver.call(purpose, "cuIpcOpenMemHandle_v2", ctypes.byref(address), handle, _LAZY_PEER_ACCESS)
        self.address = address.value
        self.ordinal = found.ordinal
        size = ctypes.c_size_t()
        unused = ctypes.c_uint64()
        code = found.attempt(
            "cuMemGetAddressRange_v2", ctypes.byref(unused), ctypes.byref(size), ctypes.c_uint64(self.address)
        )
        self._size = 0 if code else size.value  # 0: unknown

    def place(self, place: MemoryPlace) -> int:
        """The address of *place* in this memory.

        Raises:
            TritonModelException: If it is outside: a client chose its size, and an access would end the context.
        """
        end = place.offset + place.size
        if self._size and end > self._size:
            raise TritonModelException(f"the memory has {self._size} bytes and the tensor ends at byte {end} of it")
        return self.address + place.offset

    def close(self) -> None:
        """Unmap it."""
        device(self.ordinal).attempt("cuIpcCloseMemHandle", self.address)


class _Imports:
    """The memory of other processes that is mapped here."""

    def __init__(self) -> None:
        self._lock = allocate_lock()
        self._opened: OrderedDict[Tuple[bytes, bytes], _Opened] = OrderedDict()  # longest idle first
        self._dropped: Deque[_Opened] = deque()  # filled by finalizers, which cannot wait for the lock

    def open(self, key: Tuple[bytes, bytes], exporter: int) -> _Opened:
        """The memory with that handle, which has one user more."""
        with self._lock:
            self._settle()
            own = _own.get(key)
            if own is not None:  # not kept: its memory may be freed once it has no reader
                opened = _Opened(key, exporter, own)
                opened.users = 1
                return opened
            found = self._opened.get(key)
            if found is None:
                found = self._opened[key] = _Opened(key, exporter)
            found.users += 1
            return found

    def drop(self, opened: _Opened) -> None:
        """The memory has one user less. Callable from finalizers."""
        self._dropped.append(opened)
        if self._lock.acquire(blocking=False):
            try:
                self._settle()
            finally:
                self._lock.release()

    def end(self, exporters: Sequence[int]) -> None:
        """Close the memory of processes that have ended, now or when it has no user."""
        with self._lock:
            for each in self._opened.values():
                each.is_ended = each.is_ended or each.exporter in exporters
            self._settle()
            self._close([each for each in self._opened.values() if each.is_ended and not each.users])

    def trim(self) -> None:
        """Close what has no user."""
        with self._lock:
            self._settle()
            self._close([each for each in self._opened.values() if not each.users])

    def _settle(self) -> None:
        while self._dropped:
            opened = self._dropped.popleft()
            opened.users -= 1
            if not opened.users and opened.own is None:
                self._opened.move_to_end(opened.key)
                if opened.is_ended:
                    self._close([opened])
        if len(self._opened) > _MOST_IDLE:
            idle = [each for each in self._opened.values() if not each.users]
            self._close(idle[: max(len(idle) - _MOST_IDLE, 0)])

    def _close(self, unused: Sequence[_Opened]) -> None:
        for each in unused:
            del self._opened[each.key]
            each.close()


imports = _Imports()
"""Those of this process."""


class _Import:
    """Keeps an import valid, and the input block that it came with."""

    __slots__ = ("_lease", "_opened")

    def __init__(self, opened: _Opened, lease: object) -> None:
        self._opened = opened
        self._lease = lease

    # Bound now, as the names of modules may be gone when the process exits.
    def __del__(
        self, _device: Callable[[int], Device] = device, _drop: Callable[[_Opened], None] = imports.drop
    ) -> None:
        # What the model has queued may still read the memory. The lease goes only after this method.
        _device(self._opened.ordinal).attempt("cuCtxSynchronize")
        _drop(self._opened)


def imported(place: MemoryPlace, lease: object) -> DeviceMemory:
    """GPU memory of another process; *lease* is kept while it is in use. A client's is opened now.

    Raises:
        TritonModelException: If that fails.
    """

    def find() -> Tuple[int, int, object]:
        opened = _open(place, "read a tensor")
        return opened.place(place), opened.ordinal, _Import(opened, lease)

    memory = DeviceMemory.found_by(find, place.size)
    if place.is_of_client:
        assert memory.address, "an address in GPU memory"
    return memory


def read(place: MemoryPlace, target: memoryview) -> None:
    """Copy GPU memory of another process to *target*, memory of the CPU.

    Raises:
        TritonModelException: If that fails.
    """
    opened = _open(place, "read a tensor")
    try:
        DeviceMemory(opened.place(place), place.size, opened.ordinal, opened, is_ordered=True).copy_to(
            address_of(target)[0]
        )
    except CudaError as error:
        raise place.explain(error, "read a tensor") from None
    finally:
        imports.drop(opened)


def write(place: MemoryPlace, source: Union[DeviceMemory, Buffer]) -> None:
    """Copy *source*, memory of a GPU or of the CPU, to GPU memory of another process; complete when this returns.

    Raises:
        TritonModelException: If that fails.
    """
    opened = _open(place, "write an output")
    try:
        address = opened.place(place)
        if isinstance(source, DeviceMemory):
            source.copy_to_gpu(address, opened.ordinal)
        else:
            copy_to_device(source, address, opened.ordinal)
    except CudaError as error:
        raise place.explain(error, "write an output") from None
    finally:
        imports.drop(opened)


def _open(place: MemoryPlace, action: str) -> _Opened:
    try:
        opened = imports.open((place.uuid, place.handle), place.exporter)
    except TritonModelException as error:
        raise place.explain(error, action) from None
    try:
        opened.place(place)
    except TritonModelException as error:
        imports.drop(opened)
        raise place.explain(error, action) from None
    return opened
