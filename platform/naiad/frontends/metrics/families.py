"""Metric families and Prometheus' text format for them.

prometheus_client is not used because it appends `_total` to the names of counters. The reference's names, which
existing dashboards query, have no such suffix.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TypeAlias

from naiad.protocol.metadata import ModelStatistics

_MAX_INTEGER = 1e15  # bound below which a float represents each integer exactly (2**53), with a margin


class MetricType(enum.Enum):
    """Type of a metric, as spelled in the text format."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    SUMMARY = "summary"


@dataclass(frozen=True, slots=True)
class Sample:
    """The value of one series."""

    labels: Mapping[str, str]
    value: float
    suffix: str = ""  # appended to the family's name, such as `_count` for a histogram


@dataclass(frozen=True, slots=True)
class Family:
    """All series of one name."""

    name: str
    help: str
    type: MetricType
    samples: list[Sample] = field(default_factory=list)


Collector: TypeAlias = Callable[[], Iterable[Family]]  # returns families at the time of a scrape


def single_gauge(name: str, text: str, value: float) -> Family:
    """A gauge with one series and no labels."""
    return gauge(name, text, [Sample({}, value)])


def gauge(name: str, text: str, samples: list[Sample]) -> Family:
    """A value that rises and falls."""
    return Family(name, text, MetricType.GAUGE, samples)


def counter(name: str, text: str, samples: list[Sample]) -> Family:
    """A value that only grows."""
    return Family(name, text, MetricType.COUNTER, samples)


def histogram_samples(
    labels: Mapping[str, str], counts: Sequence[int], total: float, bounds: Sequence[float]
) -> Iterator[Sample]:
    """The series of one histogram in the reference's order; *counts* are not cumulated, the last has no upper bound."""
    yield Sample(labels, sum(counts), "_count")
    yield Sample(labels, total, "_sum")
    for bound, count in zip((*bounds, math.inf), accumulate(counts), strict=True):
        yield Sample({**labels, "le": number(bound)}, count, "_bucket")


def render(families: Iterable[Family]) -> bytes:
    """The families in the text format (version 0.0.4); families without series are omitted, as in the reference."""
    lines: list[str] = []
    for family in _merge(families):
        lines.append(f"# HELP {family.name} {_escape_help(family.help)}\n")
        lines.append(f"# TYPE {family.name} {family.type.value}\n")
        lines += (
            f"{family.name}{sample.suffix}{_labels(sample.labels)} {number(sample.value)}\n"
            for sample in family.samples
        )
    return "".join(lines).encode("utf-8", "replace")  # a model's label may hold lone surrogates


def number(value: float) -> str:
    """A value as spelled in the text format; whole numbers have no decimal point."""
    if isinstance(value, float):
        if math.isinf(value):
            return "+Inf" if value > 0 else "-Inf"
        if value.is_integer() and abs(value) < _MAX_INTEGER:
            return str(int(value))
    return "NaN" if math.isnan(value) else str(value)


def model_labels(model: ModelStatistics, **extra: str) -> dict[str, str]:
    """The labels of a model's series, sorted by name as in the reference."""
    tags = {f"_{name}": value for name, value in model.tags.items()}
    if model.namespace:
        tags["namespace"] = model.namespace
    return dict(sorted({**tags, "model": model.name, "version": model.version, **extra}.items()))


def _merge(families: Iterable[Family]) -> list[Family]:
    """The families that have series, one for each name.

    A model may define a metric with a name of the server's. Its series are added if the types agree, else dropped.
    """
    merged: dict[str, Family] = {}
    for family in families:
        if not family.samples:
            continue
        known = merged.get(family.name)
        if known is None:
            merged[family.name] = family
        elif known.type is family.type:
            merged[family.name] = replace(known, samples=known.samples + family.samples)
    return list(merged.values())


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    pairs = ",".join(f'{name}="{_escape_value(value)}"' for name, value in labels.items())
    return f"{{{pairs}}}"


def _escape_help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _escape_value(text: str) -> str:
    return _escape_help(text).replace('"', '\\"')
