"""Metrics that the program itself counts, beside those of its server and models."""

from __future__ import annotations

import threading
import weakref

from naiad.frontends.metrics.families import Family, MetricType, Sample
from naiad.inprocess.enums import MetricKind
from naiad.inprocess.errors import InvalidArgumentError, UnsupportedError

__all__ = ["Metric", "MetricFamily", "own_families"]

_Labels = tuple[tuple[str, str], ...]

_KINDS = {MetricKind.COUNTER: MetricType.COUNTER, MetricKind.GAUGE: MetricType.GAUGE}
_lock = threading.Lock()


class _Series:
    """One value; metrics of the same family and labels share it."""

    def __init__(self) -> None:
        self.value = 0.0


class _Known:
    """What families of one name share, for as long as there is one."""

    def __init__(self, kind: MetricKind, description: str) -> None:
        self.kind = kind
        self.description = description
        self.series: weakref.WeakValueDictionary[_Labels, _Series] = weakref.WeakValueDictionary()


_families: weakref.WeakValueDictionary[str, _Known] = weakref.WeakValueDictionary()


class MetricFamily:
    """Metrics of one name, shown by every server of this process for as long as the program holds one."""

    def __init__(self, kind: MetricKind, name: str, description: str) -> None:
        """Make a family, or take part in the one of that name.

        Raises:
            InvalidArgumentError: If there is one of that name and another kind.
        """
        with _lock:
            known = _families.get(name)
            if known is None:
                known = _families[name] = _Known(kind, description)
            elif known.kind is not kind:
                raise InvalidArgumentError("Family name already exists with different type")
        self._known = known
        self.name = name


class Metric:
    """One series of a family."""

    def __init__(self, family: MetricFamily, labels: dict[str, str] | None = None) -> None:
        """Make a series, or take part in the one of those labels."""
        self._family = family
        key = tuple(sorted((labels or {}).items()))
        known = family._known  # noqa: SLF001 - the two are one thing in two classes
        with _lock:
            series = known.series.get(key)
            if series is None:
                series = known.series[key] = _Series()
        self._series = series

    @property
    def kind(self) -> MetricKind:
        """What its value does."""
        return self._family._known.kind  # noqa: SLF001

    @property
    def value(self) -> float:
        """Its value."""
        return self._series.value

    def increment(self, value: float) -> None:
        """Add to its value.

        Raises:
            InvalidArgumentError: If it is a counter and the value negative.
        """
        if self.kind is MetricKind.COUNTER and value < 0:
            raise InvalidArgumentError(
                "TRITONSERVER_METRIC_KIND_COUNTER can only be incremented monotonically by non-negative values."
            )
        with _lock:
            self._series.value += value

    def set_value(self, value: float) -> None:
        """Set its value.

        Raises:
            UnsupportedError: If it is a counter.
        """
        if self.kind is MetricKind.COUNTER:
            raise UnsupportedError("TRITONSERVER_METRIC_KIND_COUNTER does not support Set")
        with _lock:
            self._series.value = value


def own_families() -> list[Family]:
    """What the program counts, as families of the metrics page."""
    with _lock:
        return [
            Family(
                name,
                known.description,
                _KINDS[known.kind],
                [Sample(dict(labels), series.value) for labels, series in known.series.items()],
            )
            for name, known in _families.items()
        ]
