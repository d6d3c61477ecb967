"""Quantiles and histograms of durations, for models where `--metrics-config` enables them; others have no cost."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

from naiad.core import clock
from naiad.protocol.metadata import HistogramValue, SummaryValue
from naiad.protocol.quantiles import quantile_of, rounded_value

_SLOTS = 6
_SLOT_NS = 10_000_000_000
_PARTS = ("request", "queue", "compute_input", "compute_infer", "compute_output")
# Values of up to so many bits are counted exactly, larger ones by their leading bits: accurate to 1/128.
_EXACT_BITS = 8
_COUNTED_BITS = 5  # the same for `DurationCounts`: accurate to 1/16


class Summary:
    """Count, sum, and quantiles over the last minute (in steps of ten seconds) of whole numbers.

    The minute is the reference's. Memory does not grow with the request rate: values of similar size share a counter,
    and there are a few hundred counters.
    """

    __slots__ = ("_count", "_slots", "_sum", "_turn")

    def __init__(self) -> None:
        self._count = self._sum = 0
        self._turn = 0
        self._slots: list[dict[int, int]] = [{} for _ in range(_SLOTS)]

    def observe(self, value: int, now: int) -> None:
        self._count += 1
        self._sum += value
        slot = self._slot(now)
        value = rounded_value(value, _EXACT_BITS)
        slot[value] = slot.get(value, 0) + 1

    def add(self, other: Summary, now: int) -> None:
        self._slot(now)
        other._slot(now)
        self._count += other._count
        self._sum += other._sum
        for slot, more in zip(self._slots, other._slots, strict=True):
            _add_counts(slot, more)

    def value(self, quantiles: Sequence[float], now: int) -> SummaryValue:
        self._slot(now)
        merged: dict[int, int] = {}
        for slot in self._slots:
            for value, count in slot.items():
                merged[value] = merged.get(value, 0) + count
        return SummaryValue(self._count, self._sum, tuple((each, quantile_of(merged, each)) for each in quantiles))

    def _slot(self, now: int) -> dict[int, int]:
        turn = now // _SLOT_NS
        if turn != self._turn:
            for passed in range(max(self._turn + 1, turn - _SLOTS + 1), turn + 1):
                self._slots[passed % _SLOTS].clear()
            self._turn = turn
        return self._slots[turn % _SLOTS]


class DurationCounts:
    """How many durations there were since the start, by microseconds rounded down: at most a few hundred counters."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    def observe(self, ns: int) -> None:
        value = ns // 1000 if ns > 0 else 0
        shift = value.bit_length() - _COUNTED_BITS
        if shift > 0:  # as `rounded_value`, inlined: with the page, every request comes here
            value = value >> shift << shift
        counts = self._counts
        counts[value] = counts.get(value, 0) + 1

    def add(self, other: DurationCounts) -> None:
        _add_counts(self._counts, other._counts)

    def value(self) -> Mapping[int, int]:
        return dict(self._counts)


class Histogram:
    """A histogram: how many values were at most each of some bounds."""

    __slots__ = ("_buckets", "_counts", "_sum")

    def __init__(self, buckets: Sequence[float]) -> None:
        self._buckets = tuple(sorted(buckets))
        self._counts = [0] * (len(self._buckets) + 1)
        self._sum = 0

    def observe(self, value: int) -> None:
        self._counts[bisect_left(self._buckets, value)] += 1
        self._sum += value

    def add(self, other: Histogram) -> None:
        self._counts = [own + more for own, more in zip(self._counts, other._counts, strict=True)]
        self._sum += other._sum

    def value(self) -> HistogramValue:
        return HistogramValue(self._buckets, tuple(self._counts), self._sum)


class Durations:
    """Summaries of the parts of requests' durations."""

    def __init__(self, quantiles: Sequence[float], *, is_cached: bool) -> None:
        """Begin to measure; a model with a response cache has no summary of whole requests, as in the reference."""
        self.quantiles = quantiles
        self._parts = [Summary() for _ in _PARTS]
        self._is_cached = is_cached
        self._hit, self._miss = Summary(), Summary()

    def on_success(self, *parts_ns: int) -> None:
        """Count one request: nanoseconds as a whole, in the queue, for input, inference and output."""
        now = clock.monotonic_ns()
        for summary, part in zip(self._parts, parts_ns, strict=True):
            summary.observe(max(part, 0) // 1000, now)

    def on_cache_hit(self, ns: int) -> None:
        now = clock.monotonic_ns()
        self._hit.observe(ns // 1000, now)
        self._parts[1].observe(0, now)

    def on_cache_miss(self, ns: int) -> None:
        self._miss.observe(ns // 1000, clock.monotonic_ns())

    def add(self, other: Durations) -> None:
        now = clock.monotonic_ns()
        pairs = zip((*self._parts, self._hit, self._miss), (*other._parts, other._hit, other._miss), strict=True)
        for own, more in pairs:
            own.add(more, now)

    def value(self) -> dict[str, SummaryValue]:
        named = dict(zip(_PARTS, self._parts, strict=True))
        if self._is_cached:
            del named["request"]
            named.update(cache_hit=self._hit, cache_miss=self._miss)
        now = clock.monotonic_ns()
        return {name: summary.value(self.quantiles, now) for name, summary in named.items()}


def _add_counts(counts: dict[int, int], more: Mapping[int, int]) -> None:
    for value, count in more.items():
        counts[value] = counts.get(value, 0) + count
