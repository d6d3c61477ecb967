"""The form of log lines, levels, and the lines of guests."""

from __future__ import annotations

import json
import logging
import os
import re
import sys

import pytest

from naiad.core.logs import (
    GuestName,
    LogSettings,
    configure,
    escapes_messages,
    log_block,
    log_guest_line,
    log_guest_record,
    verbose,
)

log = logging.getLogger("naiad.test")
GUEST = GuestName("m", 1, "m_0_0", 4711)


def write(tmp_path, action, **settings):
    """What the log holds after an action."""
    path = tmp_path / "log"
    with configure(LogSettings(file=path, **settings)):
        action()
    return path.read_text(encoding="utf-8")


@pytest.mark.parametrize(("level", "letter"), [(logging.INFO, "I"), (logging.WARNING, "W"), (logging.ERROR, "E")])
def test_a_line_has_the_form_of_the_reference(tmp_path, level, letter):
    text = write(tmp_path, lambda: log.log(level, "hello %s", "you"))
    match = re.fullmatch(r'(.)\d{4} \d\d:\d\d:\d\d\.\d{6} (\d+) ([\w.]+):\d+\] "hello you"\n', text)
    assert match is not None, text
    assert match.groups() == (letter, str(os.getpid()), "test_log_lines.py")


def test_a_line_may_have_an_iso_time_stamp(tmp_path):
    text = write(tmp_path, lambda: log.warning("hello"), iso8601=True)
    assert re.fullmatch(r'\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ W \d+ test_log_lines\.py:\d+\] "hello"\n', text), text


def test_times_are_utc_with_microseconds(tmp_path):
    def act():
        record = log.makeRecord("naiad.test", logging.INFO, "a.py", 7, "x", (), None)
        record.created = 1716235405.25  # 2024-05-20 20:03:25.25 UTC
        log.handle(record)

    assert write(tmp_path, act).startswith("I0520 20:03:25.250000 ")


@pytest.mark.parametrize("text", ['a "quoted" \\ word', "two\nlines", "\x1b[31mred", "grün 漢", "nul \0", "tab\t"])
def test_a_message_is_one_line_that_reads_back_as_json(tmp_path, text):
    written = write(tmp_path, lambda: log.info("%s", text))
    assert written.count("\n") == 1
    assert json.loads(written.partition("] ")[2]) == text
    assert "\x1b" not in written


@pytest.mark.parametrize(
    "control", ["\x7f", "\x80", "\x85", "\x9b31m", "\u2028", "\u2029", "\u202e", "\u202a", "\u2066", "\u200f", "\u061c"]
)
def test_what_a_terminal_obeys_is_escaped_in_lines_and_tables(tmp_path, control):
    escape = f"\\u{ord(control[0]):04x}"
    text = f"a{control}b"

    line = write(tmp_path, lambda: log.info("%s", text))
    block = write(tmp_path, lambda: log_block(log, f"| {text}\x1b\t|\n| ab |"))

    assert line.endswith(f'] "a{escape}{control[1:]}b"\n')
    assert json.loads(line.partition("] ")[2]) == text
    assert block.endswith(f"\n| a{escape}{control[1:]}b\\u001b\t|\n| ab |\n")


@pytest.mark.parametrize("text", ["grün 漢 \u0645\u0631", "\U0001f469\u200d\U0001f680"])
def test_other_scripts_are_logged_as_they_are(tmp_path, text):
    assert text in write(tmp_path, lambda: log.info("%s", text))


def test_text_that_is_no_unicode_is_written_all_the_same(tmp_path):
    assert "\\udcff" in write(tmp_path, lambda: log.info("a\udcff"))


def test_escaping_can_be_turned_off(tmp_path):
    assert write(tmp_path, lambda: log.info('a "b"\nc'), escape=False).endswith('] a "b"\nc\n')
    assert escapes_messages({})
    assert escapes_messages({"TRITON_SERVER_ESCAPE_LOG_MESSAGES": "1"})
    assert not escapes_messages({"TRITON_SERVER_ESCAPE_LOG_MESSAGES": "0"})


def test_a_table_stands_as_it_is_below_its_line(tmp_path):
    text = write(tmp_path, lambda: log_block(log, "+--+\n|ab|\n+--+\n"))
    assert re.fullmatch(r"I.*test_log_lines\.py:\d+\] \n\+--\+\n\|ab\|\n\+--\+\n\n", text), text


def test_a_traceback_is_part_of_its_line(tmp_path):
    def act():
        try:
            raise ValueError("why")
        except ValueError:
            log.exception("failed")

    text = json.loads(write(tmp_path, act).partition("] ")[2])
    assert text.startswith("failed\nTraceback (most recent call last):\n")
    assert text.endswith("ValueError: why")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, ["info", "warning", "error"]),
        ({"info": False}, ["warning", "error"]),
        ({"error": False}, ["info", "warning"]),
        ({"info": False, "warning": False, "error": False}, []),
        ({"verbose": 1}, ["one", "info", "warning", "error"]),
        ({"verbose": 2}, ["two", "one", "info", "warning", "error"]),
        ({"verbose": 1, "info": False}, ["one", "warning", "error"]),
    ],
)
def test_levels_are_switched_one_by_one(tmp_path, settings, expected):
    def act():
        log.log(verbose(2), "two")
        log.debug("one")
        for name in ("info", "warning", "error"):
            getattr(log, name)(name)

    assert re.findall(r'"(\w+)"', write(tmp_path, act, **settings)) == expected


def test_a_disabled_level_is_not_even_asked_for(tmp_path):
    def act():
        assert not log.isEnabledFor(logging.DEBUG)
        assert log.isEnabledFor(logging.INFO)

    write(tmp_path, act)


def test_lines_of_a_guest_name_model_version_instance_and_process(tmp_path):
    text = write(tmp_path, lambda: log_guest_line(GUEST, "stdout", "print says hi"))
    assert re.fullmatch(rf'I.* {os.getpid()} stdout:4711\] "\[m v1 m_0_0 pid 4711\] print says hi"\n', text), text


def test_what_a_model_logs_keeps_its_place_in_the_models_code(tmp_path):
    text = write(tmp_path, lambda: log_guest_record(GUEST, logging.WARNING, "/repo/m/1/model.py", 12, "100 % %s"))
    assert re.fullmatch(r'W.* model\.py:12\] "\[m v1 m_0_0 pid 4711\] 100 % %s"\n', text), text


def test_what_libraries_warn_of_is_logged_in_the_same_form(tmp_path):
    text = write(tmp_path, lambda: logging.getLogger("some.library").warning("careful"))
    assert text.startswith("W")
    assert text.endswith('"careful"\n')


def test_a_closed_log_leaves_logging_as_it_was(tmp_path):
    ours, root = logging.getLogger("naiad"), logging.getLogger()
    before = (ours.level, ours.propagate, list(ours.handlers), list(root.handlers))
    write(tmp_path, lambda: None, verbose=1)
    assert (ours.level, ours.propagate, ours.handlers, root.handlers) == before


def test_a_log_file_is_appended_to(tmp_path):
    write(tmp_path, lambda: log.info("one"))
    assert write(tmp_path, lambda: log.info("two")).count("\n") == 2


def test_a_reader_that_went_away_does_not_stop_the_server(monkeypatch, capsys):
    class Gone:
        def write(self, text):
            raise BrokenPipeError

        def flush(self):
            pass

    monkeypatch.setattr(sys, "stderr", Gone())
    with configure(LogSettings()):
        log.info("nobody reads this")
    assert capsys.readouterr().out == ""
