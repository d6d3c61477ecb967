"""Triton's metrics (`nv_*`), with its names, help texts and order (CORE src/metrics.cc).

They are computed when they are scraped, from the statistics that the engine keeps anyway: no counter is updated twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

import psutil

from naiad.frontends.metrics.families import (
    Family,
    MetricType,
    Sample,
    counter,
    gauge,
    histogram_samples,
    model_labels,
    number,
    single_gauge,
)
from naiad.protocol.metadata import CacheStatistics, ModelStatistics, SummaryValue
from naiad.protocol.model_metrics import MetricKind, ModelMetricFamily

_Value: TypeAlias = Callable[[ModelStatistics], float]

_HELP = {
    "nv_inference_request_success": "Number of successful inference requests, all batch sizes",
    "nv_inference_request_failure": "Number of failed inference requests, all batch sizes",
    "nv_inference_count": "Number of inferences performed (does not include cached requests)",
    "nv_inference_exec_count": "Number of model executions performed (does not include cached requests)",
    "nv_cache_num_hits_per_model": "Number of cache hits per model",
    "nv_cache_num_misses_per_model": "Number of cache misses per model",
    "nv_cache_hit_duration_per_model": "Total cache hit duration per model, in microseconds",
    "nv_cache_miss_duration_per_model": "Total cache miss (insert+lookup) duration per model, in microseconds",
    "nv_inference_pending_request_count": "Instantaneous number of pending requests awaiting execution per-model.",
    "nv_model_load_duration_secs": "Model load time in seconds",
    "naiad_error_responses_total": (
        "Number of requests whose response was an error of the model; they count as successful"
    ),
}

# The parts of a request with `nv_inference_<part>_duration_us` and `nv_inference_<part>_summary_us`: the field of the
# statistics, and the words of their texts.
_PARTS = {
    "request": ("success", "Summary of", "inference request", "includes"),
    "queue": ("queue", "Summary of", "inference queuing", "includes"),
    "compute_input": ("compute_input", "Cumulative", "compute input", "does not include"),
    "compute_infer": ("compute_infer", "Cumulative", "compute inference", "does not include"),
    "compute_output": ("compute_output", "Cumulative", "inference compute output", "does not include"),
}
_SUMMARIES = {
    **{
        part: (f"nv_inference_{part}_summary_us", f"{kind} {what} duration in microseconds ({whether} cached requests)")
        for part, (_, kind, what, whether) in _PARTS.items()
    },
    **{
        f"cache_{what}": (
            f"nv_cache_{what}_summary_per_model",
            f"Summary of cache {what} counts/durations per model, in microseconds.",
        )
        for what in ("hit", "miss")
    },
}

_FAILURE_REASONS = ("OTHER", "BACKEND", "CANCELED", "REJECTED")


def model_families(statistics: Sequence[ModelStatistics], *, with_durations: bool = True) -> list[Family]:
    """The metrics of each model version, sums of durations and the cache's counters only *with_durations*."""
    cached = [model for model in statistics if model.is_cached]
    durations = [
        counter(
            f"nv_inference_{part}_duration_us",
            f"Cumulative {what} duration in microseconds ({whether} cached requests)",
            _samples(statistics, _microseconds(field)),
        )
        for part, (field, _, what, whether) in _PARTS.items()
    ]
    durations += [
        _counter("nv_cache_num_hits_per_model", cached, lambda model: model.cache_hit.count),
        _counter("nv_cache_num_misses_per_model", cached, lambda model: model.cache_miss.count),
        _counter("nv_cache_hit_duration_per_model", cached, _microseconds("cache_hit")),
        _counter("nv_cache_miss_duration_per_model", cached, _microseconds("cache_miss")),
    ]
    return [
        _counter("nv_inference_request_success", statistics, lambda model: model.success.count),
        _failures(statistics),
        _counter("nv_inference_count", statistics, lambda model: model.inference_count),
        _counter("nv_inference_exec_count", statistics, lambda model: model.execution_count),
        *(durations if with_durations else ()),
        _gauge("nv_inference_pending_request_count", statistics, lambda model: model.pending_count),
        _gauge("nv_model_load_duration_secs", statistics, lambda model: model.load_seconds),
        *_latency_families(statistics),
        _counter("naiad_error_responses_total", statistics, lambda model: model.error_responses),
    ]


def memory_pool_families(statistics: Iterable[ModelStatistics]) -> list[Family]:
    """The pool of pinned memory: what guests have registered with NVIDIA's driver. None of it is kept unused."""
    pinned = sum(use.byte_size for model in statistics for use in model.memory_usage if use.type == "CPU_PINNED")
    return [
        single_gauge("nv_pinned_memory_pool_total_bytes", "Pinned memory pool total memory size, in bytes", pinned),
        single_gauge("nv_pinned_memory_pool_used_bytes", "Pinned memory pool used memory size, in bytes", pinned),
    ]


def system_families() -> list[Family]:
    """CPU and memory of the machine."""
    memory = psutil.virtual_memory()
    return [
        # psutil measures since its last call. The first scrape yields 0, as the reference's first poll does.
        single_gauge("nv_cpu_utilization", "CPU utilization rate [0.0 - 1.0]", psutil.cpu_percent() / 100),
        single_gauge("nv_cpu_memory_total_bytes", "CPU total memory (RAM), in bytes", memory.total),
        single_gauge("nv_cpu_memory_used_bytes", "CPU used memory (RAM), in bytes", memory.total - memory.available),
    ]


