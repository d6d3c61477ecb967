"""Regions of shared memory that clients register, so that tensors need not pass through a socket.

One registry serves all frontends. A region is a file that its client may truncate at any time. An access to a mapping
behind the end of its file ends the process with SIGBUS, so regions are not mapped here: inputs are read with `preadv`,
which reads less than was asked for, and outputs are written with `pwritev`. A write behind the end would make the file
longer again, so the size is checked before each slice.

Inputs are read before a request is checked, so a client that changes its region meanwhile changes nothing in the
request (`frontends.region_inputs`). Outputs are written when the response is made. A region that a request uses cannot
be unregistered until the last response to it is ready to be sent: nothing is written to a region after its client knows
that it is unregistered.

The feature is off unless the server was started with --allow-client-shm=true. A client that registers a region makes
this process read and write that memory.

Texts and codes: SRV src/shared_memory_manager.cc.
"""

from __future__ import annotations

# The module below multiprocessing.shared_memory, which itself would unlink the clients' regions when the server ends.
import _posixshmem  # type: ignore[import-not-found] # typeshed does not describe private modules
import os
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Protocol

from naiad.core.errors import Code, InvalidRequestError, NaiadError, UnsupportedRequestError
from naiad.protocol.inference import Buffer

SHARED_MEMORY_IS_OFF = "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
WRITTEN_AT_ONCE = 1 << 20
"""Bytes of an output that are written to a region without a pause: 0.2 to 0.4 ms."""

_RESERVED = "triton_python_backend_shm_region_"
_open_region: Callable[..., int] = _posixshmem.shm_open
_SLICE = 256 << 10


