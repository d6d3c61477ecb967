"""How long requests take, as summaries and histograms (`--metrics-config`); names and texts are the reference's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

from naiad.frontends.metrics.families import Family, Kind, Sample, model_labels, number
from naiad.protocol.metadata import HistogramValue, ModelStatistics, SummaryValue

_INFINITY = float("inf")

_SUMMARIES = {
    "request": (
        "nv_inference_request_summary_us",
        "Summary of inference request duration in microseconds (includes cached requests)",
    ),
    "queue": (
        "nv_inference_queue_summary_us",
        "Summary of inference queuing duration in microseconds (includes cached requests)",
    ),
    "compute_input": (
        "nv_inference_compute_input_summary_us",
        "Cumulative compute input duration in microseconds (does not include cached requests)",
    ),
    "compute_infer": (
        "nv_inference_compute_infer_summary_us",
        "Cumulative compute inference duration in microseconds (does not include cached requests)",
    ),
    "compute_output": (
        "nv_inference_compute_output_summary_us",
        "Cumulative inference compute output duration in microseconds (does not include cached requests)",
    ),
    "cache_hit": (
        "nv_cache_hit_summary_per_model",
        "Summary of cache hit counts/durations per model, in microseconds.",
    ),
    "cache_miss": (
        "nv_cache_miss_summary_per_model",
        "Summary of cache miss counts/durations per model, in microseconds.",
    ),
}


def latency_families(statistics: Sequence[ModelStatistics]) -> Iterator[Family]:
    """Summaries and histograms of the models that have some."""
    first = [
        sample
        for model in statistics
        if model.first_responses is not None
        for sample in _histogram(model_labels(model), model.first_responses)
    ]
    yield Family(
        "nv_inference_first_response_histogram_ms",
        "Duration from request to first response in milliseconds",
        Kind.HISTOGRAM,
        first,
    )
    for part, (name, text) in _SUMMARIES.items():
        samples = [
            sample
            for model in statistics
            if part in model.summaries
            for sample in _summary(model_labels(model), model.summaries[part])
        ]
        yield Family(name, text, Kind.SUMMARY, samples)


def _summary(labels: dict[str, str], value: SummaryValue) -> Iterator[Sample]:
    yield Sample(labels, value.count, "_count")
    yield Sample(labels, value.sum, "_sum")
    for quantile, found in value.quantiles:
        yield Sample({**labels, "quantile": number(quantile)}, found)


def _histogram(labels: dict[str, str], value: HistogramValue) -> Iterator[Sample]:
    yield Sample(labels, sum(value.counts), "_count")
    yield Sample(labels, value.sum, "_sum")
    for bound, count in zip((*value.bounds, _INFINITY), accumulate(value.counts), strict=True):
        yield Sample({**labels, "le": number(bound)}, count, "_bucket")
