"""What is left of the exit timeout, for requests and for models."""

from __future__ import annotations

import pytest

from naiad.engine.lifecycle.exit_time import ExitTime


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_timeout_begins_with_the_first_question():
    clock = Clock()
    exit_time = ExitTime(30, clock)
    clock.now += 1000
    assert exit_time.for_requests() == 30
    clock.now += 10
    assert (exit_time.for_requests(), exit_time.for_models()) == (20, 20)
    clock.now += 100
    assert exit_time.for_requests() == 0


@pytest.mark.parametrize(("seconds", "least"), [(30, 5), (5, 5), (1, 1), (0, 0)])
def test_requests_cannot_use_up_the_time_of_models(seconds, least):
    clock = Clock()
    exit_time = ExitTime(seconds, clock)
    exit_time.for_requests()
    clock.now += seconds + 1
    assert exit_time.for_requests() == 0
    assert exit_time.for_models() == least
