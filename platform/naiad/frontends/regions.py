"""Regions of shared memory that clients have registered: tensors that never pass through a socket.

One registry serves all frontends. A region is mapped once; an input is a view of it, from which the engine copies
straight into the guest's segment, and an output is copied straight into it. The mapping lives for as long as a view of
it does, so a region that is unregistered under a running request ends with that request.

Off unless the server was started with --allow-client-shm=true: whoever can register a region makes this process read
and write it, and one that shrinks its file at the wrong moment can end the process (the size is looked at before each
use, which leaves that moment alone).

Texts and codes: SRV src/shared_memory_manager.cc.
"""

from __future__ import annotations

# What multiprocessing.shared_memory stands on; that itself would remove clients' regions at our end.
import _posixshmem  # type: ignore[import-not-found]
import mmap
import os
from collections.abc import Callable
from dataclasses import dataclass

from naiad.errors import Code, InvalidRequestError, NaiadError, UnsupportedRequestError
from naiad.protocol.inference import Buffer

SHARED_MEMORY_IS_OFF = "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."

_RESERVED = "triton_python_backend_shm_region_"
_open_region: Callable[..., int] = _posixshmem.shm_open


@dataclass(slots=True, kw_only=True)
class Region:
    """A registered region.

    Attributes:
        name: What requests call it.
        key: Its name in the system.
        offset: Where it begins in what the key names.
        byte_size: Its size.
    """

    name: str
    key: str
    offset: int
    byte_size: int
    _map: mmap.mmap
    _start: int

    def view(self, offset: int, byte_size: int) -> memoryview:
        """A part of the region.

        Raises:
            InvalidRequestError: If the region has no such part, or not any more.
        """
        if not 0 <= offset < self.byte_size:
            raise InvalidRequestError(f"Invalid offset for shared memory region: '{self.name}'")
        if offset + byte_size > self.byte_size:
            raise InvalidRequestError(f"Invalid offset + byte size for shared memory region: '{self.name}'")
        if self._map.size() < self.offset + offset + byte_size:
            raise InvalidRequestError(
                f"shared memory region '{self.name}' has shrunk: '{self.key}' now ends before byte "
                f"{self.offset + offset + byte_size}; unregister the region and register it anew"
            )
        start = self._start + offset
        return memoryview(self._map)[start : start + byte_size]


@dataclass(frozen=True, slots=True)
class OutputRegion:
    """The part of a region that an output is written to."""

    region: Region
    offset: int
    byte_size: int

    def write(self, output: str, data: Buffer) -> None:
        """Copy an output into the region.

        Raises:
            NaiadError: If it does not fit.
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


class ClientRegions:
    """The regions of a server's clients, by name."""

    def __init__(self, *, is_allowed: bool = False) -> None:
        """Begin without regions.

        Args:
            is_allowed: Whether clients may register regions at all (--allow-client-shm).
        """
        self._is_allowed = is_allowed
        self._regions: dict[str, Region] = {}

    def register(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Map a region of the system's shared memory.

        Raises:
            NaiadError: If it cannot be, or there is one of that name.
        """
        self.check_allowed()
        if name.startswith(_RESERVED) or key.removeprefix("/").startswith(_RESERVED):
            raise _invalid(name)
        if name in self._regions:
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
        self._regions[name] = Region(name=name, key=key, offset=offset, byte_size=byte_size, _map=mapping, _start=start)

    def register_cuda(self, name: str) -> None:
        """Refuse: the server holds no device memory.

        Raises:
            NaiadError: Always.
        """
        self.check_allowed()
        raise InvalidRequestError(f"failed to register CUDA shared memory region: '{name}', GPUs not supported")

    def status(self, name: str = "") -> list[Region]:
        """All regions by name, or the one of that name.

        Raises:
            NaiadError: If there is none of that name.
        """
        if not name:
            return [region for _, region in sorted(self._regions.items())]
        if name not in self._regions:
            raise NaiadError(f"Unable to find system shared memory region: '{name}'", code=Code.NOT_FOUND)
        return [self._regions[name]]

    def check_cuda_status(self, name: str = "") -> None:
        """There are no CUDA regions.

        Raises:
            NaiadError: If one is asked for by its name.
        """
        if name in self._regions:
            raise NaiadError(
                f"The region named '{name}' is registered as system shared memory, not CUDA shared memory",
                code=Code.NOT_FOUND,
            )
        if name:
            raise NaiadError(f"Unable to find cuda shared memory region: '{name}'", code=Code.NOT_FOUND)

    def unregister(self, name: str = "") -> None:
        """Forget one region or, without a name, all; an unknown name is a success."""
        if name:
            self._regions.pop(name, None)
        else:
            self._regions.clear()

    def view(self, name: str, offset: int, byte_size: int) -> memoryview:
        """The bytes of an input.

        Raises:
            NaiadError: If there is no such region or part of it.
        """
        return self._find(name).view(offset, byte_size)

    def output_region(self, name: str, offset: int, byte_size: int) -> OutputRegion:
        """Where to write an output. It stays valid when the region is unregistered.

        Raises:
            NaiadError: If there is no such region or part of it.
        """
        region = self._find(name)
        region.view(offset, byte_size)
        return OutputRegion(region, offset, byte_size)

    def check(self, name: str) -> None:
        """Refuse a region that is not there.

        Raises:
            NaiadError: If it is not, or clients may have none.
        """
        self._find(name)

    def _find(self, name: str) -> Region:
        self.check_allowed()
        region = self._regions.get(name)
        if region is None:
            raise NaiadError(f"Unable to find shared memory region: '{name}'", code=Code.NOT_FOUND)
        return region

    def check_allowed(self) -> None:
        """Refuse what needs shared memory where the server was not started with it.

        Raises:
            UnsupportedRequestError: If it was not.
        """
        if not self._is_allowed:
            raise UnsupportedRequestError(SHARED_MEMORY_IS_OFF)


def _invalid(name: str) -> InvalidRequestError:
    return InvalidRequestError(f"failed to register shared memory region '{name}': invalid args")
