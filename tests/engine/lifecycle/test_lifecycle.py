"""When a guest is started again, and which state of a version may follow which."""

from __future__ import annotations

import itertools

import pytest

from naiad.engine.lifecycle.restart import GiveUp, Restart, RestartPolicy, RestartTracker
from naiad.engine.lifecycle.states import advance
from naiad.protocol.metadata import ModelState

S = ModelState


@pytest.mark.parametrize(
    ("deaths", "decisions"),
    [
        ([0], [Restart(0.1)]),
        ([0, 1, 2], [Restart(0.1), Restart(0.2), Restart(0.4)]),
        ([0, 1, 2, 3], [Restart(0.1), Restart(0.2), Restart(0.4), GiveUp(4, 30)]),
        ([0, 59.9], [Restart(0.1), Restart(0.2)]),
        ([0, 60], [Restart(0.1), Restart(0.1)]),
        ([0, 1, 2, 60.5], [Restart(0.1), Restart(0.2), Restart(0.4), Restart(0.4)]),
    ],
)
def test_restarts_come_ever_later_until_there_were_too_many(deaths, decisions):
    tracker = RestartTracker(RestartPolicy(limit=3, window=60))
    assert [tracker.on_exit(now) for now in deaths] == decisions


def test_delay_has_a_ceiling():
    tracker = RestartTracker(RestartPolicy(limit=100))
    assert [tracker.on_exit(0) for _ in range(20)][-1] == Restart(10.0)


def test_a_limit_of_0_restarts_gives_up_at_once():
    assert RestartTracker(RestartPolicy(limit=0)).on_exit(5) == GiveUp(1, None)


def test_an_instance_that_was_given_up_is_tried_after_pauses_that_double():
    tracker = RestartTracker(RestartPolicy(limit=1, window=60))
    assert [tracker.on_exit(now) for now in (0, 1)] == [Restart(0.1), GiveUp(2, 30)]
    assert [tracker.on_exit(100 * n) for n in range(1, 7)] == [
        GiveUp(1, pause, is_recovery=True) for pause in (60, 120, 240, 480, 600, 600)
    ]


@pytest.mark.parametrize(("served", "decision"), [(59, GiveUp(1, 60, is_recovery=True)), (60, Restart(0.1))])
def test_recovery_has_succeeded_once_the_guest_has_served_for_a_window(served, decision):
    tracker = RestartTracker(RestartPolicy(limit=1, window=60))
    for now in (0, 1):
        tracker.on_exit(now)
    tracker.on_recovered(31)
    assert tracker.on_exit(31 + served) == decision


def test_a_recovery_whose_guest_does_not_start_fails_however_long_an_earlier_one_has_served():
    tracker = RestartTracker(RestartPolicy(limit=1, window=60, recovery=10))
    tracker.on_exit(0)
    assert tracker.on_exit(1) == GiveUp(2, 10)
    tracker.on_recovered(15)
    assert tracker.on_exit(20) == GiveUp(1, 20, is_recovery=True)
    assert tracker.on_exit(200) == GiveUp(1, 40, is_recovery=True)


def test_exits_before_a_recovery_do_not_count_after_it():
    tracker = RestartTracker(RestartPolicy(limit=1, window=60, recovery=10))
    tracker.on_exit(0)
    tracker.on_exit(1)
    tracker.on_recovered(15)
    tracker.on_exit(20)
    tracker.on_recovered(40)
    assert isinstance(tracker.on_exit(100), Restart)
    assert isinstance(tracker.on_exit(101), GiveUp)


def test_no_recovery_is_tried_where_none_is_wanted():
    tracker = RestartTracker(RestartPolicy(limit=1, recovery=0))
    assert [tracker.on_exit(now) for now in (0, 1)] == [Restart(0.1), GiveUp(2, None)]


def test_exits_that_a_request_caused_do_not_count():
    tracker = RestartTracker(RestartPolicy(limit=2))
    for now in (0, 1):
        tracker.on_exit(now)
    tracker.forget_exits({0, 1, 2})
    assert [tracker.on_exit(now) for now in (3, 4, 5)] == [Restart(0.1), Restart(0.2), GiveUp(3, 30)]


@pytest.mark.parametrize(
    "life",
    [
        (S.UNKNOWN, S.LOADING, S.READY, S.UNLOADING, S.UNAVAILABLE, S.LOADING, S.UNAVAILABLE, S.LOADING),
        (S.READY, S.UNAVAILABLE),
        (S.UNLOADING, S.LOADING),
    ],
)
def test_a_version_may_take_these_states_in_order(life):
    for state, following in itertools.pairwise(life):
        assert advance(state, following) is following


@pytest.mark.parametrize(
    ("state", "following"),
    [(S.UNKNOWN, S.READY), (S.LOADING, S.LOADING), (S.READY, S.READY), (S.UNAVAILABLE, S.READY), (S.READY, S.LOADING)],
)
def test_a_version_may_not_skip_a_state(state, following):
    with pytest.raises(ValueError, match=f"that is {state.value} cannot become {following.value}"):
        advance(state, following)
