"""Quantiles of integers that are counted by rounded value, so memory does not grow with the number of requests."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil


def rounded_value(value: int, bits: int) -> int:
    """*value* with all but its leading *bits* bits cleared: values of similar size share a counter."""
    shift = max(value.bit_length() - bits, 0)
    return value >> shift << shift


def quantile_of(counts: Mapping[int, int], quantile: float) -> float:
    """The quantile of values given as counts by value; NaN if there are no values."""
    rank = max(ceil(quantile * sum(counts.values())), 1)
    for value in sorted(counts):
        rank -= counts[value]
        if rank <= 0:
            return value
    return float("nan")
