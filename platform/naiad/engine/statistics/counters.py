"""Statistics of models (extension_statistics): plain sums on the request path, values on demand."""

from __future__ import annotations

import copy
import enum
import time
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from naiad.config.model.model_config import ModelConfig
from naiad.config.server.metrics_options import MetricsConfig
from naiad.core import clock
from naiad.core.errors import (
    FatalRequestError,
    InvalidRequestError,
    NaiadError,
    NotReadyError,
    QueueFullError,
    UnsupportedRequestError,
)
from naiad.engine.statistics.durations import DurationCounts, Durations, Histogram
from naiad.protocol.metadata import (
    BatchStatistics,
    Duration,
    MemoryUse,
    ModelCondition,
    ModelStatistics,
    ResponseStatistics,
)

_FIRST_RESPONSE = "nv_inference_first_response_histogram_ms"
_FIRST_RESPONSE_MS = (100, 500, 2000, 5000)
_SUMS = (
    *("last", "_inferences", "_executions", "_success", "_success_ns", "_queue_ns", "_input_ns", "_infer_ns"),
    *("_output_ns", "_fail", "_errors", "_hit", "_miss", "_failures", "_refusals", "_batches"),
)
_NUMBERS = (
    *("_inferences", "_executions", "_success", "_success_ns", "_queue_ns", "_input_ns", "_infer_ns", "_output_ns"),
    "_errors",
)
NO_TAGS: Mapping[str, str] = MappingProxyType({})


class FailureReason(enum.Enum):
    """Why a request failed, as a label of metrics (CORE src/infer_request.h)."""

    OTHER = "OTHER"
    BACKEND = "BACKEND"
    CANCELED = "CANCELED"
    REJECTED = "REJECTED"


class RefusalReason(enum.Enum):
    """Why a request was refused before it was queued, as a label of metrics; `FailureReason` is of the others."""

    FATAL = "fatal"
    INVALID = "invalid"
    NOT_READY = "not_ready"
    OTHER = "other"
    QUEUE_FULL = "queue_full"


def reason_of(error: NaiadError) -> RefusalReason:
    """Why a request was refused with *error*."""
    match error:
        case FatalRequestError():
            return RefusalReason.FATAL
        case InvalidRequestError() | UnsupportedRequestError():
            return RefusalReason.INVALID
        case QueueFullError():
            return RefusalReason.QUEUE_FULL
        case NotReadyError():
            return RefusalReason.NOT_READY
        case _:
            return RefusalReason.OTHER


class _Sum:
    __slots__ = ("count", "ns")

    def __init__(self) -> None:
        self.count = 0
        self.ns = 0

    def value(self) -> Duration:
        return Duration(self.count, self.ns)


class _Batches:
    __slots__ = ("count", "infer", "input", "output")

    def __init__(self) -> None:
        self.count = self.input = self.infer = self.output = 0

    def add(self, other: _Batches) -> None:
        self.count += other.count
        self.input += other.input
        self.infer += other.infer
        self.output += other.output


