"""Regions of clients' shared memory, which a client registers in one process and which all processes map."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from naiad.errors import NaiadError
from naiad.frontend_processes.remote_engine import RemoteEngine
from naiad.frontends.regions import ClientRegions, OutputRegion, Region


class RegionChange(NamedTuple):
    """A region that was registered; or, with `is_registered` False, unregistered (no name: all of them)."""

    is_registered: bool
    name: str
    key: str = ""
    offset: int = 0
    byte_size: int = 0


def apply_change(regions: ClientRegions, change: RegionChange) -> None:
    """Make the change in a registry.

    Raises:
        NaiadError: If the region cannot be mapped, or its name is in use.
    """
    if change.is_registered:
        regions.register(change.name, change.key, change.offset, change.byte_size)
    else:
        regions.unregister(change.name)


class SharedRegions:
    """The owner's registry: decides whether a change is valid, and announces it to all frontend processes."""

    def __init__(self, regions: ClientRegions, announce: Callable[[RegionChange], None]) -> None:
        self._regions = regions
        self._announce = announce

    def change(self, change: RegionChange) -> None:
        """Make a change in all processes.

        Raises:
            NaiadError: If it is not valid.
        """
        apply_change(self._regions, change)
        self._announce(change)


class RemoteRegions:
    """Implements `RegionRegistry` in a frontend process. Each use first takes in the changes that were announced."""

    def __init__(self, engine: RemoteEngine, *, is_allowed: bool) -> None:
        self._engine = engine
        self._regions = ClientRegions(is_allowed=is_allowed)

    def apply(self, change: RegionChange) -> None:
        """Make a change that the owner has announced. A region that cannot be mapped any more is unknown here."""
        try:
            apply_change(self._regions, change)
        except NaiadError:
            self._regions.unregister(change.name)

    def register(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """See `ClientRegions`, as for the methods below."""
        self._regions.check_allowed()
        self._engine.ask("change_region", RegionChange(True, name, key, offset, byte_size))

    def register_cuda(self, name: str) -> None:
        """See `ClientRegions`."""
        self._regions.register_cuda(name)

    def status(self, name: str = "") -> list[Region]:
        """See `ClientRegions`."""
        self._engine.receive()
        return self._regions.status(name)

    def check_cuda_status(self, name: str = "") -> None:
        """See `ClientRegions`."""
        self._engine.receive()
        self._regions.check_cuda_status(name)

    def unregister(self, name: str = "") -> None:
        """See `ClientRegions`."""
        self._engine.ask("change_region", RegionChange(False, name))

    def view(self, name: str, offset: int, byte_size: int) -> memoryview:
        """See `ClientRegions`."""
        self._engine.receive()
        return self._regions.view(name, offset, byte_size)

    def output_region(self, name: str, offset: int, byte_size: int) -> OutputRegion:
        """See `ClientRegions`."""
        self._engine.receive()
        return self._regions.output_region(name, offset, byte_size)

    def check(self, name: str) -> None:
        """See `ClientRegions`."""
        self._engine.receive()
        self._regions.check(name)

    def check_allowed(self) -> None:
        """See `ClientRegions`."""
        self._regions.check_allowed()
