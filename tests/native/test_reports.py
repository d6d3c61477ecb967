"""What a backend reports on its way to the host: with the responses of its batch, or at once."""

from __future__ import annotations

import threading

import pytest
from naiad_stub import wire
from naiad_stub.native.statistics import Reports

RECORD = wire.REPORT.pack(wire.REPORT_SUCCESS, 7, 1, 2, 3, 4)


class Posts(list):
    """The part of the channel that is used."""

    post = list.append


@pytest.fixture
def posts():
    return Posts()


def report(reports: Reports, count: int = 1) -> None:
    for _ in range(count):
        reports.add(wire.REPORT_SUCCESS, 7, 1, 2, 3, 4)


def test_what_the_executing_thread_reports_is_taken_once_with_its_batch(posts):
    reports = Reports(posts)
    reports.thread = threading.get_ident()
    report(reports, 2)
    assert (reports.take(), posts) == ([RECORD] * 2, [])
    assert reports.take() == []


def test_what_another_thread_reports_is_sent_at_once(posts):
    reports = Reports(posts)
    report(reports)
    assert (posts, reports.take()) == ([wire.frame(wire.Kind.REPORTS, RECORD)], [])


def test_more_reports_than_a_message_can_count_are_sent_before_it(posts):
    reports = Reports(posts)
    reports.thread = threading.get_ident()
    report(reports, wire.MAX_REPORTS)
    assert len(reports.take()) == wire.MAX_REPORTS
    assert posts == []
    report(reports, wire.MAX_REPORTS + 1)
    assert reports.take() == []
    assert posts == [wire.frame(wire.Kind.REPORTS, RECORD * (wire.MAX_REPORTS + 1))]
