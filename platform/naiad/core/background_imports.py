"""Imports on a thread while the event loop runs: what is needed soon, and would hold up the loop for 100 ms."""

from __future__ import annotations

import asyncio
import sys
from importlib import import_module


async def import_in_background(name: str) -> None:
    """Import the module *name* on a thread."""
    await asyncio.to_thread(_import, name)


def _import(name: str) -> None:
    # An importing thread gives up the interpreter lock after the switch interval, 5 ms by default. The loop would wait
    # that long before each of its callbacks.
    interval = sys.getswitchinterval()
    sys.setswitchinterval(0.0005)
    try:
        import_module(name)
    finally:
        sys.setswitchinterval(interval)
