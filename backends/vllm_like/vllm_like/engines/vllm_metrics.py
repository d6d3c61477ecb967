"""The metrics that vLLM measures: it registers them with Prometheus' client in this process."""

from __future__ import annotations

import math
from typing import Any, Dict, Iterator, List, Tuple

from vllm_like.engines.base import EngineMetric

_PREFIX = "vllm:"
_CACHE_USAGES = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")  # names of the gauge in releases of vLLM
_BOUND = "le"
_KINDS = {"counter": "counter", "gauge": "gauge", "histogram": "histogram", "unknown": "gauge"}

Labels = Tuple[Tuple[str, str], ...]


def read() -> List[EngineMetric]:
    """All of them, as they are now; none where the client is not installed."""
    try:
        from prometheus_client import REGISTRY
    except ImportError:
        return []
    return [metric for family in REGISTRY.collect() if family.name.startswith(_PREFIX) for metric in _metrics(family)]


def cache_usage() -> float:
    """What vLLM has published last of its key-value cache; 0 where it publishes nothing."""
    return max((metric.value for metric in read() if metric.name in _CACHE_USAGES), default=0.0)


def _metrics(family: Any) -> Iterator[EngineMetric]:
    kind = _KINDS.get(family.type)
    if kind == "histogram":
        yield from _histograms(family)
    elif kind is not None:
        # A counter's sample has the suffix `_total`, which its family has not; another sample is when it was created.
        name = f"{family.name}_total" if kind == "counter" else family.name
        for sample in family.samples:
            if sample.name == name:
                yield EngineMetric(name, family.documentation, kind, dict(sample.labels), float(sample.value))


def _histograms(family: Any) -> Iterator[EngineMetric]:
    sums: Dict[Labels, float] = {}
    bounds: Dict[Labels, List[Tuple[float, int]]] = {}
    for sample in family.samples:
        labels = tuple(sorted((name, value) for name, value in sample.labels.items() if name != _BOUND))
        if sample.name == f"{family.name}_sum":
            sums[labels] = float(sample.value)
        elif sample.name == f"{family.name}_bucket":
            bounds.setdefault(labels, []).append((float(sample.labels[_BOUND]), int(sample.value)))
    for labels, cumulative in bounds.items():
        cumulative.sort()
        below = [0, *(count for _, count in cumulative)]
        counts = tuple(count - before for before, count in zip(below, below[1:]))
        finite = tuple(bound for bound, _ in cumulative if not math.isinf(bound))
        value = sums.get(labels, 0.0)
        yield EngineMetric(family.name, family.documentation, "histogram", dict(labels), value, finite, counts)
