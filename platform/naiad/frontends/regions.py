"""Regions of shared memory that clients register, so that tensors need not pass through a socket.

One registry serves all frontends. A region is mapped once. An input is a view of the mapping, from which the engine
copies into the guest's segment; an output is copied into the mapping. The mapping is freed with its last view. So a
region may be unregistered while a request uses it, and as in the reference stays listed until the request has ended.

The feature is off unless the server was started with --allow-client-shm=true. A client that registers a region makes
this process read and write that memory. If the client shrinks the file, an access behind its end kills the process with
SIGBUS. The size is checked before each use, which leaves a short race.

Texts and codes: SRV src/shared_memory_manager.cc.
"""

from __future__ import annotations

# The module below multiprocessing.shared_memory, which itself would unlink the clients' regions when the server ends.
import _posixshmem  # type: ignore[import-not-found] # typeshed does not describe private modules
import mmap
import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from naiad.errors import Code, InvalidRequestError, NaiadError, UnsupportedRequestError
from naiad.protocol.inference import Buffer

SHARED_MEMORY_IS_OFF = "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."

_RESERVED = "triton_python_backend_shm_region_"
_open_region: Callable[..., int] = _posixshmem.shm_open


@dataclass(slots=True, kw_only=True)
class Region:
    """A registered region.

    Attributes:
        name: Its name in requests.
        key: Its name in the system, as `shm_open` takes it.
        offset: Where it begins in the system's object.
        byte_size: Its size in bytes.
    """

    name: str
    key: str
    offset: int
    byte_size: int
    _map: Callable[[], mmap.mmap | None]
    _start: int

    @property
    def is_unmapped(self) -> bool:
        """Whether it was unregistered, and the last request that used it has ended."""
        return self._map() is None

    @property
    def is_released(self) -> bool:
        """Whether it was unregistered; requests may still use it."""
        return isinstance(self._map, weakref.ref)

    def release(self) -> None:
        """Unmap it once no request uses it."""
        mapping = self._map()
        if mapping is not None:
            self._map = weakref.ref(mapping)

    def view(self, offset: int, byte_size: int) -> memoryview:
        """A part of the region.

        Raises:
            InvalidRequestError: If the region does not contain that part, or its file has shrunk.
        """
        if not 0 <= offset < self.byte_size:
            raise InvalidRequestError(f"Invalid offset for shared memory region: '{self.name}'")
        if offset + byte_size > self.byte_size:
            raise InvalidRequestError(f"Invalid offset + byte size for shared memory region: '{self.name}'")
        mapping = self._map()
        if mapping is None:
            raise _unknown(self.name)
        if mapping.size() < self.offset + offset + byte_size:
            raise InvalidRequestError(
                f"cannot use shared memory region '{self.name}': '{self.key}' has shrunk and ends before byte "
                f"{self.offset + offset + byte_size}; unregister the region and register it again"
            )
        start = self._start + offset
        return memoryview(mapping)[start : start + byte_size]


@dataclass(frozen=True, slots=True)
class OutputRegion:
    """The part of a region that an output is written to; its view keeps the region mapped."""

    region: Region
    offset: int
    byte_size: int
    view: memoryview = field(repr=False, compare=False)

    def write(self, output: str, data: Buffer) -> None:
        """Copy an output into the region.

        Raises:
            NaiadError: If the output is larger than the region.
        """
        size = len(data)
        if size > self.byte_size:
            raise NaiadError(
                f"shared memory size specified with the request for output '{output}' ({self.byte_size} bytes) should "
                f"be at least {size} bytes to hold the results",
                code=Code.INTERNAL,
            )
        if size:
            self.region.view(self.offset, size)[:] = data


class TensorRegions(Protocol):
    """What tensors of requests need of regions. Every method raises `NaiadError` for a region that cannot be used."""

    def view(self, name: str, offset: int, byte_size: int) -> Buffer:
        """The bytes of an input."""

    def output_region(self, name: str, offset: int, byte_size: int) -> OutputRegion:
        """Where to write an output."""

    def check(self, name: str) -> None:
        """Reject a region that is not registered."""


