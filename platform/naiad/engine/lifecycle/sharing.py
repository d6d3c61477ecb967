"""Whether a request is better off in another process of the server than where it arrived. Pure."""

from __future__ import annotations

_MARGIN = 2  # a difference of so many requests for each instance is worth the way to another process and back


def is_better_elsewhere(own: int, own_instances: int, other: int, other_instances: int) -> bool:
    """Whether a request that finds all instances of its process busy is to go to another one.

    It goes to an idle instance. Where none is idle, it goes where the queue is much shorter: what passes between
    processes for nothing costs both of them more than a short wait.
    """
    if not other_instances:
        return False
    if not own_instances or other < other_instances:
        return True
    return own / own_instances > 1.5 * other / other_instances + _MARGIN
