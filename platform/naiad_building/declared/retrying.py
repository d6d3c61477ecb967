"""Repeating steps that failed for the network, with a growing pause."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from naiad.core import blocking
from naiad_building.network_failures import NetworkFailureError

__all__ = ["with_retries"]

_T = TypeVar("_T")
_PAUSES = (1.0, 2.0, 4.0)


def with_retries(
    step: Callable[[], _T], progress: Callable[[str], None], *, pause: Callable[[float], None] = blocking.pause
) -> _T:
    """The result of a step, which is repeated while it fails for the network.

    Raises:
        ExecutionEnvironmentError: The last failure, or the first one with another cause.
    """
    for number, seconds in enumerate(_PAUSES, 1):
        try:
            return step()
        except NetworkFailureError as error:
            attempt = f"attempt {number} of {len(_PAUSES) + 1}"
            progress(f"{attempt} failed, the next one is in {seconds:.0f} s: {error.cause}")
            pause(seconds)
    return step()
