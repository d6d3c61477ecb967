"""Whether a version that was given up counts as lost, and when a guest of it is tried."""

from __future__ import annotations

import pytest

from naiad.engine.lifecycle.recovery import RecoveryTrials

WINDOW = 60.0


def give_up(trials: RecoveryTrials, count: int, *, has_served: bool = False) -> list[bool]:
    found = []
    for _ in range(count):
        trials.on_given_up(1000.0, 30.0, has_served=has_served)
        found.append(trials.is_lost)
    return found


def test_three_trials_whose_guests_do_not_start_lose_a_version():
    trials = RecoveryTrials(WINDOW)
    assert not trials.is_lost
    trials.on_given_up(1000.0, 30.0, has_served=True)
    assert give_up(trials, 3) == [False, False, True]


@pytest.mark.parametrize(("seconds", "is_lost"), [(0.0, True), (WINDOW - 0.1, True), (WINDOW, False)])
def test_only_a_window_of_service_ends_the_row_of_failed_trials(seconds, is_lost):
    trials = RecoveryTrials(WINDOW)
    give_up(trials, 3)
    trials.on_serving(2000.0)
    trials.on_given_up(2000.0 + seconds, 30.0, has_served=True)
    assert trials.is_lost is is_lost


def test_a_version_that_is_never_tried_is_lost_at_once():
    trials = RecoveryTrials(WINDOW)
    trials.on_given_up(1000.0, None, has_served=True)
    assert trials.is_lost
    assert trials.delay(1000.0) == 0


def test_no_guest_is_tried_before_the_pause_is_over():
    trials = RecoveryTrials(WINDOW)
    assert trials.delay(1000.0) <= 0
    give_up(trials, 1)
    assert [trials.delay(now) for now in (1000.0, 1010.0, 1031.0)] == [30.0, 20.0, -1.0]