class Statistics:
    """The sums of one model version. All times are nanoseconds of the monotonic clock."""

    def __init__(self, tags: Mapping[str, str] = NO_TAGS, *, is_cached: bool = False) -> None:
        self.namespace = ""
        self.load_ns = 0
        self.durations: Durations | None = None  # durations for quantiles; None unless enabled (`--metrics-config`)
        self.first_responses: Histogram | None = None  # milliseconds to first responses; None unless enabled
        # Durations of successful requests, for the page; None unless enabled (`--ui`).
        self.latencies: DurationCounts | None = None
        self.first_latencies: DurationCounts | None = None  # the same until the first response of a decoupled model
        # Times of single responses, by position; None for models that have none.
        self.responses: Iterable[tuple[int, ResponseStatistics]] | None = None
        self.last = 0  # when the last inference ended (monotonic ns); 0 before the first one
        # Whether each request is counted in more than sums.
        self._is_detailed = False
        self._has_single_responses = False
        self._tags = tags
        self._is_cached = is_cached
        self._inferences = 0
        self._executions = 0
        self._success = 0
        self._success_ns = 0
        self._queue_ns = 0
        self._input_ns = 0
        self._infer_ns = 0
        self._output_ns = 0
        self._fail = _Sum()
        self._errors = 0
        self._hit = _Sum()
        self._miss = _Sum()
        self._failures = dict.fromkeys(FailureReason, 0)
        self._refusals = dict.fromkeys(RefusalReason, 0)
        self._batches: dict[int, _Batches] = {}

    def measure(self, options: MetricsConfig, config: ModelConfig) -> None:
        if options.summaries:
            self.durations = Durations(options.quantiles, is_cached=self._is_cached)
        if options.histograms:
            self.first_responses = Histogram(_buckets(config))
            self._has_single_responses = not config.decoupled
        self._is_detailed = options.summaries or self._has_single_responses

    def count_latencies(self, config: ModelConfig) -> None:
        self.latencies = DurationCounts()
        self.first_latencies = DurationCounts() if config.decoupled else None
        self._is_detailed = True

    def continue_from(self, before: Statistics) -> None:
        """Count on from the sums of an earlier load, so that a model's counters outlive its guests."""
        for name in _SUMS:
            setattr(self, name, getattr(before, name))
        for name in ("durations", "first_responses", "latencies", "first_latencies"):
            if getattr(self, name) is not None and getattr(before, name) is not None:
                setattr(self, name, getattr(before, name))

    def with_counts_of(self, others: Iterable[Statistics]) -> Statistics:
        """The sums of these and *others*, which count requests of the same version in other processes."""
        total = copy.deepcopy(self)
        for other in others:
            total.add(other)
        return total

    def add(self, other: Statistics) -> None:
        self.last = max(self.last, other.last)
        for name in _NUMBERS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for sum_, more in ((self._fail, other._fail), (self._hit, other._hit), (self._miss, other._miss)):
            sum_.count += more.count
            sum_.ns += more.ns
        for failure, count in other._failures.items():
            self._failures[failure] += count
        for refusal, count in other._refusals.items():
            self._refusals[refusal] += count
        for size, batches in other._batches.items():
            self._batches.setdefault(size, _Batches()).add(batches)
        if self.durations is not None and other.durations is not None:
            self.durations.add(other.durations)
        if self.first_responses is not None and other.first_responses is not None:
            self.first_responses.add(other.first_responses)
        if self.latencies is not None and other.latencies is not None:
            self.latencies.add(other.latencies)
        if self.first_latencies is not None and other.first_latencies is not None:
            self.first_latencies.add(other.first_latencies)

    def on_execution(self, batch_size: int, laid_out: int, started: int, ended: int, sent: int) -> None:
        """Count one call of `execute`: inputs laid out, started, ended, responses sent (monotonic ns)."""
        self._executions += 1
        sums = self._batches.get(batch_size)
        if sums is None:
            sums = self._batches[batch_size] = _Batches()
        sums.count += 1
        sums.input += started - laid_out
        sums.infer += ended - started
        sums.output += sent - ended

    def on_success(self, batch_size: int, queued: int, laid_out: int, started: int, ended: int, answered: int) -> None:
        self.last = answered
        if self._is_detailed:
            self._count(
                batch_size, answered - queued, laid_out - queued, started - laid_out, ended - started, answered - ended
            )
            if self._has_single_responses:
                self.on_first_response(answered - queued)
            return
        # The same as `_count`, inlined: every request comes here.
        self._inferences += batch_size
        self._success += 1
        self._success_ns += answered - queued
        self._queue_ns += laid_out - queued
        self._input_ns += started - laid_out
        self._infer_ns += ended - started
        self._output_ns += answered - ended

    def _count(self, batch_size: int, whole: int, queue: int, in_: int, infer: int, out: int) -> None:
        self._inferences += batch_size
        self._success += 1
        self._success_ns += whole
        self._queue_ns += queue
        self._input_ns += in_
        self._infer_ns += infer
        self._output_ns += out
        if self.durations is not None:
            self.durations.on_success(whole, queue, in_, infer, out)
        if self.latencies is not None:
            self.latencies.observe(whole)

    def on_error_response(self) -> None:
        self._errors += 1

    def on_composed(self, batch_size: int, begun: int, answered: int, computed: Sequence[int]) -> None:
        """Count one request of an ensemble, which begins when it comes.

        Args:
            computed: Nanoseconds that its steps took for input, inference and output. Steps run in parallel, so these
                may add up to more than the time that passed.
        """
        took_input, took_infer, took_output = computed
        started = begun + took_input
        ended = started + took_infer
        self.on_execution(batch_size, begun, started, ended, ended + took_output)
        self.last = answered
        self._count(batch_size, answered - begun, 0, took_input, took_infer, took_output)

    def on_cache_hit(self, ns: int) -> None:
        """Count a request answered from the response cache within *ns*: a success that no model computed."""
        self._hit.count += 1
        self._hit.ns += ns
        self._success += 1
        self._success_ns += ns
        if self.durations is not None:
            self.durations.on_cache_hit(ns)
        if self.latencies is not None:
            self.latencies.observe(ns)

    def on_cache_miss(self, ns: int) -> None:
        self._miss.count += 1
        self._miss.ns += ns
        self._success_ns += ns
        if self.durations is not None:
            self.durations.on_cache_miss(ns)

    def on_failure(self, ns: int, reason: FailureReason = FailureReason.OTHER) -> None:
        self._failures[reason] += 1
        self._fail.count += 1
        self._fail.ns += ns

    def on_refusal(self, error: NaiadError) -> None:
        """Count a request that was refused with *error* on arrival; the reference counts these nowhere."""
        self._refusals[reason_of(error)] += 1

    def on_first_response(self, ns: int) -> None:
        if self.first_responses is not None:
            self.first_responses.observe(ns // 1_000_000)
        if self.first_latencies is not None:
            self.first_latencies.observe(ns)

    def value(
        self,
        name: str,
        version: str,
        pending_count: int = 0,
        memory_usage: tuple[MemoryUse, ...] = (),
        running_count: int = 0,
        condition: ModelCondition = ModelCondition.READY,
        refused: str = "",
        stalled: str = "",
    ) -> ModelStatistics:
        """The statistics as they are now; *pending_count* requests wait for an instance, *running_count* have one."""
        count = self._success
        computed = count - self._hit.count
        since = clock.monotonic_ns() - self.last
        return ModelStatistics(
            name=name,
            version=version,
            last_inference=(time.time_ns() - since) // 1_000_000 if self.last else 0,
            inference_count=self._inferences,
            execution_count=self._executions,
            success=Duration(count, self._success_ns),
            fail=self._fail.value(),
            failures={
                reason.value: number for reason, number in self._failures.items() if reason is not FailureReason.OTHER
            },
            queue=Duration(count, self._queue_ns),
            compute_input=Duration(computed, self._input_ns),
            compute_infer=Duration(computed, self._infer_ns),
            compute_output=Duration(computed, self._output_ns),
            namespace=self.namespace,
            tags=self._tags,
            is_cached=self._is_cached,
            error_responses=self._errors,
            pending_count=pending_count,
            load_seconds=self.load_ns / 1e9,
            summaries={} if self.durations is None else self.durations.value(),
            first_responses=None if self.first_responses is None else self.first_responses.value(),
            cache_hit=self._hit.value(),
            cache_miss=self._miss.value(),
            batch_stats=tuple(
                BatchStatistics(
                    batch_size=size,
                    compute_input=Duration(sums.count, sums.input),
                    compute_infer=Duration(sums.count, sums.infer),
                    compute_output=Duration(sums.count, sums.output),
                )
                for size, sums in sorted(self._batches.items())
            ),
            responses=() if self.responses is None else self.responses,
            memory_usage=memory_usage,
            running_count=running_count,
            refusals={reason.value: number for reason, number in self._refusals.items()},
            condition=condition,
            refused=refused,
            stalled=stalled,
            latencies={} if self.latencies is None else self.latencies.value(),
            first_latencies={} if self.first_latencies is None else self.first_latencies.value(),
        )


def _buckets(config: ModelConfig) -> Sequence[float]:
    """Histogram bounds in milliseconds for first responses: the model's own, else the reference's."""
    controls = config.message.model_metrics.metric_control
    own = [each for each in controls if each.metric_identifier.family == _FIRST_RESPONSE]
    return list(own[-1].histogram_options.buckets) if own else _FIRST_RESPONSE_MS
