"""What went wrong with models in the last minutes: restarts of their processes, failed and rejected requests.

A model whose processes crash with each request is ready between two crashes. So the page shows what was counted
recently beside its state. Counts of five minutes, not rates with thresholds: an operator can check a count against the
log, and a threshold would hide the first crash of a new version. Five minutes are longer than a back-off.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from naiad.protocol.metadata import InstanceStatus, ModelStatistics

RECENT_SECONDS = 300.0
VersionKey = tuple[str, str, str]  # namespace, name and version of a model
_CANCELLED, _INVALID = "CANCELED", "invalid"  # caused by clients, which leave, or send what does not fit the model


@dataclass(frozen=True, slots=True, kw_only=True)
class Troubles:
    """Counts of one version."""

    restarts: int = 0  # processes that replaced one that had exited
    failed: int = 0  # requests that failed, those with an error of the model included, those of clients that left not
    rejected: int = 0  # requests that were rejected on arrival, apart from malformed ones

    def __bool__(self) -> bool:
        return bool(self.restarts or self.failed or self.rejected)

    def __add__(self, other: Troubles) -> Troubles:
        return Troubles(
            restarts=self.restarts + other.restarts,
            failed=self.failed + other.failed,
            rejected=self.rejected + other.rejected,
        )

    def since(self, before: Troubles) -> Troubles:
        """What was counted since *before*; a model that was loaded again counts from zero."""
        return Troubles(
            restarts=_since(self.restarts, before.restarts),
            failed=_since(self.failed, before.failed),
            rejected=_since(self.rejected, before.rejected),
        )


class RecentTroubles:
    """Remembers when the counts of versions grew.

    The first reading is what later ones are compared with.
    """

    def __init__(self, seconds: float = RECENT_SECONDS) -> None:
        self._seconds = seconds
        self._counted: Mapping[VersionKey, Troubles] | None = None
        self._changes: dict[VersionKey, deque[tuple[float, Troubles]]] = {}

    def add(self, now: float, counted: Mapping[VersionKey, Troubles]) -> None:
        """Add a reading: the counts of all loaded versions since they were loaded, at a time in seconds."""
        for key, counts in counted.items():
            if change := self._change(key, counts):
                self._changes.setdefault(key, deque()).append((now, change))
        self._counted = dict(counted)
        for key, changes in list(self._changes.items()):
            while changes and changes[0][0] <= now - self._seconds:
                changes.popleft()
            if not changes:
                del self._changes[key]

    def recent(self, key: VersionKey, now: float, counts: Troubles) -> Troubles:
        """What happened to a version in the last minutes, with its present *counts*."""
        whole = self._change(key, counts)
        for time, change in self._changes.get(key, ()):
            if time > now - self._seconds:
                whole += change
        return whole

    def _change(self, key: VersionKey, counts: Troubles) -> Troubles:
        if self._counted is None:
            return Troubles()
        return counts.since(self._counted.get(key, Troubles()))


def failed_count(statistics: ModelStatistics) -> int:
    """Requests that failed, or to which the model responded with an error."""
    return statistics.fail.count + statistics.error_responses


def rejected_count(statistics: ModelStatistics) -> int:
    """Requests that were rejected on arrival, apart from malformed ones."""
    return sum(number for reason, number in statistics.refusals.items() if reason != _INVALID)


def read_troubles(
    statistics: Iterable[ModelStatistics], instances: Iterable[InstanceStatus]
) -> dict[VersionKey, Troubles]:
    """The counts of all loaded versions since they were loaded."""
    restarts: Counter[VersionKey] = Counter()
    for each in instances:
        restarts[each.namespace, each.model, each.version] += sum(each.restarts.values())
    found = {}
    for counted in statistics:
        key = (counted.namespace, counted.name, counted.version)
        found[key] = Troubles(
            restarts=restarts[key],
            failed=failed_count(counted) - counted.failures.get(_CANCELLED, 0),
            rejected=rejected_count(counted),
        )
    return found


def _since(now: int, before: int) -> int:
    return now - before if now >= before else now
