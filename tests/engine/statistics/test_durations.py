"""Quantiles over the last minute, and histograms: held against what sorting all values gives."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from naiad.engine.statistics.counters import Statistics
from naiad.engine.statistics.durations import Durations, Histogram, Summary

SECOND = 1_000_000_000
START = 1_000 * SECOND
QUANTILES = (0.0, 0.5, 0.9, 0.99, 1.0)


def quantiles(summary: Summary, now: int) -> list[float]:
    return [value for _, value in summary.value(QUANTILES, now).quantiles]


@given(st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 30 * SECOND)), min_size=1, max_size=60))
def test_quantiles_are_those_of_the_values_of_the_last_minute(observed):
    """To one part in 128, and to ten seconds."""
    summary, now, seen = Summary(), START, []
    for value, passed in observed:
        now += passed
        summary.observe(value, now)
        seen.append((now, value))
    turn = now // (10 * SECOND)
    recent = sorted(value for when, value in seen if when // (10 * SECOND) > turn - 6)
    for quantile, found in summary.value(QUANTILES, now).quantiles:
        exact = recent[max(math.ceil(quantile * len(recent)), 1) - 1]
        assert exact * 127 / 128 <= found <= exact
    assert (summary.value((), now).count, summary.value((), now).sum) == (len(seen), sum(v for _, v in seen))


def test_a_minute_later_there_is_no_quantile_but_still_count_and_sum():
    summary = Summary()
    summary.observe(5, START)
    assert quantiles(summary, START + 49 * SECOND) == [5] * 5
    assert all(math.isnan(value) for value in quantiles(summary, START + 60 * SECOND))
    assert all(math.isnan(value) for value in quantiles(summary, START + 6000 * SECOND))
    told = summary.value((), START + 6000 * SECOND)
    assert (told.count, told.sum) == (1, 5)


def test_values_up_to_256_are_exact():
    summary = Summary()
    for value in range(256):
        summary.observe(value, START)
    assert quantiles(summary, START) == [0, 127, 230, 253, 255]


@given(st.lists(st.integers(-5, 15)), st.lists(st.integers(0, 10), unique=True, min_size=1))
def test_a_histogram_counts_each_value_in_the_first_bucket_that_takes_it(values, bounds):
    histogram = Histogram(bounds)
    for value in values:
        histogram.observe(value)
    told = histogram.value()
    assert told.bounds == tuple(sorted(bounds))
    assert told.sum == sum(values)
    for index, bound in enumerate(told.bounds):
        assert sum(told.counts[: index + 1]) == sum(value <= bound for value in values)
    assert sum(told.counts) == len(values)


def test_a_model_with_a_cache_has_summaries_of_hits_and_misses_and_none_of_whole_requests():
    durations = Durations((0.5,), is_cached=True)
    durations.on_success(9_000, 1_000, 2_000, 3_000, 4_000)
    durations.on_cache_hit(7_000)
    durations.on_cache_miss(8_000)
    told = {name: (value.count, value.sum) for name, value in durations.value().items()}
    assert told == {
        "queue": (2, 1),
        "compute_input": (1, 2),
        "compute_infer": (1, 3),
        "compute_output": (1, 4),
        "cache_hit": (1, 7),
        "cache_miss": (1, 8),
    }


def test_an_ensembles_parts_are_what_its_steps_took_though_they_took_it_side_by_side():
    statistics = Statistics()
    statistics.durations = Durations((1,), is_cached=False)
    statistics.on_composed(2, 1_000, 12_000, (3_000, 9_000, 5_000))
    told = statistics.value("m", "1")
    assert {name: value.sum for name, value in told.summaries.items()} == {
        "request": 11,
        "queue": 0,
        "compute_input": 3,
        "compute_infer": 9,
        "compute_output": 5,
    }
    assert (told.compute_output.ns, told.success.ns, told.inference_count) == (5_000, 11_000, 2)
