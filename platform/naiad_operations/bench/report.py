"""The results of a load as lines of a table, as JSON values and as CSV."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from io import StringIO
from typing import Any

from naiad_operations.bench.load import LoadResult, percentile

PERCENTILES = (50, 90, 95, 99)
_COLUMNS = (
    f"  {'requests/s':>10}  "
    + "  ".join(f"{f'p{percent} ms':>8}" for percent in PERCENTILES)
    + f"  {'max ms':>8}  {'errors':>6}"
)
_UNKNOWN = "-"


def header(*, is_paced: bool) -> str:
    """The first line of the table: its loads have a rate, or a number of requests in flight."""
    return f"{'sent/s' if is_paced else 'concurrency':>11}{_COLUMNS}"


def as_csv(loads: Sequence[Mapping[str, Any]]) -> str:
    """Figures of loads in lines, with their names in the first one; figures that do not exist are empty."""
    out = StringIO()
    writer = csv.DictWriter(out, list(loads[0]) if loads else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(loads)
    return out.getvalue()


def row(result: LoadResult) -> str:
    """One line of the table below `header`."""
    ordered = sorted(result.latencies_ms)
    values = [*(percentile(ordered, percent) for percent in PERCENTILES), ordered[-1] if ordered else None]
    cells = "  ".join(f"{_milliseconds(value):>8}" for value in values)
    first = f"{result.rate:,g}" if result.rate else str(result.concurrency)
    return f"{first:>11}  {_rate(result.requests_per_second):>10}  {cells}  {result.errors:>6}"


def as_json(result: LoadResult) -> dict[str, Any]:
    """The figures of a load as JSON values; None where no request succeeded."""
    ordered = sorted(result.latencies_ms)
    first = sorted(result.first_ms)
    return {
        "concurrency": result.concurrency,
        "rate": result.rate or None,
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


def _milliseconds(value: float | None) -> str:
    if value is None:
        return _UNKNOWN
    return f"{value:.3f}" if value < 1 else f"{value:.2f}" if value < 100 else f"{value:,.0f}"  # noqa: PLR2004 - digits


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"  # noqa: PLR2004 - digits
