"""Metrics that models create for themselves, as the engine keeps them and frontends print them."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TypeAlias

Labels: TypeAlias = tuple[tuple[str, str], ...]  # names and values of a metric's labels, sorted by name


class MetricKind(enum.Enum):
    """Kinds of metrics. The values are the names that guests send."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(slots=True, eq=False)
class ModelMetric:
    """One series, or all series of one histogram."""

    labels: Labels
    value: float = 0.0  # value of a counter or gauge; the sum of a histogram's observations
    buckets: tuple[float, ...] = ()
    counts: list[int] = field(default_factory=list)  # between two bounds each; one more than *buckets*
    holders: int = 0  # number of guests' families that refer to it


@dataclass(slots=True, eq=False)
class ModelMetricFamily:
    """All metrics of one name."""

    name: str
    description: str
    kind: MetricKind
    metrics: dict[Labels, ModelMetric] = field(default_factory=dict)
    holders: int = 0  # number of guests' families that are this one
