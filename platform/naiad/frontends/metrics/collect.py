"""The metrics, computed when somebody asks. Names and help texts are the reference's (CORE src/metrics.cc)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import psutil

from naiad.frontends.metrics.families import Family, Kind, Sample, model_labels
from naiad.frontends.metrics.latencies import latency_families
from naiad.protocol.metadata import ModelStatistics

Collector: TypeAlias = Callable[[], Iterable[Family]]
"""Makes families at scrape time."""

_Value: TypeAlias = Callable[[ModelStatistics], int]
_Gauge: TypeAlias = Callable[[ModelStatistics], float]

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

_COUNTS = 2
"""So many of them count; the others are sums of durations."""

_GAUGES: tuple[tuple[str, str, _Gauge], ...] = (
    (
        "nv_inference_pending_request_count",
        "Instantaneous number of pending requests awaiting execution per-model.",
        lambda model: model.pending_count,
    ),
    ("nv_model_load_duration_secs", "Model load time in seconds", lambda model: model.load_seconds),
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


def model_families(statistics: Sequence[ModelStatistics], *, with_counters: bool = True) -> list[Family]:
    """What is counted of every model version.

    Args:
        statistics: Of the versions that serve.
        with_counters: Whether sums of durations are wanted, and with them what the cache did (as in the reference).
    """
    cached = [model for model in statistics if model.is_cached]
    durations = [
        *(_counter(name, text, statistics, value) for name, text, value in _COUNTERS[_COUNTS:]),
        *(_counter(name, text, cached, value) for name, text, value in _CACHE_COUNTERS),
    ]
    return [
        _counter(
            "nv_inference_request_success",
            "Number of successful inference requests, all batch sizes",
            statistics,
            lambda model: model.success.count,
        ),
        _failures(statistics),
        *(_counter(name, text, statistics, value) for name, text, value in _COUNTERS[:_COUNTS]),
        *(durations if with_counters else ()),
        *(Family(name, text, Kind.GAUGE, _samples(statistics, value)) for name, text, value in _GAUGES),
        *latency_families(statistics),
        _counter(
            "naiad_error_responses_total",
            "Number of requests that a model answered with an error, which count as successful",
            statistics,
            lambda model: model.error_responses,
        ),
    ]


def memory_pool_families() -> list[Family]:
    """The pool of pinned memory, of which there is none: naiad leaves GPUs to the models."""
    return [
        _gauge("nv_pinned_memory_pool_total_bytes", "Pinned memory pool total memory size, in bytes", 0),
        _gauge("nv_pinned_memory_pool_used_bytes", "Pinned memory pool used memory size, in bytes", 0),
    ]


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
    return Family(name, text, Kind.COUNTER, _samples(statistics, value))


def _samples(statistics: Iterable[ModelStatistics], value: _Gauge) -> list[Sample]:
    return [Sample(model_labels(model), value(model)) for model in statistics]


def _failures(statistics: Iterable[ModelStatistics]) -> Family:
    # All reasons, also those that nothing failed for: queries sum over them.
    samples = [
        Sample(
            model_labels(model, reason=reason),
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


def _gauge(name: str, text: str, value: float) -> Family:
    return Family(name, text, Kind.GAUGE, [Sample({}, value)])
