"""Metric families and Prometheus' text format for them.

prometheus_client renders too, but puts `_total` behind the names of counters, and the dashboards that exist for the
reference ask for its names, which have no such ending.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from naiad.protocol.metadata import ModelStatistics

_EXACT = 1e15


class Kind(enum.Enum):
    """Kind of a metric, as the text format spells it."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    SUMMARY = "summary"


@dataclass(frozen=True, slots=True)
class Sample:
    """One series' value.

    Attributes:
        labels: Its labels.
        value: Its value.
        suffix: What its name has behind the family's, as the series of histograms do.
    """

    labels: Mapping[str, str]
    value: float
    suffix: str = ""


@dataclass(frozen=True, slots=True)
class Family:
    """All series of one name.

    Attributes:
        name: The metric's name.
        help: What it counts, for people.
        kind: What its values are.
        samples: The series.
    """

    name: str
    help: str
    kind: Kind
    samples: list[Sample] = field(default_factory=list)


def render(families: Iterable[Family]) -> bytes:
    """The families in the text format (version 0.0.4); those without a series are left out, as in the reference."""
    lines: list[str] = []
    for family in _merged(families):
        lines.append(f"# HELP {family.name} {_escape_help(family.help)}\n")
        lines.append(f"# TYPE {family.name} {family.kind.value}\n")
        lines += (
            f"{family.name}{sample.suffix}{_labels(sample.labels)} {number(sample.value)}\n"
            for sample in family.samples
        )
    return "".join(lines).encode("utf-8", "replace")  # halves of surrogate pairs, in a model's texts


def number(value: float) -> str:
    """A value as the text format spells it, whole numbers without a point."""
    if isinstance(value, float):
        if math.isinf(value):
            return "+Inf" if value > 0 else "-Inf"
        if value.is_integer() and abs(value) < _EXACT:
            return str(int(value))
    return "NaN" if math.isnan(value) else str(value)


def model_labels(model: ModelStatistics, **more: str) -> dict[str, str]:
    """The labels of a model's series, sorted as in the reference."""
    tags = {f"_{name}": value for name, value in model.tags.items()}
    if model.namespace:
        tags["namespace"] = model.namespace
    return dict(sorted({**tags, "model": model.name, "version": model.version, **more}.items()))


def _merged(families: Iterable[Family]) -> list[Family]:
    """Those with series, each name once: a model may count under a name of the server's. The first kind wins."""
    merged: dict[str, Family] = {}
    for family in families:
        if not family.samples:
            continue
        known = merged.get(family.name)
        if known is None:
            merged[family.name] = family
        elif known.kind is family.kind:
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
