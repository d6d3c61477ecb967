"""Metrics of the model under test: kept here, in place of a server's page, for the test to look at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from naiad_stub.asking import refusal
from naiad_stub.exceptions import TritonModelException
from naiad_stub.metrics import MetricKind, Metrics


@dataclass(slots=True, eq=False)
class Metric:
    """One metric that a model made.

    Attributes:
        labels: Its labels.
        value: Of a counter or gauge.
        observed: What a histogram was given, in its order.
        buckets: A histogram's upper bounds.
    """

    labels: dict[str, str]
    value: float = 0.0
    observed: list[float] = field(default_factory=list)
    buckets: tuple[float, ...] = ()


@dataclass(slots=True, eq=False)
class Family:
    """Metrics of one name.

    Attributes:
        name: Their name.
        description: What the model said they are.
        kind: Their kind.
        metrics: Them, in the order in which they were made.
        holders: How many of the model's objects are this family.
    """

    name: str
    description: str
    kind: MetricKind
    metrics: list[Metric] = field(default_factory=list)
    holders: int = 0

    def find(self, **labels: str) -> Metric | None:
        """The metric of exactly these labels."""
        return next((metric for metric in self.metrics if metric.labels == labels), None)


class MetricDesk:
    """One model's metrics. In a server those of all models meet; here each model has its own.

    Attributes:
        families: The families that the model holds, by name.
    """

    def __init__(self, model_name: str) -> None:
        self.model_name = model_name
        self.families: dict[str, Family] = {}

    def value_of(self, name: str, **labels: str) -> float | None:
        """The value of a counter or gauge; None if the model has none of that name and labels."""
        family = self.families.get(name)
        metric = family.find(**labels) if family is not None else None
        return metric.value if metric is not None else None


class MetricHook(Metrics):
    """What the stub's hook is led to.

    Args:
        desk_of: Returns the desk of the model at work, None if there is none.
    """

    def __init__(self, desk_of: Callable[[], MetricDesk | None]) -> None:
        self._desk_of = desk_of

    @property
    def instance_name(self) -> str:  # type: ignore[override]
        """The model at work, for errors."""
        desk = self._desk_of()
        return desk.model_name if desk is not None else ""

    def new_family(self, name: str, description: str, kind: MetricKind) -> tuple[MetricDesk, Family]:
        """Make a family, or find that of the name.

        Raises:
            TritonModelException: If there is one of another kind.
        """
        desk = self._desk_of()
        if desk is None:
            raise TritonModelException("metrics can only be made while a model is under test")
        family = desk.families.setdefault(name, Family(name, description, kind))
        if family.kind is not kind:
            text = refusal(desk.model_name, "Family name already exists with different type")
            raise TritonModelException(f"Error when creating MetricFamily: {text}")
        family.holders += 1
        return desk, family

    def new_metric(
        self, family: tuple[MetricDesk, Family], labels: dict[str, str], buckets: list[float] | None
    ) -> Metric:
        """Make a metric, or find that of the labels."""
        metric = family[1].find(**labels)
        if metric is None:
            metric = Metric(labels, buckets=tuple(buckets or ()))
            family[1].metrics.append(metric)
        return metric

    def drop_family(self, family: tuple[MetricDesk, Family]) -> None:
        """Forget a family that its model holds no more."""
        family[1].holders -= 1
        if not family[1].holders:
            family[0].families.pop(family[1].name, None)

    def increment(self, metric: Metric, value: float) -> None:
        """Add to a counter or gauge."""
        metric.value += value

    def set(self, metric: Metric, value: float) -> None:
        """Set a gauge."""
        metric.value = value

    def observe(self, metric: Metric, value: float) -> None:
        """Note a value."""
        metric.observed.append(value)

    def value(self, metric: Metric) -> float:
        """The value of a counter or gauge."""
        return metric.value
