"""The load of each instance: how many dispatches it holds, and how many it may hold."""

from __future__ import annotations

import sys
from collections.abc import Hashable
from typing import Generic, TypeVar

Instance = TypeVar("Instance", bound=Hashable)


class InstanceLoads(Generic[Instance]):
    """The instances of a model, each with its load (dispatches it holds) and depth (dispatches it may hold)."""

    __slots__ = ("_depth", "_load")

    def __init__(self) -> None:
        self._load: dict[Instance, int] = {}
        self._depth: dict[Instance, int] = {}

    def __repr__(self) -> str:
        return f"<InstanceLoads load={list(self._load.values())}>"

    def __len__(self) -> int:
        return len(self._load)

    def add(self, instance: Instance) -> None:
        self._load[instance] = 0
        self._depth[instance] = 1

    def remove(self, instance: Instance) -> None:
        """Remove an instance. This and the following methods ignore instances that were removed before."""
        self._load.pop(instance, None)
        self._depth.pop(instance, None)

    def set_depth(self, instance: Instance, depth: int) -> None:
        if instance in self._depth:
            self._depth[instance] = depth

    def add_dispatch(self, instance: Instance) -> None:
        self._load[instance] += 1

    def remove_dispatch(self, instance: Instance) -> None:
        """Count a dispatch that an instance finished, or that was taken back."""
        if instance in self._load:
            self._load[instance] -= 1

    def dispatch_to_least_loaded(self) -> Instance | None:
        """Count a dispatch to the instance of least load, and return that; None if all are full."""
        found = self.least_loaded()
        if found is None:
            return None
        self._load[found[0]] = found[1] + 1
        return found[0]

    def least_loaded(self) -> tuple[Instance, int] | None:
        """The instance of least load among those below their depth, with its load; None if all are full."""
        best, least = None, sys.maxsize
        for instance, load in self._load.items():
            if load < least and load < self._depth[instance]:
                best, least = instance, load
                if not load:
                    break
        return None if best is None else (best, least)
