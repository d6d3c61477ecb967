"""The metrics, computed when somebody asks. Names and help texts are the reference's (CORE src/metrics.cc)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

import psutil

from naiad.frontends.metrics.families import Family, Kind, Sample
from naiad.protocol.metadata import ModelStatistics

Collector: TypeAlias = Callable[[], Iterable[Family]]
"""Makes families at scrape time."""

_Value: TypeAlias = Callable[[ModelStatistics], int]

_COUNTERS: tuple[tuple[str, str, _Value], ...] = (
    (
        "nv_inference_count",
        "Number of inferences performed (does not include cached requests)",
        lambda model: model.inference_count,
    ),
    (
        "nv_inference_exec_count",
        "Number of model executions performed (does not include cached requests)",
        lambda model: model.execution_count,
    ),
    (
        "nv_inference_request_duration_us",
        "Cumulative inference request duration in microseconds (includes cached requests)",
        lambda model: model.success.ns // 1000,
    ),
    (
        "nv_inference_queue_duration_us",
        "Cumulative inference queuing duration in microseconds (includes cached requests)",
        lambda model: model.queue.ns // 1000,
    ),
    (
        "nv_inference_compute_input_duration_us",
        "Cumulative compute input duration in microseconds (does not include cached requests)",
        lambda model: model.compute_input.ns // 1000,
    ),
    (
        "nv_inference_compute_infer_duration_us",
        "Cumulative compute inference duration in microseconds (does not include cached requests)",
        lambda model: model.compute_infer.ns // 1000,
    ),
    (
        "nv_inference_compute_output_duration_us",
        "Cumulative inference compute output duration in microseconds (does not include cached requests)",
        lambda model: model.compute_output.ns // 1000,
    ),
)

_CACHE_COUNTERS: tuple[tuple[str, str, _Value], ...] = (
    ("nv_cache_num_hits_per_model", "Number of cache hits per model", lambda model: model.cache_hit.count),
    ("nv_cache_num_misses_per_model", "Number of cache misses per model", lambda model: model.cache_miss.count),
    (
        "nv_cache_hit_duration_per_model",
        "Total cache hit duration per model, in microseconds",
        lambda model: model.cache_hit.ns // 1000,
    ),
    (
        "nv_cache_miss_duration_per_model",
        "Total cache miss (insert+lookup) duration per model, in microseconds",
        lambda model: model.cache_miss.ns // 1000,
    ),
)

_REASONS = ("OTHER", "BACKEND", "CANCELED", "REJECTED")


def model_families(statistics: Sequence[ModelStatistics]) -> list[Family]:
    """Counters of every model version."""
    cached = [model for model in statistics if model.is_cached]
    return [
        _counter(
            "nv_inference_request_success",
            "Number of successful inference requests, all batch sizes",
            statistics,
            lambda model: model.success.count,
        ),
        _failures(statistics),
        *(_counter(name, text, statistics, value) for name, text, value in _COUNTERS),
        *(_counter(name, text, cached, value) for name, text, value in _CACHE_COUNTERS),
    ]


def pending_requests(counts: Mapping[tuple[str, str], int]) -> Family:
    """The gauge of requests that wait in the queues.

    Args:
        counts: Requests by model and version.
    """
    return Family(
        "nv_inference_pending_request_count",
        "Instantaneous number of pending requests awaiting execution per-model.",
        Kind.GAUGE,
        [Sample({"model": model, "version": version}, count) for (model, version), count in counts.items()],
    )


def system_families() -> list[Family]:
    """Processor and memory of the machine."""
    memory = psutil.virtual_memory()
    return [
        # The share since the last scrape; the first one says 0, as the reference's first poll does.
        _gauge("nv_cpu_utilization", "CPU utilization rate [0.0 - 1.0]", psutil.cpu_percent() / 100),
        _gauge("nv_cpu_memory_total_bytes", "CPU total memory (RAM), in bytes", memory.total),
        _gauge("nv_cpu_memory_used_bytes", "CPU used memory (RAM), in bytes", memory.total - memory.available),
    ]


def _counter(name: str, text: str, statistics: Iterable[ModelStatistics], value: _Value) -> Family:
    samples = [Sample(_labels(model), value(model)) for model in statistics]
    return Family(name, text, Kind.COUNTER, samples)


def _failures(statistics: Iterable[ModelStatistics]) -> Family:
    # All reasons, also those that nothing failed for: queries sum over them.
    samples = [
        Sample(
            _labels(model, reason=reason),
            model.failures.get(reason, 0) if reason != "OTHER" else model.fail.count - sum(model.failures.values()),
        )
        for model in statistics
        for reason in _REASONS
    ]
    return Family(
        "nv_inference_request_failure",
        "Number of failed inference requests, all batch sizes",
        Kind.COUNTER,
        samples,
    )


def _labels(model: ModelStatistics, **more: str) -> dict[str, str]:
    """The labels of a model's series, sorted as in the reference."""
    tags = {f"_{name}": value for name, value in model.tags.items()}
    return dict(sorted({**tags, "model": model.name, "version": model.version, **more}.items()))


def _gauge(name: str, text: str, value: float) -> Family:
    return Family(name, text, Kind.GAUGE, [Sample({}, value)])
