"""How many threads the numeric libraries of each instance start."""

from __future__ import annotations

from naiad_stub.process_limits import usable_processors

__all__ = ["THREAD_VARIABLES", "threads_each"]

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
"""The variables that the usual libraries read."""


def threads_each(instances: int) -> str:
    """The number of threads that shares the processors of this server among *instances*."""
    return str(max(1, usable_processors() // instances))
