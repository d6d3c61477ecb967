"""The last lines of the log, as the page shows them."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest

from naiad.core.logs import GuestName, LogSettings, RecentLines, ServerLine, configure, log_guest_line, log_guest_record


@pytest.fixture
def recent(tmp_path):
    with configure(LogSettings(file=tmp_path / "log"), of_libraries=False) as log:
        yield log.keep_recent()


def texts(recent, model, after=0):
    return [line.text for line in recent.lines_about(model, after)]


def test_lines_of_a_models_guests_and_of_the_server_about_it_are_kept_in_order(recent):
    logger = logging.getLogger("naiad.engine")
    guest = GuestName("adder", 1, "adder_0", 7)
    logger.info("loading: %s:%d", "adder", 1)
    log_guest_line(guest, "stdout", "hello")
    log_guest_record(guest, logging.WARNING, "model.py", 3, "careful")
    logger.info("'%s' is ready", "adder_0")
    logger.info("successfully loaded '%s' in 1 s", "adder_two")
    log_guest_line(GuestName("other", 1, "other_0", 8), "stdout", "adder is another model")
    found = recent.lines_about("adder")
    assert [line.text for line in found] == ["loading: adder:1", "hello", "careful", "'adder_0' is ready"]
    assert [(line.level, line.source) for line in found[1:3]] == [("I", "adder_0"), ("W", "adder_0")]


def test_only_later_lines_are_returned_and_no_more_than_200(recent):
    for number in range(300):
        log_guest_line(GuestName("m", 1, "m_0", 7), "stdout", f"line {number}")
    found = recent.lines_about("m")
    assert [line.text for line in (found[0], found[-1])] == ["line 100", "line 299"]
    assert len(found) == 200
    assert texts(recent, "m", found[-3].number) == ["line 298", "line 299"]


def test_lines_are_cut_and_models_that_logged_long_ago_dropped(recent, monkeypatch):
    monkeypatch.setattr("naiad.core.logs._KEPT_BYTES", 10_000)
    for model in ("old", "new"):
        for _ in range(4):
            log_guest_line(GuestName(model, 1, model, 7), "stdout", "x" * 5000)
    assert texts(recent, "old") == []
    assert [len(text) for text in texts(recent, "new")] == [2000] * 4


def test_a_disabled_level_and_a_closed_log_keep_nothing(tmp_path):
    with configure(LogSettings(file=tmp_path / "log", info=False, warning=False), of_libraries=False) as log:
        recent: RecentLines = log.keep_recent()
        log_guest_line(GuestName("m", 1, "m_0", 7), "stdout", "quiet")
        log_guest_record(GuestName("m", 1, "m_0", 7), logging.ERROR, "model.py", 1, "loud")
        assert texts(recent, "m") == ["loud"]
    log_guest_record(GuestName("m", 1, "m_0", 7), logging.ERROR, "model.py", 1, "late")
    assert texts(recent, "m") == ["loud"]


def test_lines_of_another_process_are_kept_among_the_others(recent):
    logger = logging.getLogger("naiad.engine")
    logger.info("loading: adder:1")
    recent.add([ServerLine(12.5, "W", "'adder_0' is restarted in 0.1 s"), ServerLine(12.6, "E", "of another model")])
    logger.info("unloading: adder:1")
    found = recent.lines_about("adder")
    assert [(line.level, line.source, line.text) for line in found] == [
        ("I", "", "loading: adder:1"),
        ("W", "", "'adder_0' is restarted in 0.1 s"),
        ("I", "", "unloading: adder:1"),
    ]
    assert found[1].time == 12.5


def test_lines_of_the_server_are_passed_on_from_all_threads_and_the_last_when_the_log_is_closed(tmp_path):
    asyncio.run(pass_lines_on(tmp_path / "log"))


async def pass_lines_on(file):
    delivered, arrived = [], asyncio.Event()

    def deliver(lines):
        delivered.extend(lines)
        if any(line.text == "the end" for line in lines):
            arrived.set()

    logger = logging.getLogger("naiad.engine")
    with configure(LogSettings(file=file), of_libraries=False) as log:
        log.pass_on(deliver, asyncio.get_running_loop())
        thread = threading.Thread(target=lambda: [logger.warning("line %d", number) for number in range(3000)])
        thread.start()
        await asyncio.to_thread(thread.join)
        log_guest_line(GuestName("m", 1, "m_0", 7), "stdout", "the coordinator gets this from elsewhere")
        logger.error("%s", "x" * 5000)
        logger.info("the end")
        await asyncio.wait_for(arrived.wait(), 30)
        logger.info("after the end")
    assert [line.text for line in delivered[-3:]] == ["x" * 2000, "the end", "after the end"]
    assert [line.level for line in delivered[-4:]] == ["W", "E", "I", "I"]
    assert 2000 <= len(delivered) <= 3003
    assert not any("elsewhere" in line.text for line in delivered)
    logger.error("to a log that is closed")
    assert delivered[-1].text == "after the end"
