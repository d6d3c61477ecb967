"""Which models that came on demand are unloaded, and when a failed load is tried again. Pure: the clock is given.

A model leaves for one of two causes: it had no request for its idle time, or another model needs its memory. In the
second case the least recently used model leaves first. A model in use, and a pinned one, never leaves.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

_LOADS_AHEAD = 4
_LARGEST_HEADROOM = 0.05
_FIRST_RETRY = 1.0
_LONGEST_RETRY = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInMemory:
    """A model with guests."""

    key: str
    size: int
    last_used: float  # when it was used last, in seconds of the clock that the decisions get
    idle_seconds: float = 0.0  # for how long it may be idle; 0 for any time
    is_pinned: bool = False
    is_in_use: bool = False

    @property
    def is_evictable(self) -> bool:
        return not (self.is_pinned or self.is_in_use)


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What to do for more room."""

    evict: tuple[str, ...] = ()
    is_enough: bool = True  # whether the limit holds afterwards
    spare: int = 0  # bytes that would be left for on-demand models if all of them were unloaded


def idle_models(models: Iterable[ModelInMemory], now: float) -> list[str]:
    """The models to unload at *now* because they were not used for their idle time."""
    return [
        model.key
        for model in models
        if model.is_evictable and model.idle_seconds and now - model.last_used >= model.idle_seconds
    ]


def plan_room(models: Iterable[ModelInMemory], *, limit: int, needed: int = 0) -> Room:
    """Choose the models to unload so that *needed* more bytes fit into *limit*.

    No more models are unloaded than needed. If unloading all idle ones is not enough, the load must wait for those in
    use; the idle ones are unloaded meanwhile, since their memory will be needed then.
    """
    every = list(models)
    excess = sum(model.size for model in every) + needed - limit
    evict: list[str] = []
    for model in sorted((each for each in every if each.is_evictable), key=lambda each: each.last_used):
        if excess <= 0:
            break
        evict.append(model.key)
        excess -= model.size
    spare = limit - sum(model.size for model in every if model.is_pinned)
    return Room(evict=tuple(evict), is_enough=excess <= 0, spare=spare)


def expected_size(own: int, measured: Iterable[int]) -> int:
    """Bytes that a model about to be loaded will need; *own* is what it needed last, 0 if it never was loaded."""
    if own:
        return own
    sizes = [size for size in measured if size]
    return int(median(sizes)) if sizes else 0


def headroom(limit: int, measured: Iterable[int]) -> int:
    """Bytes to keep free, so that the next loads need not wait for other models to end.

    Only where models are small: for large ones, keeping room would cost a loaded model.
    """
    wanted = _LOADS_AHEAD * expected_size(0, measured)
    return wanted if wanted <= limit * _LARGEST_HEADROOM else 0


def retry_delay(failures: int) -> float:
    """Seconds until a load that failed *failures* times in a row may be tried again: 1, 2, 4 and so on up to 60."""
    return float(min(_FIRST_RETRY * 2 ** min(failures - 1, 16), _LONGEST_RETRY))
