"""Regions of clients' shared memory, which a client registers in one process and which all processes open.

A region is unregistered in two steps. First each process takes it out of its registry, unless requests use it there.
Where one does, the others put it back, and the client gets an error. A request that names a region between the two
steps waits for the second one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from naiad.core.errors import NaiadError
from naiad.frontends.regions import ClientRegions, CudaRegion, Region, RegionPart, in_use
from naiad.server.processes.remote_engine import RemoteEngine

if TYPE_CHECKING:  # which the other processes do not have
    from naiad.server.processes.pool import ProcessPool


class SharedRegions:
    """Implements `RegionRegistry` in the coordinator: decides whether a change is valid, and makes it everywhere.

    Its own registry changes last, in one step: its requests never see a region that may come back.
    """

    def __init__(self, regions: ClientRegions, processes: ProcessPool) -> None:
        self._regions = regions
        self._processes = processes
        self._changing = asyncio.Lock()
        self.part = regions.part
        self.check = regions.check
        self.status = regions.status
        self.cuda_status = regions.cuda_status
        self.check_allowed = regions.check_allowed

    def calls(self) -> list[tuple[str, tuple[Any, ...]]]:
        """What is called of a process that starts."""
        system = [(each.name, each.key, each.offset, each.byte_size) for each in self._regions.status()]
        cuda = [(each.name, each.handle, each.device_id, each.byte_size) for each in self._regions.cuda_status()]
        return [*(("region", each) for each in system), *(("cuda_region", each) for each in cuda)]

    async def register(self, name: str, key: str, offset: int, byte_size: int) -> None:
        async with self._changing:
            self._regions.add(name, key, offset, byte_size)
            self._processes.broadcast("region", name, key, offset, byte_size)
        await self._processes.wait_sent()

    async def register_cuda(self, name: str, handle: bytes, device_id: int, byte_size: int) -> None:
        async with self._changing:
            self._regions.add_cuda(name, handle, device_id, byte_size)
            self._processes.broadcast("cuda_region", name, handle, device_id, byte_size)
        await self._processes.wait_sent()

    async def unregister(self, name: str = "", *, is_cuda: bool = False) -> None:
        """Unregister one region, or all of its kind (no name), in all processes; NaiadError for those in use."""
        async with self._changing:
            names = self._regions.named(name, is_cuda=is_cuda)
            if not names:
                return
            taken = set(await self._processes.take_regions(names))
            # Guests may use a region of GPU memory beyond the request that other processes know.
            used = sorted(taken.union(each for each in names if each not in taken and not self._regions.take(each)))
            self._processes.broadcast("return_regions", names, used)
        await self._processes.wait_sent()
        if used:
            raise in_use(name, used, is_cuda=is_cuda)


class RemoteRegions:
    """Implements `RegionRegistry` in a process beside the coordinator. Each use first takes in announced changes."""

    def __init__(self, engine: RemoteEngine, *, is_allowed: bool) -> None:
        self._engine = engine
        # The coordinator has found the GPUs of the regions that it announces, and uses its own region in requests.
        self._regions = ClientRegions(is_allowed=is_allowed, find_gpu=lambda _: bytes(16))
        self._taken: dict[str, Region | CudaRegion] = {}
        self.services: dict[str, Callable[..., Any]] = {  # what the coordinator calls
            "region": self._add,
            "cuda_region": self._add_cuda,
            "take_regions": self._take,
            "return_regions": self._settle,
        }

    def _add(self, *region: Any) -> None:
        """Add a region that the coordinator has registered. One that cannot be opened any more is unknown here."""
        with contextlib.suppress(NaiadError):
            self._regions.add(*region)

    def _add_cuda(self, *region: Any) -> None:
        with contextlib.suppress(NaiadError):
            self._regions.add_cuda(*region)

    def _take(self, names: Sequence[str]) -> Sequence[str]:
        """Take regions out, until the coordinator says how that ends; those that requests use."""
        used = []
        for name in names:
            if self._regions.has(name):
                region = self._regions.take(name)
                if region is None:
                    used.append(name)
                else:
                    self._taken[name] = region
        return used

    def _settle(self, taken: Sequence[str], used: Sequence[str]) -> None:
        """Forget the regions that were *taken*, but for those that a process has *used*."""
        for name in taken:
            region = self._taken.pop(name, None)
            if name not in used:
                self._regions.discard(name)  # the coordinator did not wait for this process, if it has just started
            elif region is not None:
                self._regions.put(region)

    async def register(self, name: str, key: str, offset: int, byte_size: int) -> None:
        self._regions.check_allowed()
        await self._engine.call("register_region", name, key, offset, byte_size)

    async def register_cuda(self, name: str, handle: bytes, device_id: int, byte_size: int) -> None:
        self._regions.check_allowed()
        await self._engine.call("register_cuda_region", name, handle, device_id, byte_size)

    async def unregister(self, name: str = "", *, is_cuda: bool = False) -> None:
        await self._engine.call("unregister_region", name, is_cuda=is_cuda)

    def part(self, name: str, offset: int, byte_size: int) -> RegionPart:
        self._receive(name)
        return self._regions.part(name, offset, byte_size)

    def status(self, name: str = "") -> list[Region]:
        self._receive(name)
        return self._regions.status(name)

    def cuda_status(self, name: str = "") -> list[CudaRegion]:
        self._receive(name)
        return self._regions.cuda_status(name)

    def check(self, name: str) -> None:
        self._receive(name)
        self._regions.check(name)

    def check_allowed(self) -> None:
        self._regions.check_allowed()

    def _receive(self, name: str) -> None:
        """Take in what was announced; wait for the end of an unregistration of *name*, or of any for ""."""
        self._engine.receive()
        while name in self._taken if name else self._taken:
            self._engine.receive(wait=True)
