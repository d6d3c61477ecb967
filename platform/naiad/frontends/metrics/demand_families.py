"""Metrics of models that are loaded on demand (`naiad_demand_*`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from naiad.frontends.metrics.families import Family, MetricType, Sample, single_gauge
from naiad.protocol.metadata import DemandStatus

_STATES = ("dormant", "failed", "loaded", "loading")


def demand_families(status: DemandStatus | None) -> list[Family]:
    """States, memory, loads and evictions of the models on demand; empty without any."""
    if status is None:
        return []
    counts = Counter(status.states.values())
    return [
        Family(
            "naiad_demand_models",
            "Number of models that are loaded on demand, by state",
            MetricType.GAUGE,
            [Sample({"state": state}, counts[state]) for state in _STATES],
        ),
        Family(
            "naiad_demand_model_state",
            "1 with the present state of a model that is loaded on demand",
            MetricType.GAUGE,
            [Sample({**_labels(model), "state": state}, 1) for model, state in sorted(status.states.items())],
        ),
        single_gauge(
            "naiad_models_memory_limit_bytes", "Memory that all guests may use together; 0 for any", status.limit
        ),
        single_gauge("naiad_models_memory_used_bytes", "Memory of all guests", sum(status.sizes.values())),
        Family(
            "naiad_model_memory_bytes",
            "Memory of the guests of a loaded model (proportional set size, and GPU memory where it is known)",
            MetricType.GAUGE,
            _by_model(status.sizes),
        ),
        Family(
            "naiad_demand_loads_total",
            "Number of times that requests loaded a model",
            MetricType.COUNTER,
            _by_model(status.loads),
        ),
        Family(
            "naiad_demand_load_failures_total",
            "Number of times that requests could not load a model",
            MetricType.COUNTER,
            _by_model(status.failures),
        ),
        Family(
            "naiad_demand_evictions_total",
            "Number of times that a model was unloaded because it was idle, or for the memory of another one",
            MetricType.COUNTER,
            [
                Sample({"cause": cause, **_labels(model)}, count)
                for (model, cause), count in sorted(status.evictions.items())
            ],
        ),
    ]


def _by_model(values: Mapping[str, int]) -> list[Sample]:
    return [Sample(_labels(model), value) for model, value in sorted(values.items())]


def _labels(key: str) -> dict[str, str]:
    namespace, _, name = key.rpartition("::")
    return {"model": name, **({"namespace": namespace} if namespace else {})}
