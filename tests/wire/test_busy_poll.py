"""When a side of a channel polls: a table of what it saw, without a clock."""

from __future__ import annotations

import pytest
from naiad_stub.busy_poll import BusyPoll

US = 1000
MS = 1000 * US
START = 10**12  # clocks begin anywhere


def _beating(*gaps_us: int, limit_us: int = 400) -> BusyPoll:
    """One that saw beats with these gaps between them."""
    poll, now = BusyPoll(limit_us), START
    poll.on_activity(now)
    for gap in gaps_us:
        now += gap * US
        poll.on_activity(now)
    return poll


def _now(*gaps_us: int) -> int:
    return START + sum(gaps_us) * US


@pytest.mark.parametrize(
    ("gaps_us", "is_on"),
    [
        ((), False),
        ((50,), False),
        ((50, 100), True),
        ((50, 100, 50, 399), True),
        ((50, 100, 400), False),
        ((400, 100), False),
        ((5000, 100, 5000, 100), False),  # a model that works for 5 ms, asked again at once
        ((5000, 100, 90), True),
    ],
)
def test_a_guest_polls_after_two_short_gaps_in_a_row(gaps_us: tuple[int, ...], *, is_on: bool) -> None:
    assert _beating(*gaps_us).is_on is is_on


def test_a_guest_never_polls_with_a_limit_of_0() -> None:
    assert not _beating(0, 0, 1, 1, limit_us=0).is_on


def test_a_guest_sleeps_when_no_message_arrives_in_time() -> None:
    poll, now = _beating(50, 50), _now(50, 50)

    poll.on_yield(now + 300 * US, now + 301 * US, found=False)
    assert poll.is_on

    poll.on_yield(now + 400 * US, now + 401 * US, found=False)
    assert not poll.is_on


@pytest.mark.parametrize(
    ("away_us", "found", "is_on"),
    [(90, True, True), (110, True, False), (110, False, True), (390, False, True), (510, False, False)],
)
def test_a_guest_sleeps_if_other_processes_need_the_processor(away_us: int, *, found: bool, is_on: bool) -> None:
    poll, now = _beating(50, 50, limit_us=100_000), _now(50, 50)

    poll.on_yield(now, now + away_us * US, found=found)

    assert poll.is_on is is_on


def _rest_after(poll: BusyPoll, now: int) -> int:
    """Milliseconds until beats have it poll again, found by trying."""
    for rest in range(20_000):
        then = now + rest * MS
        poll.on_activity(then - 2 * US)
        poll.on_activity(then - US)
        poll.on_activity(then)
        if poll.is_on:
            return rest
    raise AssertionError("it never polls again")


def _lucky(poll: BusyPoll, now: int, times: int) -> None:
    for _ in range(times):
        poll.on_yield(now, now + 10 * US, found=True)


def _follow(poll: BusyPoll, now: int, polled_us: int, slept_us: int, *, count: int) -> int:
    """Let so many messages come, whose gap depends on whether they are polled for; returns the time then."""
    for _ in range(count):
        now += (polled_us if poll.is_on else slept_us) * US
        poll.on_activity(now)
    return now


def _share_of_polling(poll: BusyPoll, now: int, polled_us: int, slept_us: int) -> float:
    """How many of 30 s of messages are polled for."""
    polled, end = 0, now + 30 * 1000 * MS
    count = 0
    while now < end:
        polled += poll.is_on
        count += 1
        now = _follow(poll, now, polled_us, slept_us, count=1)
    return polled / count


@pytest.mark.parametrize(
    ("polled_us", "slept_us", "is_most"),
    [(50, 110, True), (50, 50, True), (150, 80, False), (80, 60, False)],
)
def test_a_guest_polls_unless_messages_are_closer_when_it_sleeps(
    polled_us: int, slept_us: int, *, is_most: bool
) -> None:
    poll, now = _beating(50, 50), _now(50, 50)

    share = _share_of_polling(poll, now, polled_us, slept_us)

    assert share > 0.98 if is_most else share < 0.02


def test_a_guest_detects_when_polling_is_useful_again() -> None:
    poll, now = _beating(50, 50), _now(50, 50)
    now = _follow(poll, now, 150, 80, count=300_000)  # 24 s
    now = _follow(poll, now, 50, 110, count=120_000)  # the longest pause, and a little more

    assert _share_of_polling(poll, now, 50, 110) > 0.98


def test_a_single_late_message_does_not_end_polling() -> None:
    poll, now = _beating(50, 50), _now(50, 50)
    now = _follow(poll, now, 50, 60, count=250)
    poll.on_activity(now + 300 * US)
    now = _follow(poll, now + 300 * US, 50, 60, count=100)

    assert poll.is_on


def test_the_pause_of_polling_grows_with_each_failure_and_is_reset_by_success() -> None:
    poll, now = _beating(50, 50), _now(50, 50)
    rests = []
    for _ in range(6):
        poll.on_yield(now, now + MS, found=True)
        now += MS
        rests.append(_rest_after(poll, now))
        now += rests[-1] * MS

    assert rests == [100, 400, 1600, 6400, 10_000, 10_000]

    now = _follow(poll, now, 50, 110, count=10_000)
    poll.on_yield(now, now + MS, found=True)
    assert _rest_after(poll, now + MS) == 100


@pytest.mark.parametrize(("lucky", "goes_on"), [(10, False), (100, True)])
def test_polling_continues_if_less_than_one_message_in_twenty_is_late(lucky: int, *, goes_on: bool) -> None:
    poll, now = _beating(50, 50), _now(50, 50)
    _lucky(poll, now, 100)

    for _ in range(50):
        if not poll.is_on:
            break
        poll.on_yield(now, now + MS, found=True)
        _lucky(poll, now, lucky)

    assert poll.is_on is goes_on
