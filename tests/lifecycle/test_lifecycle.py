"""When a guest is started again, and which state of a version may follow which."""

from __future__ import annotations

import itertools

import pytest
from naiad.lifecycle.restart import GiveUp, Restart, RestartPolicy, RestartTracker
from naiad.lifecycle.states import advance
from naiad.protocol.metadata import ModelState

S = ModelState


@pytest.mark.parametrize(
    ("deaths", "decisions"),
    [
        ([0], [Restart(0.1)]),
        ([0, 1, 2], [Restart(0.1), Restart(0.2), Restart(0.4)]),
        ([0, 1, 2, 3], [Restart(0.1), Restart(0.2), Restart(0.4), GiveUp(4)]),
        ([0, 59.9], [Restart(0.1), Restart(0.2)]),
        ([0, 60], [Restart(0.1), Restart(0.1)]),
        ([0, 1, 2, 60.5], [Restart(0.1), Restart(0.2), Restart(0.4), Restart(0.4)]),
        ([0, 1, 2, 3, 70], [Restart(0.1), Restart(0.2), Restart(0.4), GiveUp(4), Restart(0.1)]),
    ],
)
def test_restarts_come_ever_later_until_there_were_too_many(deaths, decisions):
    tracker = RestartTracker(RestartPolicy(limit=3, window=60))
    assert [tracker.on_exit(now) for now in deaths] == decisions


def test_delay_has_a_ceiling():
    tracker = RestartTracker(RestartPolicy(limit=100))
    assert [tracker.on_exit(0) for _ in range(20)][-1] == Restart(10.0)


def test_limit_of_none_gives_up_at_once():
    assert RestartTracker(RestartPolicy(limit=0)).on_exit(5) == GiveUp(1)


@pytest.mark.parametrize(
    "life",
    [
        (S.UNKNOWN, S.LOADING, S.READY, S.UNLOADING, S.UNAVAILABLE, S.LOADING, S.UNAVAILABLE, S.LOADING),
        (S.READY, S.UNAVAILABLE),
        (S.UNLOADING, S.LOADING),
    ],
)
def test_version_may_live_so(life):
    for state, following in itertools.pairwise(life):
        assert advance(state, following) is following


@pytest.mark.parametrize(
    ("state", "following"),
    [(S.UNKNOWN, S.READY), (S.LOADING, S.LOADING), (S.READY, S.READY), (S.UNAVAILABLE, S.READY), (S.READY, S.LOADING)],
)
def test_version_may_not_skip_what_lies_between(state, following):
    with pytest.raises(ValueError, match=f"that is {state.value} cannot become {following.value}"):
        advance(state, following)
