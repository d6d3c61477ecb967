"""The order in which configurations are tried, by scores that a function gives."""

from __future__ import annotations

import pytest

from naiad_operations.tune.objective import Limit, Measured
from naiad_operations.tune.search import Candidate, Space, best_load, score, search

SPACE = Space(instances=[1, 2, 3, 4, 6, 8], batches=[0, 2, 4, 8, 16], delays_us=[0, 100, 500, 1000, 5000])
START = Candidate(1, 0, 0)
LIMITS = (Limit("p95", 20.0),)


def found(rate_of, start=START, space=SPACE, most=100):
    """What a search finds, and the candidates that it tried in their order."""
    steps = search(start, space, most)
    tried = [next(steps)]
    while True:
        try:
            tried.append(steps.send(rate_of(tried[-1])))
        except StopIteration as end:
            assert len(tried) == len(set(tried)) <= most
            return end.value, tried


def load(concurrency, rate, p95, errors=0):
    return Measured(concurrency=concurrency, rate=rate, milliseconds={"p95": p95}, errors=errors)


def test_instances_are_added_until_one_more_gains_nothing():
    best, tried = found(lambda each: 100 * min(each.instances, 4) - each.batch)
    assert best == Candidate(4, 0, 0)
    assert [each.instances for each in tried[:5]] == [1, 2, 3, 4, 6]


def test_fewer_instances_are_chosen_where_they_do_as_well():
    best, _ = found(lambda each: 100.0 - each.batch, start=Candidate(8, 0, 0))
    assert best == Candidate(1, 0, 0)


def test_all_three_settings_are_found_together():
    def rate(each):
        batch = min(each.batch, 8) or 1
        return 50 * min(each.instances, 2) * batch * (1.2 if each.delay_us >= 500 else 1)

    assert found(rate)[0] == Candidate(2, 8, 500)


def test_a_batch_that_gains_only_if_it_is_waited_for_is_found():
    def rate(each):
        filled = min(each.batch, 16) if each.delay_us >= 1000 else min(each.batch, 2)
        return 100.0 * (filled or 1)

    assert found(rate)[0] == Candidate(1, 16, 1000)


def test_a_few_of_many_candidates_are_tried_and_never_more_than_allowed():
    every = len(SPACE.instances) * (1 + (len(SPACE.batches) - 1) * len(SPACE.delays_us))
    _, tried = found(lambda each: each.instances * (each.batch + 1) * (1000 + each.delay_us))
    assert len(tried) < every / 4
    best, tried = found(lambda each: float(each.instances), most=3)
    assert len(tried) == 3
    assert best == Candidate(3, 0, 0)


def test_candidates_that_keep_no_limit_are_compared_by_how_far_they_are_from_it():
    best, _ = found(lambda each: -10.0 / each.instances if each.instances < 6 else 30.0 * each.instances)
    assert best == Candidate(8, 0, 0)


@pytest.mark.parametrize("seed", range(20))
def test_a_search_ends_for_any_scores_and_returns_the_best_of_its_last_steps(seed):
    import random

    scores = random.Random(seed)
    known = {}
    best, tried = found(lambda each: known.setdefault(each, scores.uniform(-5, 100)))
    assert best in tried
    assert known[best] >= known[Candidate(1, 0, 0)] * 0.9 or known[Candidate(1, 0, 0)] <= 0


def test_a_model_without_batches_varies_its_instances_alone():
    space = Space(instances=[1, 2], batches=[], delays_us=[0, 100])
    _, tried = found(lambda each: float(each.instances), space=space)
    assert set(tried) == {Candidate(1, 0, 0), Candidate(2, 0, 0)}


def test_a_delay_belongs_to_batches():
    assert SPACE.neighbour(Candidate(1, 0, 0), "delay_us", 1) is None
    assert SPACE.neighbour(Candidate(1, 2, 500), "batch", -1) == Candidate(1, 0, 0)
    assert SPACE.neighbour(Candidate(1, 3, 50), "batch", 1) == Candidate(1, 4, 50)  # also from between two values


def test_the_score_is_the_highest_rate_within_the_limits():
    loads = [load(1, 100, 5), load(4, 300, 15), load(16, 500, 30)]
    assert best_load(loads, LIMITS) == loads[1]
    assert score(loads, LIMITS) == 300
    assert score(loads, ()) == 500
    assert score([load(1, 100, 40), load(4, 300, 60)], LIMITS) == -2
    assert score([load(1, 100, 5, errors=1)], LIMITS) == float("-inf")
    assert score([], LIMITS) == float("-inf")
