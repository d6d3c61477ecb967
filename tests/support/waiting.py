"""Waiting for a condition, with an end: on a thread, and on an event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_LONGEST_PAUSE_SECONDS = 0.04


class WaitedInVain(AssertionError):
    """The condition did not hold in time."""


def until(condition: Callable[[], T], what: str, timeout: float = 60) -> T:
    """Look every now and then until *condition* holds; what it returned then.

    Raises:
        WaitedInVain: If it does not hold in time; names *what* was waited for.
    """
    deadline = time.monotonic() + timeout
    pause = 0.005
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise _failure(what, timeout)
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
    return value


async def until_async(condition: Callable[[], T], what: str = "the condition", timeout: float = 60) -> T:
    """The same for a condition that changes on the running loop."""
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise _failure(what, timeout)
        await asyncio.sleep(0.001)
    return value


def _failure(what: str, timeout: float) -> WaitedInVain:
    return WaitedInVain(f"waited {timeout:g} s in vain for {what}")
