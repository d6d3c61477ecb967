"""Statistics of native backends: what they report themselves, as in the reference.

A backend in C reports the times of each request and of each batch, or reports nothing, and then nothing is counted. Its
report may come before the request's last response or after it. It may also report each response of a request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from naiad_stub import wire

from naiad.core import clock
from naiad.engine.statistics.counters import FailureReason, Statistics
from naiad.guests.exchange import ExecutionReport
from naiad.protocol.metadata import Duration, ResponseStatistics

# Responses at later positions are not counted: a stream of a million must not yield a million lines of statistics.
POSITION_LIMIT = 1024
_KEPT = 1024  # ended requests whose report may still come: most backends report at once, and some never do


class _ReportedPosition:
    """Counts and nanoseconds of the responses at one position, as the reference counts them."""

    __slots__ = ("cancel", "empty", "fail", "infer", "output", "success")

    def __init__(self) -> None:
        self.infer = self.output = self.success = self.fail = self.empty = self.cancel = Duration()

    def add(self, kind: int, computed: int, written: int) -> None:
        if kind == wire.REPORT_CANCELLED_RESPONSE:
            self.cancel = _plus(self.cancel, written)
            return
        self.infer = _plus(self.infer, computed)
        if kind == wire.REPORT_EMPTY_RESPONSE:
            self.empty = _plus(self.empty, written)
            return
        if kind == wire.REPORT_RESPONSE or written > computed:
            self.output = _plus(self.output, written - computed)
        if kind == wire.REPORT_RESPONSE:
            self.success = _plus(self.success, written)
        else:
            self.fail = _plus(self.fail, written)


class ReportedResponses:
    """Sums of what backends report about single responses. Iterating yields the positions with their values."""

    def __init__(self) -> None:
        self._positions: dict[int, _ReportedPosition] = {}

    def __iter__(self) -> Iterator[tuple[int, ResponseStatistics]]:
        for number, position in sorted(self._positions.items()):
            yield (
                number,
                ResponseStatistics(
                    compute_infer=position.infer,
                    compute_output=position.output,
                    success=position.success,
                    fail=position.fail,
                    empty_response=position.empty,
                    cancel=position.cancel,
                ),
            )

    def add(self, kind: int, position: int, computed: int, written: int) -> None:
        """Count a response, unless its position is beyond those that are counted."""
        if position < POSITION_LIMIT:
            self._positions.setdefault(position, _ReportedPosition()).add(kind, computed, written)


class ReportedStatistics:
    """Counts what backends report of requests; *find* has when one in flight was queued, and its rows."""

    def __init__(self, statistics: Statistics, find: Callable[[int], tuple[int, int] | None]) -> None:
        self._statistics = statistics
        statistics.responses = self._responses = ReportedResponses()
        self._find = find
        self._ended: dict[int, tuple[int, int]] = {}
        self._reported: set[int] = set()  # keys of requests in flight

    def on_end(self, key: int, queued: int, rows: int) -> None:
        """A request had its last response."""
        if key in self._reported:
            self._reported.discard(key)
            return
        if len(self._ended) >= _KEPT:
            del self._ended[next(iter(self._ended))]
        self._ended[key] = queued, rows

    def on_reports(self, reports: Sequence[ExecutionReport]) -> None:
        for kind, subject, exec_start, compute_start, compute_end, exec_end in reports:
            if kind == wire.REPORT_BATCH:
                self._statistics.on_execution(subject, exec_start, compute_start, compute_end, exec_end)
                self._statistics.last = clock.monotonic_ns()
                continue
            if kind >= wire.REPORT_RESPONSE:
                self._responses.add(kind, subject, compute_end, exec_end)
                continue
            request = self._find(subject)
            if request is None:
                request = self._ended.pop(subject, None)
                if request is None:  # a warm-up sample, a row without a request, or reported twice
                    continue
            elif subject in self._reported:
                continue
            else:
                self._reported.add(subject)
            queued, rows = request
            if kind == wire.REPORT_SUCCESS:
                times: tuple[int, ...] = exec_start, compute_start, compute_end, exec_end
                if exec_start < queued:
                    # Nothing was executed before it was queued: a wrong clock must not make durations negative.
                    times = tuple([max(each, queued) for each in times])
                # The time of the last inference is that of the last batch, as in the reference.
                last = self._statistics.last
                self._statistics.on_success(rows, queued, *times)
                self._statistics.last = last
            else:
                self._statistics.on_failure(clock.monotonic_ns() - queued, FailureReason.BACKEND)


def _plus(duration: Duration, ns: int) -> Duration:
    return Duration(duration.count + 1, duration.ns + ns)
