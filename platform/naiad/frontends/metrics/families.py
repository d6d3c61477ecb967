"""Metric families and Prometheus' text format for them.

prometheus_client renders too, but puts `_total` behind the names of counters, and the dashboards that exist for the
reference ask for its names, which have no such ending.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


class Kind(enum.Enum):
    """Kind of a metric, as the text format spells it."""

    COUNTER = "counter"
    GAUGE = "gauge"


@dataclass(frozen=True, slots=True)
class Sample:
    """One series' value."""

    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class Family:
    """All series of one name.

    Attributes:
        name: The metric's name.
        help: What it counts, for people.
        kind: Counter or gauge.
        samples: The series.
    """

    name: str
    help: str
    kind: Kind
    samples: list[Sample] = field(default_factory=list)


def render(families: Iterable[Family]) -> bytes:
    """The families in the text format (version 0.0.4); those without a series are left out, as in the reference."""
    lines: list[str] = []
    for family in families:
        if not family.samples:
            continue
        lines.append(f"# HELP {family.name} {_escape_help(family.help)}\n")
        lines.append(f"# TYPE {family.name} {family.kind.value}\n")
        lines += (f"{family.name}{_labels(sample.labels)} {sample.value}\n" for sample in family.samples)
    return "".join(lines).encode()


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    pairs = ",".join(f'{name}="{_escape_value(value)}"' for name, value in labels.items())
    return f"{{{pairs}}}"


def _escape_help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _escape_value(text: str) -> str:
    return _escape_help(text).replace('"', '\\"')
