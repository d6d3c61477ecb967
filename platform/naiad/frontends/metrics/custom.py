"""The models' own metrics as families of the metrics page; histograms in the reference's order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate

from naiad.frontends.metrics.families import Family, Kind, Sample, number
from naiad.protocol.model_metrics import MetricKind, ModelMetric, ModelMetricFamily

_INFINITY = float("inf")


def custom_families(families: Iterable[ModelMetricFamily]) -> list[Family]:
    """What models count, one family each."""
    return [
        Family(family.name, family.description, Kind(family.kind.value), list(_samples(family))) for family in families
    ]


def _samples(family: ModelMetricFamily) -> Iterator[Sample]:
    for metric in family.metrics.values():
        if family.kind is MetricKind.HISTOGRAM:
            yield from _histogram(metric)
        else:
            yield Sample(dict(metric.labels), metric.value)


def _histogram(metric: ModelMetric) -> Iterator[Sample]:
    labels = dict(metric.labels)
    yield Sample(labels, sum(metric.counts), "_count")
    yield Sample(labels, metric.value, "_sum")
    bounds = (*metric.buckets, _INFINITY)
    for bound, count in zip(bounds, accumulate(metric.counts), strict=True):
        yield Sample({**labels, "le": number(bound)}, count, "_bucket")
