"""Limits that a guest sets for itself: on memory, and on privileges."""

from __future__ import annotations

import os
import sys
from typing import List, NoReturn, Optional

from naiad_stub.wire import MEMORY_LIMIT_STATUS

_PR_SET_DUMPABLE = 4
_PR_SET_NO_NEW_PRIVS = 38
_DEVICE_MODULES = frozenset(("cupy", "cupy_backends", "rmm"))
_limits: List[int] = []  # on memory; empty without one


def limit_memory(size: int) -> None:
    """Let this process, and each one it starts, allocate *size* bytes more than this process has now.

    The limit is on what a process may write to and shares with no other (RLIMIT_DATA of getrlimit(2)). Addresses that
    are only reserved, as CUDA does by the terabyte, and the two segments do not count.
    """
    import resource  # here: only guests with a memory limit need it

    with open("/proc/self/statm") as file:
        data = int(file.read().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (data + size, resource.RLIM_INFINITY))
    _limits.append(data + size)


def exit_if_out_of_memory(error: Optional[BaseException]) -> None:
    """Exit this process if *error*, which the model did not handle, says that the limit is reached."""
    if _limits and isinstance(error, MemoryError) and not is_device_full(error):
        _exit_with(error)


def is_device_full(error: BaseException) -> bool:
    """Whether *error* says that a GPU has too little free memory: torch's, CuPy's, JAX's, RMM's or the driver's.

    CuPy's and RMM's are MemoryErrors, torch's and JAX's RuntimeErrors.
    """
    kind = type(error)
    if isinstance(error, MemoryError):
        return kind.__module__.partition(".")[0] in _DEVICE_MODULES or "cuda" in str(error).lower()
    if kind.__name__ == "OutOfMemoryError":
        return True
    text = str(error)
    return "RESOURCE_EXHAUSTED" in text or "CUDA out of memory" in text or "CUDA_ERROR_OUT_OF_MEMORY" in text


def _exit_with(error: MemoryError) -> NoReturn:
    import traceback

    traceback.print_exception(type(error), error, error.__traceback__)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(MEMORY_LIMIT_STATUS)


def forbid_new_privileges() -> None:
    """Keep this process and those it starts from gaining privileges by programs such as sudo (prctl(2))."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def set_inspectable(*, is_inspectable: bool) -> None:
    """Let other processes of this user read and trace this one, or not (PR_SET_DUMPABLE of prctl(2)).

    If not, they cannot open its memory, variables and descriptors in /proc, and its own files there belong to root. It
    writes no core dumps then. Forked processes inherit it; other programs that it starts do not.
    """
    _prctl(_PR_SET_DUMPABLE, int(is_inspectable))


def _prctl(option: int, value: int) -> None:
    import ctypes

    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
