"""Requests as schedulers see them."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

MS = 1_000_000


@dataclass(eq=False)
class Request:
    """A request with a name; equal to itself alone."""

    name: object
    batch_size: int = 1
    shape_key: Hashable | None = None
    priority: int = 0
    timeout_us: int = 0
    correlation_id: int | str = 0
    flags: int = 0

    @property
    def prefix(self) -> str:
        return f"[request id: {self.name}] "

    def __repr__(self) -> str:
        return f"<{self.name}>"


def names(action):
    """The names of the requests of a dispatch."""
    return [item.name for item in action.items]
