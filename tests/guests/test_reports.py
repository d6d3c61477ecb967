"""REPORTS: what a native backend reports, checked as everything that a guest sends."""

from __future__ import annotations

import pytest
from naiad_stub import wire

from naiad.core.errors import ProtocolError
from naiad.engine.statistics.counters import Statistics
from naiad.engine.statistics.reported import ReportedStatistics
from naiad.guests.exchange import ExecutionReport, read_memory_usage, read_reports
from naiad.protocol.metadata import MemoryUse


def test_reports_are_read_in_order():
    payload = wire.REPORT.pack(1, 7, 1, 2, 3, 4) + wire.REPORT.pack(0, 2, 1, 2, 3, 4)
    assert read_reports(payload) == [ExecutionReport(1, 7, 1, 2, 3, 4), ExecutionReport(0, 2, 1, 2, 3, 4)]
    assert read_reports(b"") == []


@pytest.mark.parametrize("payload", [b"short", wire.REPORT.pack(1, 7, 1, 2, 3, 4) + b"x"])
def test_half_a_record_breaks_the_protocol(payload):
    with pytest.raises(ProtocolError):
        read_reports(payload)


def test_an_unknown_kind_breaks_the_protocol():
    with pytest.raises(ProtocolError, match="unknown kind of report: 9"):
        read_reports(wire.REPORT.pack(9, 7, 1, 2, 3, 4))


@pytest.mark.parametrize(
    ("times", "read"),
    [((4, 3, 2, 1), (1, 2, 3, 4)), ((0, 0, 0, 5), (0, 0, 0, 5)), ((1, 2, 3, 2**64 - 1), (0, 0, 0, 0))],
)
def test_times_in_a_wrong_order_do_not_become_negative_durations(times, read):
    """A backend may report anything with a failure: it must not cost it its process."""
    assert read_reports(wire.REPORT.pack(2, 7, *times)) == [ExecutionReport(2, 7, *read)]


def counted(*reports: ExecutionReport, ended: tuple[int, ...] = ()) -> tuple[int, int, int]:
    statistics = Statistics()
    flying = {7: (100, 3)}
    reported = ReportedStatistics(statistics, flying.get)
    for key in ended:
        queued, rows = flying.pop(key)
        reported.on_end(key, queued, rows)
    reported.on_reports(reports)
    value = statistics.value("m", "1")
    return value.inference_count, value.execution_count, value.fail.count


def test_times_before_the_request_was_queued_count_as_no_time():
    statistics = Statistics()
    ReportedStatistics(statistics, {7: (100, 1)}.get).on_reports([ExecutionReport(1, 7, 0, 0, 0, 120)])
    value = statistics.value("m", "1")
    assert (value.queue.ns, value.compute_input.ns, value.compute_infer.ns, value.compute_output.ns) == (0, 0, 0, 20)


def test_a_request_is_counted_by_its_report_before_and_after_its_last_response():
    success = ExecutionReport(wire.REPORT_SUCCESS, 7, 200, 210, 220, 230)
    assert counted(success) == (3, 0, 0)
    assert counted(success, ended=(7,)) == (3, 0, 0)
    assert counted(success, success, ended=(7,)) == (3, 0, 0)
    assert counted(success, success) == (3, 0, 0)
    assert counted(success._replace(kind=wire.REPORT_FAILURE)) == (0, 0, 1)
    assert counted(success._replace(kind=wire.REPORT_BATCH, subject=5)) == (0, 1, 0)
    assert counted(success._replace(subject=8)) == (0, 0, 0)


def test_responses_at_positions_beyond_those_that_are_counted_are_ignored():
    statistics = Statistics()
    records = [ExecutionReport(wire.REPORT_RESPONSE, position, 0, 0, 20, 50) for position in (3, 3, 1 << 40)]
    ReportedStatistics(statistics, {}.get).on_reports(records)
    [(position, value)] = statistics.value("m", "1").responses
    assert position == 3
    assert (value.compute_infer.ns, value.compute_output.ns, value.success.count) == (40, 60, 2)


def test_memory_in_use_is_read_by_type_and_id():
    assert read_memory_usage([0, 0, 9, 2, (1 << 64) - 1, 5]) == (MemoryUse("CPU", 0, 9), MemoryUse("GPU", -1, 5))
    assert read_memory_usage([]) == ()


@pytest.mark.parametrize(
    ("usage", "text"), [([0, 0], "2 numbers are not whole records"), ([3, 0, 1], "unknown type of memory: 3")]
)
def test_malformed_memory_in_use_breaks_the_protocol(usage, text):
    with pytest.raises(ProtocolError, match=text):
        read_memory_usage(usage)
