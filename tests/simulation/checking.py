"""Runs the histories of many seeds for a test."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import pytest
from simulation.histories import History, make
from simulation.reduce import reduce
from simulation.run import run


def check(seeds: Iterable[int], seconds: float = 1e9, made: Callable[[int], History] = make) -> None:
    """Run the histories of *seeds*; of one that fails show the shortest that still does."""
    end = time.monotonic() + seconds
    for seed in seeds:
        result = run(made(seed))
        if result.failures:
            shortest = reduce(made(seed))
            failures = "\n".join(run(shortest).failures)
            pytest.fail(
                f"seed {seed}: {'; '.join(result.failures)}\nthe shortest history that fails:\n{shortest}\n{failures}",
                pytrace=False,
            )
        if time.monotonic() > end:
            return
