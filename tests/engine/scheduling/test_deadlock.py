"""Which instances stand still: a table of who waits for whom."""

from __future__ import annotations

import pytest

from naiad.engine.scheduling.deadlock import deadlock_cycle, find_deadlocked


def waits_of(calls):
    return {name: [set(servers) for servers in of] for name, of in calls.items()}


@pytest.mark.parametrize(
    ("calls", "standing"),
    [
        ({}, ""),
        ({"a": ["a"]}, "a"),
        ({"a": ["b"]}, ""),  # b works on something
        ({"a": ["b"], "b": ["a"]}, "ab"),
        ({"a": ["b"], "b": ["c"], "c": ["a"]}, "abc"),
        ({"a": ["bc"], "b": ["a"]}, ""),  # c may answer, too
        ({"a": ["bc"], "b": ["a"], "c": ["a"]}, "abc"),
        ({"a": ["b", "x"], "b": ["a"]}, "ab"),  # a needs both results
        ({"a": ["b", "a"], "b": ["a"]}, "ab"),
        ({"a": [""], "b": ["a"]}, ""),  # somebody is being started
        ({"a": ["a"], "b": ["a"], "c": ["x"]}, "ab"),
    ],
)
def test_instances_that_only_each_other_could_answer_are_found_blocked(calls, standing):
    assert find_deadlocked(waits_of(calls)) == set(standing)


@pytest.mark.parametrize(
    ("calls", "cycle"),
    [
        ({"a": ["a"]}, "aa"),
        ({"a": ["b"], "b": ["c"], "c": ["a"]}, "abca"),
        ({"a": ["b"], "b": ["c"], "c": ["b"]}, "bcb"),  # a waits for the cycle and is not in it
        ({"a": ["x", "", "b"], "b": ["a"]}, "aba"),  # neither what x does nor what is being started blocks a
    ],
)
def test_a_cycle_of_blocked_instances_is_in_the_order_of_their_calls(calls, cycle):
    waits = waits_of(calls)
    assert deadlock_cycle("a", waits, find_deadlocked(waits)) == list(cycle)
