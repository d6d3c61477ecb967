"""Whether a model can only go on when one of its calls to other models is answered.

That is so if each of its threads waits for a call, or without a time limit for another thread. What a thread waits for
can be told from where it is only for the standard library's own ways of waiting; of every other thread it is assumed
that it will go on. So a model is never wrongly found to stand still, but not each one that does is found.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Container

_NEVER = (None, -1)


def is_reached(waiting: Container[int]) -> bool:
    """Whether every thread waits.

    Args:
        waiting: Threads that wait for calls, by their ids.
    """
    frames = sys._current_frames()  # noqa: SLF001 - documented, and the only way
    return all(thread in waiting or _is_parked(frame) for thread, frame in frames.items())


def _is_parked(frame: FrameType) -> bool:
    """Whether the thread whose innermost frame this is waits for another thread, however long."""
    module, function = frame.f_globals.get("__name__"), frame.f_code.co_name
    if module == "threading":
        # Condition.wait is what events, queues, futures, semaphores and barriers come down to.
        return function in {"wait", "join", "_wait_for_tstate_lock"} and frame.f_locals.get("timeout", 0) in _NEVER
    return module == "concurrent.futures.thread" and function == "_worker"  # a pool's thread without work
