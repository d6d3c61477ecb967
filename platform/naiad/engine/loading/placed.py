"""Where the instances of all loaded models are, for the placement of the next one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Protocol

__all__ = ["PlacedVersions"]


class Placed(Protocol):
    """A version that is loaded, or being loaded."""

    @property
    def number(self) -> int:
        """Number of its load."""

    @property
    def version(self) -> int:
        """Its version number."""

    @property
    def places(self) -> Mapping[str, int]:
        """The process of each of its instances, by name."""


class PlacedVersions:
    """All versions that have instances."""

    def __init__(self) -> None:
        self._versions: dict[int, tuple[str, Placed]] = {}  # by number of the load, with the model's key

    def add(self, key: str, version: Placed) -> None:
        """A version of the model *key* is being loaded."""
        self._versions[version.number] = key, version

    def remove(self, number: int) -> None:
        """A version has ended."""
        self._versions.pop(number, None)

    def busy(self, key: str) -> Mapping[int, int]:
        """How many instances of other models than *key* each process has."""
        others = [each for model, each in self._versions.values() if model != key]
        return Counter(process for each in others for process in each.places.values())

    def before(self, key: str, version: int) -> Mapping[str, int]:
        """Where the instances of the latest load of a model's version are; empty if there is none."""
        loads = [number for number, (model, each) in self._versions.items() if (model, each.version) == (key, version)]
        return self._versions[max(loads)][1].places if loads else {}
