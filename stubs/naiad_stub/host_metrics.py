"""A model's metrics, kept by the server: creating one is a query, changes are notifications with many changes each.

A change costs an entry in a queue. The next message of any kind takes the queue along. So a client that has a response
finds the changes of its request on the metrics page. If no message follows, a thread sends the queue within 50 ms.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections import deque
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from naiad_stub.exceptions import TritonModelException
from naiad_stub.messages import Notification, pack
from naiad_stub.metrics import MetricKind
from naiad_stub.primitives import allocate_lock, sleep, start_thread
from naiad_stub.queries import QueryError, ServerQueries
from naiad_stub.runtime import MetricStore

_MAX_DELAY_SECONDS = 0.05
_MAX_QUEUED = 4096
_ADD, _SET, _OBSERVE, _OBSERVE_COUNTS, _DROP = range(5)


class _Handle(NamedTuple):
    """A metric: its number for the host, and its bounds if it is a histogram."""

    number: int
    buckets: Tuple[float, ...]


class HostMetrics(MetricStore):
    """Keeps a model's metrics in the server."""

    def __init__(self, queries: ServerQueries) -> None:
        self.instance_name = queries.instance_name
        self._queries = queries
        self._channel = queries.channel
        self._last = 0
        self._lock = allocate_lock()
        self._changes: deque[Tuple[int, Any, Any]] = deque()
        self._is_due = False
        self._wake = allocate_lock()  # unlocked while there is something to send
        self._wake.acquire()
        self._has_thread = False

    def new_family(self, name: str, description: str, kind: MetricKind) -> int:
        """Have the server create a family."""
        number = self._next()
        fields = {"family": str(number), "name": name, "description": description, "kind": kind.name.lower()}
        self._query("metric.family", "Error when creating MetricFamily", fields)
        return number

    def new_metric(self, family: int, labels: Dict[str, str], buckets: Optional[List[float]]) -> _Handle:
        """Have the server create a metric; its buckets may be those that another instance gave it."""
        import json

        number = self._next()
        fields = {"family": str(family), "metric": str(number), "labels": json.dumps(labels)}
        if buckets is not None:
            fields["buckets"] = " ".join(map(repr, buckets))
        bounds = self._query("metric.new", "Error when creating Metric", fields)
        with self._lock:
            if not self._has_thread:
                self._has_thread = True
                start_thread(self._send_queued)
        return _Handle(number, tuple(map(float, bounds.split())))

    def drop_family(self, family: int) -> None:
        """Remove a family. Called by a finalizer."""
        self._change(_DROP, family, 0.0)

    def increment(self, metric: _Handle, value: float) -> None:
        """Add to a counter or gauge."""
        self._change(_ADD, metric, value)

    def set(self, metric: _Handle, value: float) -> None:
        """Set a gauge."""
        self._change(_SET, metric, value)

    def observe(self, metric: _Handle, value: float) -> None:
        """Count a value in a histogram."""
        self._change(_OBSERVE, metric, value)

    def observe_counts(self, metric: _Handle, total: float, counts: Sequence[int]) -> None:
        """Count values in a histogram that were counted elsewhere."""
        if len(counts) != len(metric.buckets) + 1:
            raise TritonModelException(
                f"Failed to observe metric value: {len(counts)} counts for {len(metric.buckets) + 1} buckets"
            )
        self._change(_OBSERVE_COUNTS, metric, (total, *counts))

    def value(self, metric: _Handle) -> float:
        """The value now."""
        return float(self._query("metric.value", "Failed to get metric value", {"metric": str(metric.number)}))

    def _next(self) -> int:
        with self._lock:
            self._last += 1
            return self._last

    def _query(self, subject: str, prefix: str, fields: Mapping[str, str]) -> str:
        try:
            return self._queries.send(subject, fields)
        except QueryError as error:
            raise TritonModelException(f"{prefix}: {error.message}") from None

    # -- changes --------------------------------------------------------------------------------------------------
    # Nothing here waits for a lock: finalizers call it, at any moment and between any two of these lines.

    def _change(self, action: int, metric: Any, value: Any) -> None:
        self._changes.append((action, metric, value))
        if not self._is_due:
            self._is_due = True
            self._channel.post_later(self._take)
            with contextlib.suppress(RuntimeError):  # the thread is awake already
                self._wake.release()
        elif len(self._changes) > _MAX_QUEUED:
            self._channel.flush()

    def _send_queued(self) -> None:
        while not self._channel.is_gone:
            self._wake.acquire()
            sleep(_MAX_DELAY_SECONDS)
            self._channel.flush()

    def _take(self) -> bytes:
        """The changes so far as a notification; called by the thread that sends on the channel."""
        self._is_due = False  # first: a change from now on must announce itself again
        changes = self._changes
        changed: Dict[str, List[Any]] = {}
        dropped: Dict[str, str] = {}
        for _ in range(len(changes)):
            action, metric, value = changes.popleft()
            if action == _DROP:
                dropped[f"drop {metric}"] = ""
            else:
                _MERGE[action](changed, metric, value)
        fields = {key: " ".join(map(repr, entry)) for key, entry in changed.items()}
        fields.update(dropped)  # last: a metric may have changed before it was removed
        return pack(Notification("metrics", fields)) if fields else b""


def _merge_add(changed: Dict[str, List[Any]], metric: _Handle, value: float) -> None:
    entry = changed.get(f"set {metric.number}")
    if entry is None:
        entry = changed.setdefault(f"add {metric.number}", [0.0])
    entry[0] += value


def _merge_set(changed: Dict[str, List[Any]], metric: _Handle, value: float) -> None:
    changed[f"set {metric.number}"] = [value]


def _merge_observation(changed: Dict[str, List[Any]], metric: _Handle, value: float) -> None:
    entry = changed.get(f"observe {metric.number}")
    if entry is None:
        entry = changed[f"observe {metric.number}"] = [0.0] + [0] * (len(metric.buckets) + 1)
    entry[0] += value
    entry[1 + bisect_left(metric.buckets, value)] += 1


def _merge_counts(changed: Dict[str, List[Any]], metric: _Handle, value: Sequence[Any]) -> None:
    entry = changed.setdefault(f"observe {metric.number}", [0.0] + [0] * (len(metric.buckets) + 1))
    entry[:] = [before + more for before, more in zip(entry, value)]


_MERGE: Mapping[int, Callable[[Dict[str, List[Any]], _Handle, Any], None]] = {
    _ADD: _merge_add,
    _SET: _merge_set,
    _OBSERVE: _merge_observation,
    _OBSERVE_COUNTS: _merge_counts,
}
