"""Regions of shared memory that clients register, so that tensors need not pass through a socket.

One registry serves all frontends. A region is a file that its client may truncate at any time. An access to a mapping
behind the end of its file ends the process with SIGBUS, so regions are not mapped here: inputs are read with `preadv`,
which reads less than was asked for, and outputs are written with `pwritev`. A write behind the end would make the file
longer again, so the size is checked before each slice. This takes 1.6 to 1.9 times as long as a copy between mappings.

Inputs are read before a request is checked, so a client that changes its region meanwhile changes nothing in the
request (`frontends.region_inputs`). Outputs are written when the response is made. A region that a request uses cannot
be unregistered until the last response to it is ready to be sent: nothing is written to a region after its client knows
that it is unregistered.

A region may also be memory of a GPU, which the server cannot read: it has no CUDA. A request with a tensor in such a
region tells the guests where that is, by the driver's handle, and they read and write it (`protocol.device_bytes`).

The feature is off unless the server was started with --allow-client-shm=true. A client that registers a region makes
this process, or guests, read and write that memory.

Texts and codes: SRV src/shared_memory_manager.cc.
"""

from __future__ import annotations

# The module below multiprocessing.shared_memory, which itself would unlink the clients' regions when the server ends.
import _posixshmem  # type: ignore[import-not-found] # typeshed does not describe private modules
import os
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from naiad.core.errors import Code, InvalidRequestError, NaiadError, UnsupportedRequestError
from naiad.protocol.device_bytes import DeviceBytes, Exporter
from naiad.protocol.inference import Buffer

SHARED_MEMORY_IS_OFF = "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
WRITTEN_AT_ONCE = 1 << 20  # bytes of an output that are written to a region without a pause: 0.2 to 0.4 ms

CUDA_HANDLE_BYTES = 64  # bytes of CUDA's `cudaIpcMemHandle_t`

_INVALID_CUDA = "failed to register shared memory region: invalid args"
_RESERVED = "triton_python_backend_shm_region_"
_open_region: Callable[..., int] = _posixshmem.shm_open
_SLICE = 256 << 10


R = TypeVar("R", "Region", "CudaRegion")


class _Descriptor:
    """A file descriptor, closed with its last reference."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        os.close(self.number)


@dataclass(slots=True, kw_only=True)
class Region:
    """A registered region."""

    name: str
    key: str  # its name in the system, as `shm_open` takes it
    offset: int  # where it begins in the system's object
    byte_size: int
    uses: int = 0  # number of parts of it that requests use
    _file: _Descriptor

    def part(self, offset: int, byte_size: int) -> RegionPart:
        """A part of the region, which is in use until the part is released."""
        _check_bounds(self.name, self.byte_size, offset, byte_size)
        self.check_size(offset + byte_size)
        return RegionPart(self, offset, byte_size)

    def check_size(self, end: int) -> None:
        """Reject a region whose file ends before the region's byte *end*."""
        if os.fstat(self._file.number).st_size < self.offset + end:
            raise self._shrunk(end)

    def read(self, offset: int, target: memoryview) -> None:
        """Fill *target* with the region's bytes from *offset* on; InvalidRequestError if its file ends before that."""
        end = offset + len(target)
        while target:
            count = os.preadv(self._file.number, [target], self.offset + offset)
            if not count:
                raise self._shrunk(end)
            target = target[count:]
            offset += count

    def write(self, offset: int, data: memoryview) -> None:
        self.check_size(offset + len(data))
        while data:
            try:
                count = os.pwritev(self._file.number, [data], self.offset + offset)
            except OSError as problem:  # the pages of a new region are allocated when they are written to
                raise NaiadError(
                    f"cannot write to shared memory region '{self.name}': {problem.strerror}; free memory of /dev/shm, "
                    "or make it larger",
                    code=Code.INTERNAL,
                ) from None
            data = data[count:]
            offset += count

    def _shrunk(self, end: int) -> InvalidRequestError:
        return InvalidRequestError(
            f"cannot use shared memory region '{self.name}': '{self.key}' has shrunk and ends before byte "
            f"{self.offset + end}; unregister the region and register it again"
        )


@dataclass(slots=True, kw_only=True)
class CudaRegion:
    """A registered region of a GPU's memory."""

    name: str
    device_id: int
    byte_size: int
    uuid: bytes
    handle: bytes  # CUDA's handle of the memory
    exporter: Exporter  # the region, for guests that open it
    uses: int = 0  # number of parts of it that requests use

    def part(self, offset: int, byte_size: int) -> RegionPart:
        _check_bounds(self.name, self.byte_size, offset, byte_size)
        return RegionPart(self, offset, byte_size)


def region_document(region: Region | CudaRegion) -> dict[str, str | int]:
    """What clients are told of a registered region."""
    if isinstance(region, CudaRegion):
        return {"name": region.name, "device_id": region.device_id, "byte_size": region.byte_size}
    return {"name": region.name, "key": region.key, "offset": region.offset, "byte_size": region.byte_size}


