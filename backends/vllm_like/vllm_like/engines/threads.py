"""The default number of an engine's threads: one core stays free for the server, clients and other models."""

from __future__ import annotations

import os


def available_cores() -> int:
    """Number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def default_count() -> int:
    """Available cores but one. An engine's threads wait for each other at each step, so one busy core delays all."""
    return max(1, available_cores() - 1)
