"""Which target gets a call: pure functions of weights and a random number."""

from __future__ import annotations

import zlib
from typing import Collection, List, Optional, Sequence, Union


def choose(weights: Sequence[float], admitted: Collection[int], tried: Collection[int], number: float) -> Optional[int]:
    """The index of a target; None if no target can be called.

    Each target gets a share of the numbers from 0 to 1 in proportion to its weight; *number* is below 1. Breakers of
    *admitted* targets admit a call. Those *tried* for this request are chosen again only if no other one is left.
    """
    usable = [index for index in sorted(admitted) if weights[index] > 0]
    usable = [index for index in usable if index not in tried] or usable
    return _pick(weights, usable, number) if usable else None


def choose_for_sequence(weights: Sequence[float], correlation: Union[int, str]) -> int:
    """The target of all requests of a sequence: its state is there, so breakers do not change it."""
    usable = [index for index, weight in enumerate(weights) if weight > 0]
    # Not `hash`, which differs between the processes of instances.
    return _pick(weights, usable, zlib.crc32(str(correlation).encode()) / 2**32)


def _pick(weights: Sequence[float], usable: List[int], number: float) -> int:
    rest = number * sum(weights[index] for index in usable)
    for index in usable:
        rest -= weights[index]
        if rest < 0:
            return index
    return usable[-1]  # sums of floats may differ in their last bit
