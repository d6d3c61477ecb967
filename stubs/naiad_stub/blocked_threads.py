"""Whether every thread of a model is blocked, so that only results of its calls to other models can resume it.

The host asks when calls have waited for a while (BLOCKED_QUERY), to find deadlocks between models. A thread is blocked
if it waits for the result of a call, or waits without a timeout for another thread. Python does not record what a
thread waits for; the only source is the thread's innermost frame. `sys._current_frames` gives those of all threads, and
`threading`'s own waiting functions are recognised by their module and name. Whether such a wait has a timeout is in the
local variable `timeout` of that frame. The alternatives are worse: patching `threading` would slow down every
wait of a model, and a timeout instead of a look would call slow models deadlocked.

A thread in any other function counts as running. So a model is never wrongly found blocked, but a deadlock through
other waits (a bare lock, a C library) is not found.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Container

_NO_TIMEOUT = (None, -1)


def are_all_blocked(waiting: Container[int]) -> bool:
    """Whether every thread of this process is blocked.

    Args:
        waiting: Ids of the threads that wait for the result of a call.
    """
    frames = sys._current_frames()
    return all(thread in waiting or _is_blocked(frame) for thread, frame in frames.items())


def _is_blocked(frame: FrameType) -> bool:
    """Whether the thread with this innermost frame waits for another thread, without a timeout."""
    module, function = frame.f_globals.get("__name__"), frame.f_code.co_name
    if module == "threading":
        # Events, queues, futures, semaphores and barriers all wait in Condition.wait.
        return function in {"wait", "join", "_wait_for_tstate_lock"} and frame.f_locals.get("timeout", 0) in _NO_TIMEOUT
    return module == "concurrent.futures.thread" and function == "_worker"  # an idle thread of a pool
