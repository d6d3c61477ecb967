"""Which instances stand still: a table of who waits for whom."""

from __future__ import annotations

import pytest

from naiad.engine.scheduling.deadlock import find_deadlocked


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
    assert find_deadlocked({name: [set(servers) for servers in of] for name, of in calls.items()}) == set(standing)
