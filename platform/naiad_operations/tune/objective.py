"""What a configuration has to keep: limits on the latency of requests, such as `p95<20ms`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from naiad.core.errors import OptionError
from naiad_operations.bench.load import LoadResult
from naiad_operations.bench.report import as_json

FIGURES = ("p50", "p90", "p95", "p99", "mean", "max")
_UNITS = {"us": 0.001, "ms": 1.0, "s": 1000.0}
_LIMIT = re.compile(r"(\w+)\s*<=?\s*(\d+(?:\.\d+)?)\s*(us|ms|s)?")


@dataclass(frozen=True, slots=True)
class Limit:
    """An upper bound of a figure."""

    figure: str
    milliseconds: float

    def __str__(self) -> str:
        return f"{self.figure}<{self.milliseconds:g}ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One load of a candidate; *milliseconds* has its latencies by figure, none if no request succeeded."""

    concurrency: int
    rate: float
    milliseconds: dict[str, float]
    errors: int = 0
    first_error: str = ""

    def excess(self, limits: Sequence[Limit]) -> float:
        """The largest share of a limit that is used: at most 1 if all are kept; infinite if a request failed."""
        if self.errors or not self.milliseconds:
            return float("inf")
        return max((self.milliseconds[limit.figure] / limit.milliseconds for limit in limits), default=0.0)


def measured_of(result: LoadResult) -> Measured:
    """The figures of a load."""
    values = as_json(result)
    return Measured(
        concurrency=result.concurrency,
        rate=result.requests_per_second,
        milliseconds={name: values[f"{name}_ms"] for name in FIGURES if values[f"{name}_ms"] is not None},
        errors=result.errors,
        first_error=result.first_error,
    )


def parse_objective(text: str) -> tuple[Limit, ...]:
    """The limits of `p95<20ms,max<1s`; none of an empty text, which means the highest rate at any latency."""
    limits = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = _LIMIT.fullmatch(part)
        if match is None or match[1] not in FIGURES or not float(match[2]):
            raise OptionError(
                f"--objective={text}: '{part}' is not a limit; give one of {', '.join(FIGURES)} with a time, such as "
                "p95<20ms"
            )
        limits.append(Limit(match[1], float(match[2]) * _UNITS[match[3] or "ms"]))
    return tuple(limits)