class _Descriptor:
    """A file descriptor, closed with its last reference."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        os.close(self.number)


@dataclass(slots=True, kw_only=True)
class Region:
    """A registered region.

    Attributes:
        name: Its name in requests.
        key: Its name in the system, as `shm_open` takes it.
        offset: Where it begins in the system's object.
        byte_size: Its size in bytes.
        uses: Number of parts of it that requests use.
    """

    name: str
    key: str
    offset: int
    byte_size: int
    uses: int = 0
    _file: _Descriptor

    def part(self, offset: int, byte_size: int) -> RegionPart:
        """A part of the region, which is in use until the part is released.

        Raises:
            InvalidRequestError: If the region does not contain that part, or its file has shrunk.
        """
        if not 0 <= offset < self.byte_size:
            raise InvalidRequestError(f"Invalid offset for shared memory region: '{self.name}'")
        if offset + byte_size > self.byte_size:
            raise InvalidRequestError(f"Invalid offset + byte size for shared memory region: '{self.name}'")
        self.check_size(offset + byte_size)
        return RegionPart(self, offset, byte_size)

    def check_size(self, end: int) -> None:
        """Reject a region whose file ends before the region's byte *end*.

        Raises:
            InvalidRequestError: If it does.
        """
        if os.fstat(self._file.number).st_size < self.offset + end:
            raise self._shrunk(end)

    def read(self, offset: int, target: memoryview) -> None:
        """Fill *target* with the region's bytes from *offset* on.

        Raises:
            InvalidRequestError: If its file ends before that.
        """
        end = offset + len(target)
        while target:
            count = os.preadv(self._file.number, [target], self.offset + offset)
            if not count:
                raise self._shrunk(end)
            target = target[count:]
            offset += count

    def write(self, offset: int, data: memoryview) -> None:
        """Write *data* to the region from *offset* on.

        Raises:
            InvalidRequestError: If its file ends before that.
            NaiadError: If the system has no memory for it.
        """
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


class RegionPart:
    """The part of a region that one tensor of a request is in. While it is not released, the region is in use.

    Attributes:
        region: The region.
        offset: Where it begins in the region.
        byte_size: Its size in bytes.
    """

    __slots__ = ("_is_released", "byte_size", "offset", "region")

    def __init__(self, region: Region, offset: int, byte_size: int) -> None:
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

    def read_steps(self, target: memoryview) -> Generator[int, None, None]:
        """Fill *target*, which is as long as this part, in steps of 0.1 ms; yields how many bytes each has read.

        Raises:
            InvalidRequestError: If the file has shrunk.
        """
        for start in range(0, len(target), _SLICE):
            piece = target[start : start + _SLICE]
            self.region.read(self.offset + start, piece)
            yield len(piece)

    def write_steps(self, output: str, data: Buffer) -> Generator[None, None, None]:
        """Write an output, in steps of 0.1 ms.

        Raises:
            NaiadError: If the output is larger than this part, or the file has shrunk.
        """
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
            self.region.write(self.offset + start, view[start : start + _SLICE])


class TensorRegions(Protocol):
    """What tensors of requests need of regions. Every method raises `NaiadError` for a region that cannot be used."""

    def part(self, name: str, offset: int, byte_size: int) -> RegionPart:
        """The part of a region that a tensor is in."""

    def check(self, name: str) -> None:
        """Reject a region that is not registered."""


class RegionRegistry(TensorRegions, Protocol):
    """The regions of a server's clients. See `ClientRegions` for its methods."""

    def register(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Register a region of the system's shared memory."""

    def register_cuda(self, name: str) -> None:
        """Reject the region: the server does not use device memory."""

    def status(self, name: str = "") -> list[Region]:
        """All regions in the order of their names, or only the one called *name*."""

    def check_cuda_status(self, name: str = "") -> None:
        """Reject the status of a single CUDA region, since none can be registered."""

    def unregister(self, name: str = "") -> None:
        """Unregister one region, or all of them (no name); reject those that requests use."""

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
        """Register a region of the system's shared memory.

        Raises:
            NaiadError: If it cannot be opened, or the name is in use.
        """
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

    def register_cuda(self, name: str) -> None:
        """Reject the region: the server does not use device memory of clients.

        Raises:
            NaiadError: Always.
        """
        self.check_allowed()
        self._check_unused(name)
        raise InvalidRequestError(
            "failed to register shared memory region: invalid args; this server opens no CUDA shared memory: use "
            "system shared memory, or send the tensors in requests"
        )

    def _check_unused(self, name: str) -> None:
        if name in self._regions:
            raise NaiadError(f"shared memory region '{name}' already in manager", code=Code.ALREADY_EXISTS)

    def status(self, name: str = "") -> list[Region]:
        """All regions in the order of their names, or only the one called *name*.

        Raises:
            NaiadError: If *name* is not registered.
        """
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
        """Unregister one region, or all of them (no name). An unknown name is not an error.

        Raises:
            NaiadError: If requests use it, or some of them; the others are unregistered.
        """
        used = [each for each in self.named(name) if self.take(each) is None]
        if used:
            raise in_use(name, used)

    def named(self, name: str = "") -> list[str]:
        """The names of the registered regions that *name* means: all of them if it is empty."""
        return sorted(self._regions) if not name else [name] if name in self._regions else []

    def take(self, name: str) -> Region | None:
        """Remove a region that no request uses; None if it is used, or not registered."""
        region = self._regions.get(name)
        return None if region is None or region.uses else self._regions.pop(name)

    def discard(self, name: str) -> None:
        """Remove a region, even if requests use it: they keep it until they end."""
        self._regions.pop(name, None)

    def put(self, region: Region) -> None:
        """Add a region that `take` has removed."""
        self._regions[region.name] = region

    def part(self, name: str, offset: int, byte_size: int) -> RegionPart:
        """The part of a region that a tensor is in.

        Raises:
            NaiadError: If the region is not registered, or does not contain that part.
        """
        return self._find(name).part(offset, byte_size)

    def check(self, name: str) -> None:
        """Reject a region that cannot be used.

        Raises:
            NaiadError: If it is not registered, or clients may not use shared memory.
        """
        self._find(name)

    def _find(self, name: str) -> Region:
        self.check_allowed()
        region = self._regions.get(name)
        if region is None:
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


def _not_openable(key: str) -> NaiadError:
    return NaiadError(f"Unable to open shared memory region: '{key}'", code=Code.INTERNAL)


def in_use(name: str, used: Sequence[str]) -> NaiadError:
    """The error for regions that requests use: the one called *name*, or of all (no name) those in *used*."""
    if name:
        return NaiadError(
            f"Cannot unregister shared memory region '{name}', it is currently in use.", code=Code.INTERNAL
        )
    names = " ,".join(used)
    return NaiadError(f"Failed to unregister the following system shared memory regions: {names} ,", code=Code.INTERNAL)


def _invalid(name: str) -> InvalidRequestError:
    return InvalidRequestError(f"failed to register shared memory region '{name}': invalid args")
