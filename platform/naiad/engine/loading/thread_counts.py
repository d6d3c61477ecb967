"""How many threads the numeric libraries of each instance start."""

from __future__ import annotations

import os

__all__ = ["THREAD_VARIABLES", "threads_each"]

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
"""The variables that the usual libraries read."""


def threads_each(instances: int) -> str:
    """The number of threads that shares the cores among *instances*."""
    return str(max(1, (os.cpu_count() or 1) // instances))
