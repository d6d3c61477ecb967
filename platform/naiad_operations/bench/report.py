"""The results of a load as a table with bars, as a histogram, and as JSON values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from naiad_operations.bench.load import LoadResult, percentile

__all__ = ["HEADER", "as_json", "histogram", "row", "throughput"]

PERCENTILES = (50, 90, 95, 99)
HEADER = (
    f"{'concurrency':>11}  {'requests/s':>10}  "
    + "  ".join(f"{f'p{percent} ms':>8}" for percent in PERCENTILES)
    + f"  {'max ms':>8}  {'errors':>6}"
)
_BINS = 12
_BAR_COLUMNS = 40
_EIGHTHS = " ▏▎▍▌▋▊▉"
_FULL = "█"
_ASCII = "#"
_UNKNOWN = "-"


def row(result: LoadResult) -> str:
    """One line of the table below `HEADER`."""
    ordered = sorted(result.latencies_ms)
    values = [*(percentile(ordered, percent) for percent in PERCENTILES), ordered[-1] if ordered else None]
    cells = "  ".join(f"{_milliseconds(value):>8}" for value in values)
    return f"{result.concurrency:>11}  {_rate(result.requests_per_second):>10}  {cells}  {result.errors:>6}"


def throughput(results: Sequence[LoadResult], *, is_ascii: bool) -> list[str]:
    """A bar for the requests per second of each load."""
    largest = max((result.requests_per_second for result in results), default=0.0)
    return [
        f"{result.concurrency:>11}  {_bar(result.requests_per_second, largest, is_ascii=is_ascii)} "
        f"{_rate(result.requests_per_second)}"
        for result in results
    ]


def histogram(values: Sequence[float], *, is_ascii: bool) -> list[str]:
    """A bar for the number of values in each of some ranges, which grow by a constant factor.

    Latencies have a long tail: ranges of equal length would put most of them into the first.
    """
    if not values:
        return []
    ordered = sorted(values)
    low, high = max(ordered[0], 1e-3), max(ordered[-1], 1e-3)
    if high <= low * 1.001:
        return [f"{_milliseconds(low):>11}  {_bar(1, 1, is_ascii=is_ascii)} {len(ordered):,}"]
    factor = (high / low) ** (1 / _BINS)
    counts = [0] * _BINS
    for value in ordered:
        place = int(math.log(max(value, low) / low) / math.log(factor))
        counts[min(place, _BINS - 1)] += 1
    largest = max(counts)
    return [
        f"{_milliseconds(low * factor**number):>11}  {_bar(count, largest, is_ascii=is_ascii)} {count:,}".rstrip()
        for number, count in enumerate(counts)
    ]


def as_json(result: LoadResult) -> dict[str, Any]:
    """The figures of a load as JSON values; None where no request succeeded."""
    ordered = sorted(result.latencies_ms)
    first = sorted(result.first_ms)
    return {
        "concurrency": result.concurrency,
        "seconds": result.seconds,
        "requests": len(ordered),
        "requests_per_second": result.requests_per_second,
        "errors": result.errors,
        "first_error": result.first_error or None,
        "mean_ms": sum(ordered) / len(ordered) if ordered else None,
        "min_ms": ordered[0] if ordered else None,
        **{f"p{percent}_ms": percentile(ordered, percent) for percent in PERCENTILES},
        "max_ms": ordered[-1] if ordered else None,
        "first_response_p50_ms": percentile(first, 50),
        "first_response_p95_ms": percentile(first, 95),
    }


def _bar(value: float, largest: float, *, is_ascii: bool) -> str:
    """A bar of up to 40 columns, in eighths of a column."""
    eighths = round(_BAR_COLUMNS * 8 * value / largest) if largest else 0
    if is_ascii:
        return _ASCII * math.ceil(eighths / 8)
    whole, rest = divmod(eighths, 8)
    return _FULL * whole + (_EIGHTHS[rest] if rest else "")


def _milliseconds(value: float | None) -> str:
    if value is None:
        return _UNKNOWN
    return f"{value:.3f}" if value < 1 else f"{value:.2f}" if value < 100 else f"{value:,.0f}"  # noqa: PLR2004 - digits


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"  # noqa: PLR2004 - digits
