"""How many threads an engine takes unless it is told: one core is left to the server, clients and other models."""

from __future__ import annotations

import os


def cores() -> int:
    """Cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def default() -> int:
    """Threads that leave the machine usable: an engine whose threads wait for each other stalls on a busy core."""
    return max(1, cores() - 1)
