"""Metrics of the model under test: kept for the test to look at, in place of a server's metrics page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from naiad_stub.exceptions import TritonModelException
from naiad_stub.metrics import MetricKind
from naiad_stub.queries import error_text
from naiad_stub.runtime import MetricStore


@dataclass(slots=True, eq=False)
class RecordedMetric:
    """One metric that a model created."""

    labels: dict[str, str]
    value: float = 0.0
    observed: list[float] = field(default_factory=list)  # values that a histogram was given, in order
    buckets: tuple[float, ...] = ()  # a histogram's upper bounds


@dataclass(slots=True, eq=False)
class RecordedFamily:
    """Metrics with one name."""

    name: str
    description: str
    kind: MetricKind
    metrics: list[RecordedMetric] = field(default_factory=list)
    holders: int = 0  # how many `MetricFamily` objects of the model are this family

    def find(self, **labels: str) -> RecordedMetric | None:
        """The metric of exactly these labels."""
        return next((metric for metric in self.metrics if metric.labels == labels), None)


class RecordedMetrics(MetricStore):
    """The metrics of one model. A server shows those of all models together; here each model has its own."""

    def __init__(self, model_name: str) -> None:
        self.instance_name = model_name
        self.families: dict[str, RecordedFamily] = {}

    def value_of(self, name: str, **labels: str) -> float | None:
        """The value of a counter or gauge; None if the model has none of that name and labels."""
        family = self.families.get(name)
        metric = family.find(**labels) if family is not None else None
        return metric.value if metric is not None else None

    def new_family(self, name: str, description: str, kind: MetricKind) -> RecordedFamily:
        family = self.families.setdefault(name, RecordedFamily(name, description, kind))
        if family.kind is not kind:
            text = error_text(self.instance_name, "Family name already exists with different type")
            raise TritonModelException(f"Error when creating MetricFamily: {text}")
        family.holders += 1
        return family

    def new_metric(self, family: RecordedFamily, labels: dict[str, str], buckets: list[float] | None) -> RecordedMetric:
        metric = family.find(**labels)
        if metric is None:
            metric = RecordedMetric(labels, buckets=tuple(buckets or ()))
            family.metrics.append(metric)
        return metric

    def drop_family(self, family: RecordedFamily) -> None:
        family.holders -= 1
        if not family.holders:
            self.families.pop(family.name, None)

    def increment(self, metric: RecordedMetric, value: float) -> None:
        metric.value += value

    def set(self, metric: RecordedMetric, value: float) -> None:
        metric.value = value

    def observe(self, metric: RecordedMetric, value: float) -> None:
        metric.observed.append(value)

    def observe_counts(self, metric: RecordedMetric, total: float, counts: Sequence[int]) -> None:  # noqa: ARG002 - each value counts
        """Record values that were counted elsewhere, each as the upper bound of its bucket."""
        for bound, count in zip((*metric.buckets, float("inf")), counts, strict=True):
            metric.observed += [bound] * count

    def value(self, metric: RecordedMetric) -> float:
        return metric.value
