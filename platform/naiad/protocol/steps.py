"""Work in steps: a generator that yields about once a millisecond and returns the result.

On the event loop, other work is done between the steps (`naiad.frontends.offload.slices`).
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")


def finish(steps: Generator[None, None, T]) -> T:
    """Do all steps at once; the result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
