"""Which configurations are tried: from the model's own, one step at a time, as long as a step makes it better.

The settings depend on each other little: more instances raise the rate until the processors are busy, larger batches
until the model gains no more from them, a delay only where batches are not full. So each is changed alone, to the next
value of its list, and all of them again until none helps. Two things would be missed that way. A larger batch may gain
only if it is waited for, so each is tried without and with a delay. And a delay that is too short gains nothing where a
longer one does, so all delays are tried. That makes ten to thirty of hundreds.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from naiad_operations.tune.objective import Limit, Measured

# A step upward has to raise the rate by this factor: measurements of a few seconds differ by a percent or two.
_BETTER = 1.03
# The delay with which larger batches are tried, too: long enough for clients that answer at once to send their next
# requests, and nobody waits for it where batches fill.
_PROBE_US = 5000
# A step to fewer instances, or to a shorter delay, may lose this much: an instance is a process with a copy of the
# model, and a delay is latency of requests that come alone.
_EQUAL = 0.99


class Candidate(NamedTuple):
    """A configuration; *batch* is 0 without the dynamic batcher."""

    instances: int
    batch: int
    delay_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """The values of each setting, in ascending order; a batch of 0 is no dynamic batching."""

    instances: Sequence[int]
    batches: Sequence[int]
    delays_us: Sequence[int]

    def neighbour(self, candidate: Candidate, setting: str, step: int) -> Candidate | None:
        """The candidate with the next value of a setting; None at the end of its list."""
        values = {"instances": self.instances, "batch": self.batches, "delay_us": self.delays_us}[setting]
        value = getattr(candidate, setting)
        if setting == "delay_us" and not candidate.batch:
            return None  # nothing waits for a batch
        beyond = [each for each in values if (each > value if step > 0 else each < value)]
        if not beyond:
            return None
        changed = candidate._replace(**{setting: min(beyond) if step > 0 else max(beyond)})
        return changed if changed.batch else changed._replace(delay_us=0)

    def variants(self, candidate: Candidate, setting: str) -> list[Candidate]:
        """What is tried for a step to a candidate: itself; for a batch without a delay, one with a delay, too."""
        probes = [delay for delay in self.delays_us if delay >= _PROBE_US][:1]
        if setting != "batch" or not candidate.batch or candidate.delay_us:
            return [candidate]
        return [candidate, *(candidate._replace(delay_us=delay) for delay in probes)]


def best_load(loads: Sequence[Measured], limits: Sequence[Limit]) -> Measured | None:
    """The load with the highest rate that keeps all limits; None if none does."""
    kept = [load for load in loads if load.excess(limits) <= 1]
    return max(kept, key=lambda load: load.rate, default=None)


def score(loads: Sequence[Measured], limits: Sequence[Limit]) -> float:
    """The highest rate within the limits; if no load keeps them, the share of a limit that it uses, below 0."""
    best = best_load(loads, limits)
    if best is not None:
        return best.rate
    return -min((load.excess(limits) for load in loads), default=float("inf"))


def search(start: Candidate, space: Space, most: int) -> Generator[Candidate, float, Candidate]:
    """Yields candidates, gets the score of each, and returns the best one."""
    scores = {start: (yield start)}
    best = start
    is_improved = True
    while is_improved:
        is_improved = False
        for setting in ("instances", "batch", "delay_us"):
            for step in (1, -1):
                place = best
                while (nearby := space.neighbour(place, setting, step)) is not None:
                    before = best
                    for each in space.variants(nearby, setting):
                        if each not in scores:
                            if len(scores) == most:
                                return best
                            scores[each] = yield each
                        is_smaller = setting != "batch" and step < 0
                        if _is_better(scores[each], scores[best], is_smaller=is_smaller):
                            best, is_improved = each, True
                    if best == before and setting != "delay_us":
                        break
                    place = nearby
    return best


def _is_better(new: float, old: float, *, is_smaller: bool) -> bool:
    if new <= 0 or old <= 0:  # one of them keeps no limit
        return new > old
    return new >= old * (_EQUAL if is_smaller else _BETTER)
