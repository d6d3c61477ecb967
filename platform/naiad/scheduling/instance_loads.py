"""Which instances there are, and what each holds."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

__all__ = ["InstanceLoads"]

Instance = TypeVar("Instance", bound=Hashable)


class InstanceLoads(Generic[Instance]):
    """InstanceLoads with the number of dispatches each holds and may hold."""

    __slots__ = ("_depth", "_load")

    def __init__(self) -> None:
        self._load: dict[Instance, int] = {}
        self._depth: dict[Instance, int] = {}

    def __repr__(self) -> str:
        return f"<InstanceLoads load={list(self._load.values())}>"

    def add(self, instance: Instance) -> None:
        """Take up an instance that holds nothing."""
        self._load[instance] = 0
        self._depth[instance] = 1

    def remove(self, instance: Instance) -> None:
        """Forget an instance; harmless if it is not there, as all that follows."""
        self._load.pop(instance, None)
        self._depth.pop(instance, None)

    def set_depth(self, instance: Instance, depth: int) -> None:
        """How many dispatches it may hold."""
        if instance in self._depth:
            self._depth[instance] = depth

    def add_dispatch(self, instance: Instance) -> None:
        """It was given a dispatch."""
        self._load[instance] += 1

    def remove_dispatch(self, instance: Instance) -> None:
        """It finished a dispatch, or could not be given it."""
        if instance in self._load:
            self._load[instance] -= 1

    def least_loaded(self) -> tuple[Instance, int] | None:
        """The instance that holds least of those that may hold more, and what it holds."""
        best, least = None, 1 << 30
        for instance, load in self._load.items():
            if load < least and load < self._depth[instance]:
                best, least = instance, load
                if not load:
                    break
        return None if best is None else (best, least)
