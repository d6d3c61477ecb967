"""When a guest that has requests counts as hung."""

from __future__ import annotations

import pytest

from naiad.guests.hang_watch import HangWatch


@pytest.mark.parametrize(
    ("now", "sent", "is_hung"),
    [(110, 0, False), (110.1, 0, True), (115, 105, False), (115.1, 105, True), (115.1, 0, True)],
    ids=["in time", "late", "sent later, in time", "sent later, late", "no batch"],
)
def test_time_counts_from_the_last_progress_or_from_the_oldest_batch(now, sent, is_hung):
    watch = HangWatch(10)
    watch.record(100)
    assert watch.check(now, sent) is is_hung
    assert watch.is_hung is is_hung


@pytest.mark.parametrize(("seconds", "check"), [(0.4, 0.05), (4, 0.5), (600, 1)])
def test_checks_are_frequent_enough_for_the_limit(seconds, check):
    assert HangWatch(seconds).check_seconds == check