def _counter(name: str, statistics: Iterable[ModelStatistics], value: _Value) -> Family:
    return counter(name, _HELP[name], _samples(statistics, value))


def _gauge(name: str, statistics: Iterable[ModelStatistics], value: _Value) -> Family:
    return gauge(name, _HELP[name], _samples(statistics, value))


def _samples(statistics: Iterable[ModelStatistics], value: _Value) -> list[Sample]:
    return [Sample(model_labels(model), value(model)) for model in statistics]


def _microseconds(field: str) -> _Value:
    return lambda model: getattr(model, field).ns // 1000


def _failures(statistics: Iterable[ModelStatistics]) -> Family:
    # Reasons without failures are included, as in the reference: queries sum over all of them.
    samples = [
        Sample(
            model_labels(model, reason=reason),
            model.failures.get(reason, 0) if reason != "OTHER" else model.fail.count - sum(model.failures.values()),
        )
        for model in statistics
        for reason in _FAILURE_REASONS
    ]
    return counter("nv_inference_request_failure", _HELP["nv_inference_request_failure"], samples)


def _latency_families(statistics: Sequence[ModelStatistics]) -> Iterator[Family]:
    """Summaries and histograms of the models that record them (`--metrics-config`)."""
    first = [sample for model in statistics for sample in _first_responses(model)]
    yield Family(
        "nv_inference_first_response_histogram_ms",
        "Duration from request to first response in milliseconds",
        MetricType.HISTOGRAM,
        first,
    )
    for part, (name, text) in _SUMMARIES.items():
        samples = [
            sample
            for model in statistics
            if part in model.summaries
            for sample in _summary(model_labels(model), model.summaries[part])
        ]
        yield Family(name, text, MetricType.SUMMARY, samples)


def _summary(labels: dict[str, str], value: SummaryValue) -> Iterator[Sample]:
    yield Sample(labels, value.count, "_count")
    yield Sample(labels, value.sum, "_sum")
    for quantile, found in value.quantiles:
        yield Sample({**labels, "quantile": number(quantile)}, found)


def _first_responses(model: ModelStatistics) -> Iterator[Sample]:
    value = model.first_responses
    if value is not None:
        yield from histogram_samples(model_labels(model), value.counts, value.sum, value.bounds)


def cache_families(cache: CacheStatistics | None) -> list[Family]:
    """The metrics of the whole response cache; empty for None, a server without a cache."""
    if cache is None:
        return []
    values = (
        ("nv_cache_util", "Cache utilization [0.0 - 1.0]", cache.used_byte_size / cache.byte_size),
        ("nv_cache_num_entries", "Number of responses stored in response cache", cache.entries),
        ("nv_cache_num_hits", "Number of cache hits in response cache", cache.hits),
        ("nv_cache_num_misses", "Number of cache misses in response cache", cache.misses),
        ("nv_cache_num_lookups", "Number of cache lookups in response cache", cache.hits + cache.misses),
        ("nv_cache_num_evictions", "Number of cache evictions in response cache", cache.evictions),
        (
            "nv_cache_lookup_duration",
            "Total cache lookup duration (hit and miss), in microseconds",
            cache.lookup_ns // 1000,
        ),
        ("nv_cache_insertion_duration", "Total cache insertion duration, in microseconds", cache.insertion_ns // 1000),
    )
    return [single_gauge(name, text, value) for name, text, value in values]


def custom_families(families: Iterable[ModelMetricFamily]) -> list[Family]:
    """The families of all models' own metrics."""
    return [
        Family(family.name, family.description, MetricType(family.kind.value), list(_custom_samples(family)))
        for family in families
    ]


def _custom_samples(family: ModelMetricFamily) -> Iterator[Sample]:
    for metric in family.metrics.values():
        if family.kind is MetricKind.HISTOGRAM:
            yield from histogram_samples(dict(metric.labels), metric.counts, metric.value, metric.buckets)
        else:
            yield Sample(dict(metric.labels), metric.value)


_GPU_FAMILIES = (
    ("nv_gpu_utilization", "GPU utilization rate [0.0 - 1.0)", MetricType.GAUGE),
    ("nv_gpu_memory_total_bytes", "GPU total memory, in bytes", MetricType.GAUGE),
    ("nv_gpu_memory_used_bytes", "GPU used memory, in bytes", MetricType.GAUGE),
    ("nv_gpu_power_usage", "GPU power usage in watts", MetricType.GAUGE),
    ("nv_gpu_power_limit", "GPU power management limit in watts", MetricType.GAUGE),
    ("nv_energy_consumption", "GPU energy consumption in joules since the server started", MetricType.COUNTER),
)


def gpu_families(measured: Iterable[tuple[str, Mapping[str, float]]]) -> list[Family]:
    """The families of GPUs for what was measured of each, by UUID and name; none without GPUs."""
    gpus = list(measured)
    families = []
    for name, text, kind in _GPU_FAMILIES:
        samples = [Sample({"gpu_uuid": uuid}, values[name]) for uuid, values in gpus if name in values]
        if samples:
            families.append(Family(name, text, kind, samples))
    return families
