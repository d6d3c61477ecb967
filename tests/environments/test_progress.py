"""Somebody who waits for an environment is told how far it is, on a terminal and in the log."""

from __future__ import annotations

import io
import logging
from pathlib import Path

import pytest

from naiad.environments.progress import (
    BarReporter,
    LogReporter,
    ProgressEvent,
    ProgressMeter,
    default_reporter,
    steps_shown,
)

ERASE_LINE = "\x1b[2K"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def event(done: int, seconds: float, *, name: str = "e.tar.gz", finished: bool = False, failed: bool = False):
    return ProgressEvent(
        step="unpacking",
        label="m",
        path=Path("/archives") / name,
        done=done,
        total=40_000_000,
        seconds=seconds,
        finished=finished,
        failed=failed,
    )


def test_a_meter_ends_its_step_at_the_whole_size(recorder, tmp_path):
    with ProgressMeter(recorder, step="reading", label="m", path=tmp_path, total=3) as meter:
        meter.advance(3)

    last = recorder.events[-1]
    assert (last.done, last.finished, last.failed) == (3, True, False)


def test_a_meter_whose_step_fails_says_so(recorder, tmp_path):
    with (
        pytest.raises(OSError, match="torn"),
        ProgressMeter(recorder, step="reading", label="", path=tmp_path, total=3),
    ):
        raise OSError("torn")

    assert (recorder.events[-1].finished, recorder.events[-1].failed) == (True, True)


def test_the_log_gets_a_line_every_few_seconds_with_bytes_and_rate(caplog):
    caplog.set_level(logging.INFO, "naiad.environments")
    reporter = LogReporter()

    for done, seconds in ((1, 1), (20_000_000, 5.5), (21_000_000, 6), (30_000_000, 11)):
        reporter.on_progress(event(done, seconds))
    reporter.on_progress(event(40_000_000, 12, finished=True))

    assert caplog.messages == [
        "unpacking /archives/e.tar.gz for 'm': 20.0 of 40.0 MB (50 %), 3.6 MB/s",
        "unpacking /archives/e.tar.gz for 'm': 30.0 of 40.0 MB (75 %), 2.7 MB/s",
        "done unpacking /archives/e.tar.gz for 'm': 40.0 of 40.0 MB (100 %), 3.3 MB/s",
    ]


def test_a_step_that_failed_is_not_called_done(caplog):
    caplog.set_level(logging.DEBUG, "naiad.environments")

    LogReporter().on_progress(event(20_000_000, 12, finished=True, failed=True))

    assert caplog.messages == ["stopped unpacking /archives/e.tar.gz for 'm': 20.0 of 40.0 MB (50 %), 1.7 MB/s"]


def test_a_terminal_gets_a_bar_for_each_archive_and_keeps_none(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    reporter = BarReporter(terminal)

    reporter.on_progress(event(20_000_000, 1))
    reporter.on_progress(event(10_000_000, 1, name="other.zip"))
    drawn = terminal.getvalue()
    reporter.on_progress(event(40_000_000, 2, finished=True))
    reporter.on_progress(event(10_000_000, 2, name="other.zip", finished=True, failed=True))

    assert "unpacking e.tar.gz" in drawn
    assert "20.0/40.0 MB" in drawn
    assert "unpacking other.zip" in drawn
    last_bar = terminal.getvalue().rindex("unpacking")
    assert ERASE_LINE in terminal.getvalue()[last_bar:]
    assert reporter._bars is None


def test_a_line_of_the_log_replaces_the_bar_it_meets(monkeypatch):
    """Nothing but the cursor's place decides that: it waits at the start of the bar's line."""
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()

    BarReporter(terminal).on_progress(event(20_000_000, 1))

    assert terminal.getvalue().endswith("\r")


def test_a_step_that_ends_at_once_gets_no_bar():
    terminal = Terminal()
    reporter = BarReporter(terminal)

    reporter.on_progress(event(20_000_000, 0.2))
    reporter.on_progress(event(40_000_000, 0.3, finished=True))

    assert not terminal.getvalue()


def test_there_is_a_bar_only_on_a_terminal():
    assert isinstance(default_reporter(io.StringIO()), LogReporter)
    assert not isinstance(default_reporter(Terminal()), LogReporter)


def test_a_command_prints_the_steps_that_a_server_logs_and_nothing_afterwards():
    log = logging.getLogger("naiad.environments")
    before = log.level, list(log.handlers)
    stream = io.StringIO()

    with steps_shown(stream):
        log.info("environment of '%s': resolving", "m")
        log.debug("a detail")
    log.warning("later")

    assert stream.getvalue() == "environment of 'm': resolving\n"
    assert (log.level, list(log.handlers)) == before
