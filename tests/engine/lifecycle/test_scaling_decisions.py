"""How many instances a model should have, given how long its requests wait."""

from __future__ import annotations

import pytest

from naiad.config.model.scaling import ScalingPolicy
from naiad.engine.lifecycle.scaling import InstanceLoad, ScalingState, decide, on_failed

POLICY = ScalingPolicy(least=1, most=4, wait=0.1, idle=10)
LATE = 0.2


def follow(looks, policy=POLICY, state=None):
    """The number of instances after each look at (time, in use, waited), of a model that gets what is decided."""
    state, count, found = state or ScalingState(), policy.least, []
    for now, in_use, waited in looks:
        load = InstanceLoad(count=count, in_use=min(in_use, count), waited=waited, removable=count - min(in_use, count))
        state, count = decide(policy, state, load, now)
        found.append(count)
    return found


def test_instances_double_each_time_requests_have_waited_too_long_for_a_while():
    looks = [(eighth / 8, 4, LATE) for eighth in range(12)]
    assert follow(looks) == [1, 1, 1, 2, 2, 2, 2, 4, 4, 4, 4, 4]


@pytest.mark.parametrize("waited", [0, 0.1])
def test_a_wait_within_the_target_adds_nothing(waited):
    assert set(follow([(eighth / 8, 1, waited) for eighth in range(50)])) == {1}


def test_a_burst_that_is_over_soon_adds_nothing():
    looks = [(eighth / 8, 1, 0 if eighth % 3 == 2 else LATE) for eighth in range(50)]
    assert set(follow(looks)) == {1}


def test_instances_are_removed_when_they_were_not_needed_for_the_idle_time():
    busy = [(eighth / 8, 4, LATE) for eighth in range(8)]  # 4 instances at 7/8 s
    idle = [(second, 2 if second == 5 else 0, 0) for second in range(1, 16)]
    assert follow([*busy, *idle])[8:] == [4] * 10 + [2, 2, 2, 2, 1]


def test_a_load_that_changes_faster_than_the_idle_time_keeps_the_instances():
    busy = [(eighth / 8, 4, LATE) for eighth in range(8)]
    changing = [(second, 4 if second % 8 == 0 else 0, 0) for second in range(1, 60)]
    assert set(follow([*busy, *changing])[8:]) == {4}


def test_an_instance_in_use_is_not_removed():
    state = ScalingState(needed=(0, 0, 0, 0))
    load = InstanceLoad(count=4, in_use=1, removable=2)  # the second one is in use
    assert decide(POLICY, state, load, 100)[1] == 2
    assert decide(POLICY, state, InstanceLoad(count=4, in_use=1, removable=0), 100)[1] == 4


def test_there_are_never_fewer_than_the_least_and_more_than_the_most():
    policy = ScalingPolicy(least=2, most=3, wait=0.1, idle=1)
    assert follow([(second, 0, 0) for second in range(10)], policy)[-1] == 2
    assert follow([(eighth / 8, 4, LATE) for eighth in range(30)], policy)[-1] == 3
    assert decide(policy, ScalingState(), InstanceLoad(count=1, in_use=0), 0)[1] == 2
    assert decide(policy, ScalingState(), InstanceLoad(count=5, in_use=4, removable=1), 0)[1] == 4


def test_after_a_failure_instances_are_added_after_a_pause_that_doubles():
    state = on_failed(ScalingState(), 100)
    assert state.not_before == 105
    assert on_failed(on_failed(state, 105), 115).not_before == 135
    looks = [(101 + eighth / 8, 1, LATE) for eighth in range(40)]
    assert follow(looks, state=state)[31:34] == [1, 2, 2]