def _check_bounds(name: str, region_size: int, offset: int, byte_size: int) -> None:
    if not 0 <= offset < region_size:
        raise InvalidRequestError(f"Invalid offset for shared memory region: '{name}'")
    if offset + byte_size > region_size:
        raise InvalidRequestError(f"Invalid offset + byte size for shared memory region: '{name}'")


class RegionPart:
    """The part of a region that one tensor of a request is in. While it is not released, the region is in use."""

    __slots__ = ("_is_released", "byte_size", "offset", "region")

    def __init__(self, region: Region | CudaRegion, offset: int, byte_size: int) -> None:
        self.region = region
        self.offset = offset
        self.byte_size = byte_size
        self._is_released = False
        region.uses += 1

    def __len__(self) -> int:
        return self.byte_size

    def __del__(self) -> None:
        self.release()

    def release(self) -> None:
        """The request does not use it any more. Further calls do nothing."""
        if not self._is_released:
            self._is_released = True
            self.region.uses -= 1

    @property
    def is_on_device(self) -> bool:
        return isinstance(self.region, CudaRegion)

    def device_bytes(self) -> DeviceBytes:
        """The part, which is in GPU memory, for guests; the region stays in use while they have it."""
        region = self.region
        assert isinstance(region, CudaRegion)
        owner = RegionPart(region, self.offset, self.byte_size)
        return DeviceBytes(region.uuid, region.handle, self.offset, self.byte_size, region.exporter, owner)

    def read(self, target: memoryview) -> None:
        """Fill *target*, which is as long as this part."""
        self._file_region().read(self.offset, target)

    def _file_region(self) -> Region:
        assert isinstance(self.region, Region)
        return self.region

    def read_steps(self, target: memoryview) -> Generator[int, None, None]:
        """Fill *target*, which is as long as this part, in steps of 0.1 ms; yields how many bytes each has read."""
        region = self._file_region()
        for start in range(0, len(target), _SLICE):
            piece = target[start : start + _SLICE]
            region.read(self.offset + start, piece)
            yield len(piece)

    def write_steps(self, output: str, data: Buffer) -> Generator[None, None, None]:
        """Write an output, in steps of 0.1 ms."""
        if self.is_on_device:
            return  # the guest has written it, or the request has failed
        region = self._file_region()
        size = len(data)
        if size > self.byte_size:
            raise NaiadError(
                f"shared memory size specified with the request for output '{output}' ({self.byte_size} bytes) should "
                f"be at least {size} bytes to hold the results",
                code=Code.INTERNAL,
            )
        view = memoryview(data)
        for start in range(0, size, _SLICE):
            if start:
                yield
            region.write(self.offset + start, view[start : start + _SLICE])


class TensorRegions(Protocol):
    """What tensors of requests need of regions. Every method raises `NaiadError` for a region that cannot be used."""

    def part(self, name: str, offset: int, byte_size: int) -> RegionPart:
        """The part of a region that a tensor is in."""

    def check(self, name: str) -> None:
        """Reject a region that is not registered."""


