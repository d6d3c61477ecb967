"""The limits that a configuration has to keep."""

from __future__ import annotations

import pytest

from naiad.core.errors import OptionError
from naiad_operations.bench.load import LoadResult
from naiad_operations.tune.objective import Limit, Measured, measured_of, parse_objective


def measured(rate=100.0, errors=0, **milliseconds):
    return Measured(concurrency=1, rate=rate, milliseconds=milliseconds, errors=errors)


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        ("", ()),
        ("p95<20ms", (Limit("p95", 20),)),
        (" p99 <= 1.5s , mean<500us ", (Limit("p99", 1500), Limit("mean", 0.5))),
        ("max<7", (Limit("max", 7),)),
    ],
)
def test_limits_have_a_figure_and_a_time_with_a_unit(text, limits):
    assert parse_objective(text) == limits


@pytest.mark.parametrize("text", ["p95", "p95>20ms", "p42<20ms", "p95<20min", "p95<0ms", "p95<20ms;p99<1s"])
def test_other_limits_are_refused_with_an_example(text):
    with pytest.raises(OptionError, match=r"is not a limit; give one of p50, .* with a time, such as p95<20ms"):
        parse_objective(text)


def test_a_load_keeps_limits_by_its_worst_figure_and_never_with_an_error():
    limits = parse_objective("p95<20ms,max<100ms")
    assert measured(p95=10, max=50).excess(limits) == 0.5
    assert measured(p95=10, max=150).excess(limits) == 1.5
    assert measured(p95=10, max=50, errors=1).excess(limits) == float("inf")
    assert measured().excess(limits) == float("inf")
    assert measured(p95=10, max=50).excess(()) == 0


def test_the_figures_of_a_load_are_those_that_naiad_bench_prints():
    result = LoadResult(concurrency=3, seconds=2.0)
    result.latencies_ms.extend(range(1, 101))
    found = measured_of(result)
    assert (found.concurrency, found.rate, found.errors) == (3, 50.0, 0)
    assert found.milliseconds == {"p50": 50, "p90": 90, "p95": 95, "p99": 99, "mean": 50.5, "max": 100}
    assert measured_of(LoadResult(concurrency=1)).milliseconds == {}
