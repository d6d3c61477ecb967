"""The targets of a model with their breakers: which one gets a call, and what its end means for the next calls."""

from __future__ import annotations

import threading
import zlib
from typing import Callable, Collection, List, Optional, Sequence, Set, Tuple, Union

from naiad_remote.breaker import Breaker, BreakerState
from naiad_remote.errors import CallError, Cause


class Router:
    """Used by many threads."""

    def __init__(
        self,
        names: Sequence[str],  # for errors
        weights: Sequence[float],
        breakers: Sequence[Breaker],
        clock: Callable[[], float],  # seconds; monotonic
        random: Callable[[], float],  # at least 0 and less than 1
        # Called before all others, while their breakers admit calls; sequences do not prefer them.
        near: Collection[int] = (),
    ) -> None:
        self._names = names
        self._near = near
        self._weights = weights
        self._breakers = breakers
        self._clock = clock
        self._random = random
        self._reasons: List[str] = [""] * len(names)
        self._lock = threading.Lock()

    def pick(self, tried: Set[int], sequence: Union[int, str, None] = None) -> Tuple[int, bool]:
        """A target, and whether the call is the probe of its breaker; CallError if no breaker admits a call."""
        with self._lock:
            now = self._clock()
            admitted = [index for index, breaker in enumerate(self._breakers) if breaker.can_call(now)]
            index: Optional[int]
            if sequence is None:
                near = [each for each in admitted if each in self._near and each not in tried]
                index = choose(self._weights, near or admitted, tried, self._random())
            else:
                index = choose_for_sequence(self._weights, sequence)
                if index not in admitted:
                    raise self._refusal([index], now)
            if index is None:
                raise self._refusal([each for each, weight in enumerate(self._weights) if weight > 0], now)
            return index, self._breakers[index].begin()

    def on_end(self, index: int, error: Optional[CallError], *, is_probe: bool) -> BreakerState:
        """A call ended, with *error* if it failed; return the state of the target's breaker."""
        with self._lock:
            breaker, now = self._breakers[index], self._clock()
            if error is not None and error.is_unhealthy:
                self._reasons[index] = error.text
                breaker.on_failure(now, is_probe=is_probe)
            elif error is not None and error.is_neutral:
                breaker.on_neutral(is_probe=is_probe)
            else:
                breaker.on_success(is_probe=is_probe)
            return breaker.state(now)

    def state(self, index: int) -> BreakerState:
        with self._lock:
            return self._breakers[index].state(self._clock())

    def is_ready(self) -> bool:
        """Whether a target may be called: a breaker is closed, or its pause is over."""
        with self._lock:
            now = self._clock()
            return any(
                weight > 0 and breaker.state(now) is not BreakerState.OPEN
                for weight, breaker in zip(self._weights, self._breakers)
            )

    def _refusal(self, indices: Sequence[int], now: float) -> CallError:
        about = [
            f"{self._names[index]} is next called in {self._breakers[index].wait_seconds(now):.1f} s, after "
            f"{self._breakers[index].count} failures, the last: {self._reasons[index]}"
            for index in indices
        ]
        text = f"cannot call a remote model: the circuit breaker of each of its targets is open: {'; '.join(about)}"
        return CallError(Cause.BLOCKED, text)


def choose(weights: Sequence[float], admitted: Collection[int], tried: Collection[int], number: float) -> Optional[int]:
    """The index of a target; None if no target can be called.

    Each target gets a share of the numbers from 0 to 1 in proportion to its weight; *number* is below 1. Breakers of
    *admitted* targets admit a call. Those *tried* for this request are chosen again only if no other one is left.
    """
    usable = [index for index in sorted(admitted) if weights[index] > 0]
    usable = [index for index in usable if index not in tried] or usable
    return _pick(weights, usable, number) if usable else None


def choose_for_sequence(weights: Sequence[float], correlation: Union[int, str]) -> int:
    """The target of all requests of a sequence: its state is there, so breakers do not change it."""
    usable = [index for index, weight in enumerate(weights) if weight > 0]
    # Not `hash`, which differs between the processes of instances.
    return _pick(weights, usable, zlib.crc32(str(correlation).encode()) / 2**32)


def _pick(weights: Sequence[float], usable: List[int], number: float) -> int:
    rest = number * sum(weights[index] for index in usable)
    for index in usable:
        rest -= weights[index]
        if rest < 0:
            return index
    return usable[-1]  # sums of floats may differ in their last bit
