"""Regions of clients' shared memory, which a client registers in one process and which all processes open.

A region is unregistered in two steps. First each process takes it out of its registry, unless requests use it there.
Where one does, the others put it back, and the client gets an error. A request that names a region between the two
steps waits for the second one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from naiad.core.errors import NaiadError
from naiad.frontends.regions import ClientRegions, Region, RegionPart, in_use
from naiad.server.processes.messages import FrameKind, UsedRegions, pack
from naiad.server.processes.remote_engine import RemoteEngine


class NewRegion(NamedTuple):
    """A region to register; see `ClientRegions.register`."""

    name: str
    key: str
    offset: int
    byte_size: int


class ReturnedRegions(NamedTuple):
    """How unregistering ended.

    Attributes:
        taken: The regions that the processes took out.
        used: Those of them that a process uses: the others put them back.
    """

    taken: Sequence[str]
    used: Sequence[str]


class FrontendProcesses(Protocol):
    """All frontend processes, as the owner's registry needs them."""

    def broadcast(self, kind: int, message: Any) -> None:
        """Send a message to all of them."""

    async def take_regions(self, names: Sequence[str]) -> Sequence[str]:
        """Have each of them take regions out of its registry; those that one of them uses."""


class SharedRegions:
    """The owner's registry: decides whether a change is valid, and makes it in all frontend processes."""

    def __init__(self, regions: ClientRegions, processes: FrontendProcesses) -> None:
        self._regions = regions
        self._processes = processes
        self._changing = asyncio.Lock()

    def messages(self) -> list[tuple[int, NewRegion]]:
        """What a process that starts has to know."""
        return [
            (FrameKind.REGION, NewRegion(each.name, each.key, each.offset, each.byte_size))
            for each in self._regions.status()
        ]

    async def register(self, region: NewRegion) -> None:
        """Register a region in all processes.

        Raises:
            NaiadError: If that is not possible.
        """
        async with self._changing:
            self._regions.register(*region)
            self._processes.broadcast(FrameKind.REGION, region)

    async def unregister(self, name: str) -> None:
        """Unregister one region, or all of them (no name), in all processes.

        Raises:
            NaiadError: If requests use it, or some of them; the others are unregistered.
        """
        async with self._changing:
            names = self._regions.named(name)
            if not names:
                return
            used = sorted(set(await self._processes.take_regions(names)))
            for each in names:
                if each not in used:
                    self._regions.take(each)
            self._processes.broadcast(FrameKind.RETURN_REGIONS, ReturnedRegions(names, used))
        if used:
            raise in_use(name, used)


class RemoteRegions:
    """Implements `RegionRegistry` in a frontend process. Each use first takes in the changes that were announced."""

    def __init__(self, engine: RemoteEngine, *, is_allowed: bool) -> None:
        """No regions; `is_allowed` as for `ClientRegions`."""
        self._engine = engine
        self._regions = ClientRegions(is_allowed=is_allowed)
        self._taken: dict[str, Region] = {}

    def on_command(self, kind: int, content: Any) -> None:
        """Carry out a command of the owner."""
        if kind == FrameKind.REGION:
            self._add(content)
        elif kind == FrameKind.TAKE_REGIONS:
            self._take(*content)
        elif kind == FrameKind.RETURN_REGIONS:
            self._settle(content)

    def _add(self, region: NewRegion) -> None:
        """Add a region that the owner has registered. One that cannot be opened any more is unknown here."""
        with contextlib.suppress(NaiadError):
            self._regions.register(*region)

    def _take(self, number: int, names: Sequence[str]) -> None:
        """Take regions out, until the owner says how that ends; report those that requests use."""
        used = []
        for name in names:
            if self._regions.named(name):
                region = self._regions.take(name)
                if region is None:
                    used.append(name)
                else:
                    self._taken[name] = region
        self._engine.send(pack(FrameKind.USED_REGIONS, UsedRegions(number, used)))

    def _settle(self, returned: ReturnedRegions) -> None:
        """Forget regions that were taken out, or put them back."""
        for name in returned.taken:
            region = self._taken.pop(name, None)
            if name not in returned.used:
                self._regions.discard(name)  # the owner did not wait for this process, if it has just started
            elif region is not None:
                self._regions.put(region)

    def register(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """See `ClientRegions`, as for the methods below."""
        self._regions.check_allowed()
        self._engine.ask("register_region", NewRegion(name, key, offset, byte_size))

    def register_cuda(self, name: str) -> None:
        """See `ClientRegions`."""
        self._regions.register_cuda(name)

    def unregister(self, name: str = "") -> None:
        """See `ClientRegions`."""
        self._engine.ask("unregister_region", name)

    def part(self, name: str, offset: int, byte_size: int) -> RegionPart:
        """See `ClientRegions`."""
        self._receive(name)
        return self._regions.part(name, offset, byte_size)

    def status(self, name: str = "") -> list[Region]:
        """See `ClientRegions`."""
        self._receive(name)
        return self._regions.status(name)

    def check_cuda_status(self, name: str = "") -> None:
        """See `ClientRegions`."""
        self._receive(name)
        self._regions.check_cuda_status(name)

    def check(self, name: str) -> None:
        """See `ClientRegions`."""
        self._receive(name)
        self._regions.check(name)

    def check_allowed(self) -> None:
        """See `ClientRegions`."""
        self._regions.check_allowed()

    def _receive(self, name: str) -> None:
        """Take in what the owner has announced; wait for the end of an unregistration of *name*, or of any for ""."""
        self._engine.receive()
        while name in self._taken if name else self._taken:
            self._engine.receive(wait=True)
