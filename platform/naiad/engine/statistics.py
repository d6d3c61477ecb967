"""Counting what models do (extension_statistics): plain sums on the request path, values when asked."""

from __future__ import annotations

import enum
import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from naiad.protocol.metadata import BatchStatistics, Duration, ModelStatistics

NO_TAGS: Mapping[str, str] = MappingProxyType({})


class Reason(enum.Enum):
    """Why a request failed, as the metrics tell (CORE src/infer_request.h)."""

    OTHER = "OTHER"
    BACKEND = "BACKEND"
    CANCELED = "CANCELED"
    REJECTED = "REJECTED"


class _Sum:
    __slots__ = ("count", "ns")

    def __init__(self) -> None:
        self.count = 0
        self.ns = 0

    def value(self) -> Duration:
        return Duration(self.count, self.ns)


class _Batches:
    """Sums of execute calls with one batch size."""

    __slots__ = ("count", "infer", "input", "output")

    def __init__(self) -> None:
        self.count = self.input = self.infer = self.output = 0


class Statistics:
    """The sums of one model version. All times are nanoseconds of the monotonic clock.

    Attributes:
        is_cached: Whether responses are kept, so that hits and misses mean something.
    """

    def __init__(self, tags: Mapping[str, str] = NO_TAGS) -> None:
        self._tags = tags
        self._last = 0
        self._inferences = 0
        self._executions = 0
        self._success = 0
        self._success_ns = 0
        self._queue_ns = 0
        self._input_ns = 0
        self._infer_ns = 0
        self._output_ns = 0
        self._fail = _Sum()
        self.is_cached = False
        self._hit = _Sum()
        self._miss = _Sum()
        self._failures = dict.fromkeys(Reason, 0)
        self._batches: dict[int, _Batches] = {}

    def executed(self, batch_size: int, laid_out: int, started: int, ended: int, sent: int) -> None:
        """One execute call: when laying out began, when execute started and ended, when its answers were sent on."""
        self._executions += 1
        sums = self._batches.get(batch_size)
        if sums is None:
            sums = self._batches[batch_size] = _Batches()
        sums.count += 1
        sums.input += started - laid_out
        sums.infer += ended - started
        sums.output += sent - ended

    def succeeded(self, batch_size: int, queued: int, laid_out: int, started: int, ended: int, answered: int) -> None:
        """One request: when it was queued, laid out, started, ended, answered."""
        self._last = answered
        self._inferences += batch_size
        self._success += 1
        self._success_ns += answered - queued
        self._queue_ns += laid_out - queued
        self._input_ns += started - laid_out
        self._infer_ns += ended - started
        self._output_ns += answered - ended

    def composed(self, batch_size: int, queued: int, begun: int, answered: int, computed: Sequence[int]) -> None:
        """One request of an ensemble: when it was queued, begun and answered; input, infer and output of its steps.

        Steps run side by side, so theirs may add up to more time than went by.
        """
        took_input, took_infer, took_output = computed
        started = begun + took_input
        self.executed(batch_size, begun, started, started + took_infer, started + took_infer + took_output)
        self.succeeded(batch_size, queued, begun, started, started + took_infer, answered)
        self._output_ns += took_output - (answered - started - took_infer)

    def hit(self, ns: int) -> None:
        """One request that was answered from the response cache within *ns*: a success that no model computed."""
        self._hit.count += 1
        self._hit.ns += ns
        self._success += 1
        self._success_ns += ns

    def missed(self, ns: int) -> None:
        """One request that was looked up in the response cache for *ns*, in vain."""
        self._miss.count += 1
        self.kept(ns)

    def kept(self, ns: int) -> None:
        """Keeping the response of one that was looked up in vain took *ns*; both belong to its duration, too."""
        self._miss.ns += ns
        self._success_ns += ns

    def failed(self, ns: int, reason: Reason = Reason.OTHER) -> None:
        """One request that ended in an error *ns* after it came; those refused at once do not count."""
        self._failures[reason] += 1
        self._fail.count += 1
        self._fail.ns += ns

    def value(self, name: str, version: str) -> ModelStatistics:
        """The sums as they are now."""
        count = self._success
        computed = count - self._hit.count
        since = time.monotonic_ns() - self._last
        return ModelStatistics(
            name=name,
            version=version,
            last_inference=(time.time_ns() - since) // 1_000_000 if self._last else 0,
            inference_count=self._inferences,
            execution_count=self._executions,
            success=Duration(count, self._success_ns),
            fail=self._fail.value(),
            failures={reason.value: number for reason, number in self._failures.items() if reason is not Reason.OTHER},
            queue=Duration(count, self._queue_ns),
            compute_input=Duration(computed, self._input_ns),
            compute_infer=Duration(computed, self._infer_ns),
            compute_output=Duration(computed, self._output_ns),
            tags=self._tags,
            is_cached=self.is_cached,
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
        )