class RegionRegistry(TensorRegions, Protocol):
    """The regions of a server's clients. See `ClientRegions` for its methods."""

    async def register(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Register a region of the system's shared memory."""

    async def register_cuda(self, name: str, handle: bytes, device_id: int, byte_size: int) -> None:
        """Register a region of a GPU's memory."""

    def status(self, name: str = "") -> list[Region]:
        """All regions of the system's memory in the order of their names, or only the one called *name*."""

    def cuda_status(self, name: str = "") -> list[CudaRegion]:
        """The same of regions of GPUs' memory."""

    async def unregister(self, name: str = "", *, is_cuda: bool = False) -> None:
        """Unregister one region, or all of its kind (no name); reject those that requests use."""

    def check_allowed(self) -> None:
        """Reject every use of shared memory unless the server allows it."""


class ClientRegions:
    """The registered regions of a server's clients, by name."""

    def __init__(self, *, is_allowed: bool = False, find_gpu: Callable[[int], bytes | None] = lambda _: None) -> None:
        """*find_gpu* returns the UUID of a GPU by its number; None without that GPU."""
        self._is_allowed = is_allowed
        self._find_gpu = find_gpu
        self._regions: dict[str, Region | CudaRegion] = {}

    async def register(self, name: str, key: str, offset: int, byte_size: int) -> None:
        self.add(name, key, offset, byte_size)

    def add(self, name: str, key: str, offset: int, byte_size: int) -> None:
        self.check_allowed()
        # `shm_open` ignores any number of leading slashes.
        if "\0" in name or name.lstrip("/").startswith(_RESERVED) or key.lstrip("/").startswith(_RESERVED):
            raise _invalid(name)
        self._check_unused(name)
        # Some versions of Python pass the key to the system up to its first NUL.
        if "\0" in key:
            raise _not_openable(key)
        try:
            file = _Descriptor(_open_region(key, os.O_RDWR, mode=0))
        except (OSError, ValueError):
            raise _not_openable(key) from None
        if byte_size == 0 or offset + byte_size > os.fstat(file.number).st_size:
            raise _invalid(name)
        self._regions[name] = Region(name=name, key=key, offset=offset, byte_size=byte_size, _file=file)

    async def register_cuda(self, name: str, handle: bytes, device_id: int, byte_size: int) -> None:
        self.add_cuda(name, handle, device_id, byte_size)

    def add_cuda(self, name: str, handle: bytes, device_id: int, byte_size: int) -> None:
        """Add a region of a GPU's memory. Only guests open it, so whether that is possible shows later."""
        self.check_allowed()
        if name.lstrip("/").startswith(_RESERVED):
            raise _invalid(name)
        self._check_unused(name)
        uuid = self._find_gpu(device_id)
        if uuid is None:
            raise InvalidRequestError(
                f"{_INVALID_CUDA}; the server finds no GPU {device_id} on its machine: give the number that the GPU "
                "has for the server, or use system shared memory"
            )
        if len(handle) != CUDA_HANDLE_BYTES or byte_size == 0:
            problem = f"the handle has {len(handle)} bytes" if byte_size else "the region has no bytes"
            raise InvalidRequestError(f"{_INVALID_CUDA}; {problem}")
        self._regions[name] = CudaRegion(
            name=name,
            device_id=device_id,
            byte_size=byte_size,
            uuid=uuid,
            handle=handle,
            exporter=Exporter(is_client=True),
        )

    def _check_unused(self, name: str) -> None:
        if name in self._regions:
            raise NaiadError(f"shared memory region '{name}' already in manager", code=Code.ALREADY_EXISTS)

    def status(self, name: str = "") -> list[Region]:
        return self._registered(name, Region, "system", "CUDA")

    def cuda_status(self, name: str = "") -> list[CudaRegion]:
        return self._registered(name, CudaRegion, "CUDA", "system")

    def _registered(self, name: str, kind: type[R], kind_name: str, other_name: str) -> list[R]:
        found = self._regions.get(name)
        if name and found is None:
            raise NaiadError(f"Unable to find {kind_name.lower()} shared memory region: '{name}'", code=Code.NOT_FOUND)
        if found is not None and not isinstance(found, kind):
            raise NaiadError(
                f"The region named '{name}' is registered as {other_name} shared memory, not {kind_name} shared memory",
                code=Code.NOT_FOUND,
            )
        regions = [found] if name else [self._regions[each] for each in sorted(self._regions)]
        return [region for region in regions if isinstance(region, kind)]

    async def unregister(self, name: str = "", *, is_cuda: bool = False) -> None:
        """Unregister a region, or all of a kind (no name); NaiadError if requests use some. Ignores unknown ones."""
        used = [each for each in self.named(name, is_cuda=is_cuda) if self.take(each) is None]
        if used:
            raise in_use(name, used, is_cuda=is_cuda)

    def named(self, name: str = "", *, is_cuda: bool = False) -> list[str]:
        """The names of the registered regions of one kind that *name* means: all of them if it is empty."""
        kind = CudaRegion if is_cuda else Region
        names = sorted(self._regions) if not name else [name]
        return [each for each in names if isinstance(self._regions.get(each), kind)]

    def has(self, name: str) -> bool:
        return name in self._regions

    def take(self, name: str) -> Region | CudaRegion | None:
        """Remove a region that no request uses; None if it is used, or not registered."""
        region = self._regions.get(name)
        if region is None or region.uses:
            return None
        self.discard(name)
        return region

    def discard(self, name: str) -> None:
        """Remove a region, even if requests use it: they keep it until they end."""
        region = self._regions.pop(name, None)
        if isinstance(region, CudaRegion):
            region.exporter.end()

    def put(self, region: Region | CudaRegion) -> None:
        """Add a region that `take` has removed."""
        self._regions[region.name] = region

    def part(self, name: str, offset: int, byte_size: int) -> RegionPart:
        return self._find(name).part(offset, byte_size)

    def check(self, name: str) -> None:
        self._find(name)

    def _find(self, name: str) -> Region | CudaRegion:
        self.check_allowed()
        region = self._regions.get(name)
        if region is None:
            raise NaiadError(f"Unable to find shared memory region: '{name}'", code=Code.NOT_FOUND)
        return region

    def check_allowed(self) -> None:
        if not self._is_allowed:
            raise UnsupportedRequestError(SHARED_MEMORY_IS_OFF)


def _not_openable(key: str) -> NaiadError:
    return NaiadError(f"Unable to open shared memory region: '{key}'", code=Code.INTERNAL)


def in_use(name: str, used: Sequence[str], *, is_cuda: bool = False) -> NaiadError:
    """The error for regions that requests use: the one called *name*, or of all (no name) those in *used*."""
    if name:
        return NaiadError(
            f"Cannot unregister shared memory region '{name}', it is currently in use.", code=Code.INTERNAL
        )
    names = " ,".join(used)
    kind = "cuda" if is_cuda else "system"
    return NaiadError(f"Failed to unregister the following {kind} shared memory regions: {names} ,", code=Code.INTERNAL)


def _invalid(name: str) -> InvalidRequestError:
    return InvalidRequestError(f"failed to register shared memory region '{name}': invalid args")
