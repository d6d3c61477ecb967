"""How a guest's metrics reach the server: creation is asked for, changes are told, many in one message.

A change costs an entry in a queue. The next message of any kind takes the queue along, so that whoever has read a
response finds what its request changed on the metrics page; where no message comes, a thread sends what is due.
"""

from __future__ import annotations

import contextlib
import threading
import time
from bisect import bisect_left
from collections import deque
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Tuple

from naiad_stub.exceptions import TritonModelException
from naiad_stub.messages import Notification, pack
from naiad_stub.metrics import MetricKind
from naiad_stub.queries import QueryError, ServerQueries
from naiad_stub.runtime import MetricStore

_LATEST_SECONDS = 0.05
_MOST_WAITING = 4096
_ADD, _SET, _OBSERVE, _DROP = range(4)


class _Handle(NamedTuple):
    """A metric as the host knows it."""

    number: int
    buckets: Tuple[float, ...]


class HostMetrics(MetricStore):
    """Keeps a model's metrics at the server."""

    def __init__(self, queries: ServerQueries) -> None:
        self.instance_name = queries.instance_name
        self._queries = queries
        self._channel = queries.channel
        self._last = 0
        self._lock = threading.Lock()
        self._changes: deque[Tuple[int, Any, float]] = deque()
        self._is_due = False
        self._wake = threading.Lock()  # free: there is something to send
        self._wake.acquire()
        self._thread: Optional[threading.Thread] = None

    def new_family(self, name: str, description: str, kind: MetricKind) -> int:
        """Have the server make a family."""
        number = self._next()
        fields = {"family": str(number), "name": name, "description": description, "kind": kind.name.lower()}
        self._query("metric.family", "Error when creating MetricFamily", fields)
        return number

    def new_metric(self, family: int, labels: Dict[str, str], buckets: Optional[List[float]]) -> _Handle:
        """Have the server make a metric, whose buckets may be those another instance gave it."""
        import json

        number = self._next()
        fields = {"family": str(family), "metric": str(number), "labels": json.dumps(labels)}
        if buckets is not None:
            fields["buckets"] = " ".join(map(repr, buckets))
        bounds = self._query("metric.new", "Error when creating Metric", fields)
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._send_what_is_due, name="naiad-metrics", daemon=True)
                self._thread.start()
        return _Handle(number, tuple(map(float, bounds.split())))

    def drop_family(self, family: int) -> None:
        """Forget a family. Called by a finalizer."""
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
    # Nothing here waits for a lock: finalizers come this way, at any moment and amid any of these lines.

    def _change(self, what: int, metric: Any, value: float) -> None:
        self._changes.append((what, metric, value))
        if not self._is_due:
            self._is_due = True
            self._channel.post_later(self._take)
            with contextlib.suppress(RuntimeError):  # it is awake already
                self._wake.release()
        elif len(self._changes) > _MOST_WAITING:
            self._channel.flush()

    def _send_what_is_due(self) -> None:
        while not self._channel.is_gone:
            self._wake.acquire()
            time.sleep(_LATEST_SECONDS)
            self._channel.flush()

    def _take(self) -> bytes:
        """What has changed, as a TELL; called while the channel sends, by whichever thread does."""
        self._is_due = False  # first: whatever comes from now on asks to be taken again
        changes = self._changes
        told: Dict[str, List[Any]] = {}
        dropped: Dict[str, str] = {}
        for _ in range(len(changes)):
            what, metric, value = changes.popleft()
            if what == _DROP:
                dropped[f"drop {metric}"] = ""
            else:
                _MERGE[what](told, metric, value)
        fields = {key: " ".join(map(repr, entry)) for key, entry in told.items()}
        fields.update(dropped)  # last: metrics change before they go
        return pack(Notification("metrics", fields)) if fields else b""


def _merge_add(told: Dict[str, List[Any]], metric: _Handle, value: float) -> None:
    entry = told.get(f"set {metric.number}")
    if entry is None:
        entry = told.setdefault(f"add {metric.number}", [0.0])
    entry[0] += value


def _merge_set(told: Dict[str, List[Any]], metric: _Handle, value: float) -> None:
    told[f"set {metric.number}"] = [value]


def _merge_observation(told: Dict[str, List[Any]], metric: _Handle, value: float) -> None:
    entry = told.get(f"observe {metric.number}")
    if entry is None:
        entry = told[f"observe {metric.number}"] = [0.0] + [0] * (len(metric.buckets) + 1)
    entry[0] += value
    entry[1 + bisect_left(metric.buckets, value)] += 1


_MERGE: Mapping[int, Callable[[Dict[str, List[Any]], _Handle, float], None]] = {
    _ADD: _merge_add,
    _SET: _merge_set,
    _OBSERVE: _merge_observation,
}