class RegionRegistry(TensorRegions, Protocol):
    """The regions of a server's clients. See `ClientRegions` for its methods."""

    def register(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Map a region of the system's shared memory."""

    def register_cuda(self, name: str) -> None:
        """Reject the region: the server does not use device memory."""

    def status(self, name: str = "") -> list[Region]:
        """All regions in the order of their names, or only the one called *name*."""

    def check_cuda_status(self, name: str = "") -> None:
        """Reject the status of a single CUDA region, since none can be registered."""

    def unregister(self, name: str = "") -> None:
        """Unregister one region, or all of them (no name)."""

    def check_allowed(self) -> None:
        """Reject every use of shared memory unless the server allows it."""


class ClientRegions:
    """The registered regions of a server's clients, by name."""

    def __init__(self, *, is_allowed: bool = False) -> None:
        """An empty registry.

        Args:
            is_allowed: Whether clients may use shared memory (--allow-client-shm).
        """
        self._is_allowed = is_allowed
        self._regions: dict[str, Region] = {}

    def register(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Map a region of the system's shared memory.

        Raises:
            NaiadError: If it cannot be mapped, or the name is in use.
        """
        self.check_allowed()
        # `shm_open` ignores any number of leading slashes.
        if name.lstrip("/").startswith(_RESERVED) or key.lstrip("/").startswith(_RESERVED):
            raise _invalid(name)
        self._forget_unmapped()
        # A client that has its response may use the name again, even while the server still drops the request.
        if name in self._regions and not self._regions[name].is_released:
            raise NaiadError(f"shared memory region '{name}' already in manager", code=Code.ALREADY_EXISTS)
        try:
            descriptor = _open_region(key, os.O_RDWR, mode=0)
        except (OSError, ValueError):
            raise NaiadError(f"Unable to open shared memory region: '{key}'", code=Code.INTERNAL) from None
        try:
            if byte_size == 0 or offset + byte_size > os.fstat(descriptor).st_size:
                raise _invalid(name)
            start = offset % mmap.ALLOCATIONGRANULARITY
            mapping = mmap.mmap(descriptor, start + byte_size, offset=offset - start)
        except (OSError, ValueError, OverflowError) as problem:
            raise InvalidRequestError(f"failed to register shared memory region '{name}': {problem}") from None
        finally:
            os.close(descriptor)
        self._regions[name] = Region(
            name=name, key=key, offset=offset, byte_size=byte_size, _map=lambda: mapping, _start=start
        )

    def register_cuda(self, name: str) -> None:
        """Reject the region: the server does not use device memory.

        Raises:
            NaiadError: Always.
        """
        self.check_allowed()
        raise InvalidRequestError(f"failed to register CUDA shared memory region: '{name}', GPUs not supported")

    def status(self, name: str = "") -> list[Region]:
        """All regions in the order of their names, or only the one called *name*.

        Raises:
            NaiadError: If *name* is not registered.
        """
        self._forget_unmapped()
        if not name:
            return [region for _, region in sorted(self._regions.items())]
        if name not in self._regions:
            raise NaiadError(f"Unable to find system shared memory region: '{name}'", code=Code.NOT_FOUND)
        return [self._regions[name]]

    def check_cuda_status(self, name: str = "") -> None:
        """Reject the status of a single CUDA region, since none can be registered.

        Raises:
            NaiadError: If *name* is not empty.
        """
        if name in self._regions:
            raise NaiadError(
                f"The region named '{name}' is registered as system shared memory, not CUDA shared memory",
                code=Code.NOT_FOUND,
            )
        if name:
            raise NaiadError(f"Unable to find cuda shared memory region: '{name}'", code=Code.NOT_FOUND)

    def unregister(self, name: str = "") -> None:
        """Unregister one region, or all of them (no name). An unknown name is not an error."""
        for region in list(self._regions.values()):
            if not name or region.name == name:
                region.release()
        self._forget_unmapped()

    def _forget_unmapped(self) -> None:
        """Remove regions that were unregistered while requests used them, if these have ended."""
        for region in list(self._regions.values()):
            if region.is_unmapped:
                del self._regions[region.name]

    def view(self, name: str, offset: int, byte_size: int) -> memoryview:
        """The bytes of an input.

        Raises:
            NaiadError: If the region is not registered, or does not contain that part.
        """
        return self._find(name).view(offset, byte_size)

    def output_region(self, name: str, offset: int, byte_size: int) -> OutputRegion:
        """Where to write an output. It stays valid when the region is unregistered.

        Raises:
            NaiadError: If the region is not registered, or does not contain that part.
        """
        region = self._find(name)
        return OutputRegion(region, offset, byte_size, region.view(offset, byte_size))

    def check(self, name: str) -> None:
        """Reject a region that cannot be used.

        Raises:
            NaiadError: If it is not registered, or clients may not use shared memory.
        """
        self._find(name)

    def _find(self, name: str) -> Region:
        self.check_allowed()
        region = self._regions.get(name)
        if region is None or region.is_unmapped:
            raise _unknown(name)
        return region

    def check_allowed(self) -> None:
        """Reject every use of shared memory unless the server allows it.

        Raises:
            UnsupportedRequestError: If --allow-client-shm is not set.
        """
        if not self._is_allowed:
            raise UnsupportedRequestError(SHARED_MEMORY_IS_OFF)


def _unknown(name: str) -> NaiadError:
    return NaiadError(f"Unable to find shared memory region: '{name}'", code=Code.NOT_FOUND)


def _invalid(name: str) -> InvalidRequestError:
    return InvalidRequestError(f"failed to register shared memory region '{name}': invalid args")
