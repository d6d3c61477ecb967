"""Metrics that models define themselves (`pb_utils.MetricFamily`; Triton: custom metrics)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from naiad.frontends.metrics.families import Family, MetricType, Sample, histogram_samples
from naiad.protocol.model_metrics import MetricKind, ModelMetricFamily


def custom_families(families: Iterable[ModelMetricFamily]) -> list[Family]:
    """The families of all models' own metrics."""
    return [
        Family(family.name, family.description, MetricType(family.kind.value), list(_samples(family)))
        for family in families
    ]


def _samples(family: ModelMetricFamily) -> Iterator[Sample]:
    for metric in family.metrics.values():
        if family.kind is MetricKind.HISTOGRAM:
            yield from histogram_samples(dict(metric.labels), metric.counts, metric.value, metric.buckets)
        else:
            yield Sample(dict(metric.labels), metric.value)
