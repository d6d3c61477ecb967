"""Histories of servers with several processes: nothing of what must not happen happens between them."""

from __future__ import annotations

import pytest
from simulation.checking import check
from simulation.histories import make_processes


@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(0, 240, 30))
def test_nothing_goes_wrong_in_histories_of_fixed_seeds(first: int) -> None:
    check(range(first, first + 30), made=make_processes)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(10_000, 10_400, 200))
def test_nothing_goes_wrong_in_many_histories(first: int) -> None:
    check(range(first, first + 200), made=make_processes)


@pytest.mark.endurance
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(20_000, 22_000, 500))
def test_nothing_goes_wrong_in_two_thousand_histories(first: int) -> None:
    check(range(first, first + 500), made=make_processes)
