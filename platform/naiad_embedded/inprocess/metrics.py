"""Metrics of the program itself, in addition to those of its servers and models.

Families of one name share their series, as do metrics of one family with equal labels: with the reference's API, every
place that counts creates its own objects. The registries hold weak references, so a family disappears from the metrics
page when the program drops its last reference to it.
"""

from __future__ import annotations

import threading
import weakref

from naiad.frontends.metrics.families import Family, MetricType, Sample
from naiad_embedded.inprocess.enums import MetricKind
from naiad_embedded.inprocess.errors import InvalidArgumentError, UnsupportedError

_Labels = tuple[tuple[str, str], ...]

_KINDS = {MetricKind.COUNTER: MetricType.COUNTER, MetricKind.GAUGE: MetricType.GAUGE}
_lock = threading.Lock()


class _Series:
    """The value that all `Metric` objects with the same family and labels share."""

    def __init__(self) -> None:
        self.value = 0.0


class _SharedFamily:
    """The state that all `MetricFamily` objects of one name share."""

    def __init__(self, kind: MetricKind, description: str) -> None:
        self.kind = kind
        self.description = description
        self.series: weakref.WeakValueDictionary[_Labels, _Series] = weakref.WeakValueDictionary()


_families: weakref.WeakValueDictionary[str, _SharedFamily] = weakref.WeakValueDictionary()


class MetricFamily:
    """Metrics of one name; the metrics pages of all servers of this process show them."""

    def __init__(self, kind: MetricKind, name: str, description: str) -> None:
        """Create the family, or share the existing one of this name.

        Raises:
            InvalidArgumentError: If a family of this name has another kind.
        """
        with _lock:
            shared = _families.get(name)
            if shared is None:
                shared = _families[name] = _SharedFamily(kind, description)
            elif shared.kind is not kind:
                raise InvalidArgumentError("Family name already exists with different type")
        self._shared = shared
        self.name = name


class Metric:
    """One series of a family."""

    def __init__(self, family: MetricFamily, labels: dict[str, str] | None = None) -> None:
        """Create the series, or share the existing one with these labels."""
        self._family = family
        key = tuple(sorted((labels or {}).items()))
        shared = family._shared  # noqa: SLF001 - this module's own class
        with _lock:
            series = shared.series.get(key)
            if series is None:
                series = shared.series[key] = _Series()
        self._series = series

    @property
    def kind(self) -> MetricKind:
        """The kind: a counter or a gauge."""
        return self._family._shared.kind  # noqa: SLF001 - this module's own class

    @property
    def value(self) -> float:
        """The current value."""
        return self._series.value

    def increment(self, value: float) -> None:
        """Add to the value.

        Raises:
            InvalidArgumentError: If the metric is a counter and *value* is negative.
        """
        if self.kind is MetricKind.COUNTER and value < 0:
            raise InvalidArgumentError(
                "TRITONSERVER_METRIC_KIND_COUNTER can only be incremented monotonically by non-negative values."
            )
        with _lock:
            self._series.value += value

    def set_value(self, value: float) -> None:
        """Set the value.

        Raises:
            UnsupportedError: If the metric is a counter.
        """
        if self.kind is MetricKind.COUNTER:
            raise UnsupportedError("TRITONSERVER_METRIC_KIND_COUNTER does not support Set")
        with _lock:
            self._series.value = value


def program_families() -> list[Family]:
    """The program's metrics, as families of the metrics page."""
    with _lock:
        return [
            Family(
                name,
                shared.description,
                _KINDS[shared.kind],
                [Sample(dict(labels), series.value) for labels, series in shared.series.items()],
            )
            for name, shared in _families.items()
        ]
