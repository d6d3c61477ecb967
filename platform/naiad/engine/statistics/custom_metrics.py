"""Metrics that models create for themselves: one registry for all guests.

Metrics of the same name, kind and labels in several guests are one metric. A guest refers to its families and metrics
by its own numbers. Families and metrics are reference counted: each is removed when the last guest that refers to it
drops it or exits. Texts are the reference's (PB src/metric_family.cc, CORE src/metric_family.cc).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from naiad.core.errors import InvalidRequestError, NaiadError, ProtocolError
from naiad.core.foreign_json import read_json
from naiad.engine.calls.services import ModelServices
from naiad.guests.worker import Worker
from naiad.protocol.model_metrics import Labels, MetricKind, ModelMetric, ModelMetricFamily


@dataclass(slots=True)
class _GuestFamily:
    """A family that one guest refers to, with the guest's numbers of its metrics."""

    family: ModelMetricFamily
    metrics: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Guest:
    families: dict[str, _GuestFamily] = field(default_factory=dict)
    metrics: dict[str, ModelMetric] = field(default_factory=dict)


class ModelMetrics:
    """The registry.

    Models may create metrics even if the metrics port is disabled, as in the reference.
    """

    def __init__(self, services: ModelServices) -> None:
        self._families: dict[str, ModelMetricFamily] = {}
        self._guests: defaultdict[Worker, _Guest] = defaultdict(_Guest)
        services.query_handlers["metric.family"] = self._make_family
        services.query_handlers["metric.new"] = self._make_metric
        services.query_handlers["metric.value"] = self._reply_value
        services.notification_handlers["metrics"] = self._on_change
        services.exit_handlers.append(self._on_worker_exit)

    def __iter__(self) -> Iterator[ModelMetricFamily]:
        return iter(self._families.values())

    def _make_family(self, worker: Worker, number: int, fields: Mapping[str, str]) -> None:
        own, name, description, kind = (_field(fields, key) for key in ("family", "name", "description", "kind"))
        try:
            wanted = MetricKind(kind)
        except ValueError as error:
            raise InvalidRequestError("Unknown metric kind") from error
        family = self._families.get(name)
        if family is None:
            family = self._families[name] = ModelMetricFamily(name, description, wanted)
        elif family.kind is not wanted:
            raise InvalidRequestError("Family name already exists with different type")
        family.holders += 1
        self._guests[worker].families[own] = _GuestFamily(family)
        worker.reply(number)

    def _make_metric(self, worker: Worker, number: int, fields: Mapping[str, str]) -> None:
        guest = self._guests[worker]
        held = guest.families.get(_field(fields, "family"))
        if held is None:
            raise NaiadError("the metric's family does not exist any more")
        labels = _labels(_field(fields, "labels"))
        metric = held.family.metrics.get(labels)
        if metric is None:
            buckets = _numbers(fields.get("buckets", ""))
            counts = [0] * (len(buckets) + 1) if held.family.kind is MetricKind.HISTOGRAM else []
            metric = held.family.metrics[labels] = ModelMetric(labels, buckets=buckets, counts=counts)
        metric.holders += 1
        own = _field(fields, "metric")
        held.metrics.append(own)
        guest.metrics[own] = metric
        worker.reply(number, text=" ".join(map(repr, metric.buckets)))

    def _reply_value(self, worker: Worker, number: int, fields: Mapping[str, str]) -> None:
        metric = self._guests[worker].metrics.get(_field(fields, "metric"))
        if metric is None:
            raise NaiadError("the metric does not exist any more")
        worker.reply(number, text=repr(metric.value))

    # -- notifications of guests ----------------------------------------------------------------------------------

    def _on_change(self, worker: Worker, fields: Mapping[str, str]) -> None:
        guest = self._guests[worker]
        for key, text in fields.items():
            what, _, number = key.partition(" ")
            if what == "drop":
                self._drop(guest, guest.families.pop(number, None))
            elif number in guest.metrics:  # else its family was dropped meanwhile
                _apply(guest.metrics[number], what, _numbers(text))

    def _on_worker_exit(self, worker: Worker) -> None:
        guest = self._guests.pop(worker, None)
        if guest is not None:
            for held in guest.families.values():
                self._drop(guest, held)

    def _drop(self, guest: _Guest, held: _GuestFamily | None) -> None:
        if held is None:
            return
        family = held.family
        for own in held.metrics:
            metric = guest.metrics.pop(own)
            metric.holders -= 1
            if not metric.holders:
                del family.metrics[metric.labels]
        family.holders -= 1
        if not family.holders:
            del self._families[family.name]


def _apply(metric: ModelMetric, what: str, numbers: Sequence[float]) -> None:
    """Apply a change that a guest sent; raise ProtocolError if metrics of this kind cannot change like that."""
    if what == "add" and len(numbers) == 1:
        metric.value += numbers[0]
    elif what == "set" and len(numbers) == 1:
        metric.value = numbers[0]
    elif what == "observe" and metric.counts and len(numbers) == 1 + len(metric.counts):
        metric.value += numbers[0]
        metric.counts = [before + int(more) for before, more in zip(metric.counts, numbers[1:], strict=True)]
    else:
        raise ProtocolError(f"cannot change a metric: '{what}' with {len(numbers)} numbers is not a valid change")


def _field(fields: Mapping[str, str], key: str) -> str:
    value = fields.get(key)
    if value is None:
        raise ProtocolError(f"cannot read a message about a metric: its '{key}' is missing")
    return value


def _labels(text: str) -> Labels:
    try:
        labels = read_json(text)
    except ValueError as error:
        raise ProtocolError(f"cannot read a metric's labels: they are invalid JSON: {error}") from error
    if not isinstance(labels, dict) or not all(isinstance(value, str) for value in labels.values()):
        raise ProtocolError("cannot read a metric's labels: they are not strings by name")
    return tuple(sorted(labels.items()))


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(map(float, text.split()))
    except (ValueError, OverflowError) as error:
        raise ProtocolError(f"cannot read a metric's numbers: {error}") from error
