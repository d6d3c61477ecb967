"""Counts of whole numbers by rounded value, from which quantiles are read; memory does not grow with requests."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

__all__ = ["quantile_of", "rounded_value"]


def rounded_value(value: int, bits: int) -> int:
    """*value* with all but its leading *bits* bits cleared: values of similar size share a counter."""
    shift = max(value.bit_length() - bits, 0)
    return value >> shift << shift


def quantile_of(counts: Mapping[int, int], quantile: float) -> float:
    """A quantile of values that are given by their counts; NaN of no values."""
    rank = max(ceil(quantile * sum(counts.values())), 1)
    for value in sorted(counts):
        rank -= counts[value]
        if rank <= 0:
            return value
    return float("nan")
