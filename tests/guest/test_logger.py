"""`pb_utils.Logger`: levels, and the place of whoever called it."""

import re
import sys

import pytest
from naiad_stub import runtime
from naiad_stub.logger import Logger


@pytest.fixture
def messages():
    seen = []
    with runtime.activate(runtime.Runtime(log=lambda *message: seen.append(message))):
        yield seen


def here():
    return sys._getframe(1).f_lineno


def test_messages_carry_the_callers_file_and_line(messages):
    Logger.log_info("a"), Logger.log_warn("b"), Logger.log_error("c"), Logger.log_verbose("d"), Logger.log("e"); line = here()  # fmt: skip # noqa: E702

    assert messages == [(level, __file__, line, text) for level, text in zip((0, 1, 2, 3, 0), "abcde", strict=True)]


def test_log_takes_a_level_by_position_or_name(messages):
    Logger.log("a", Logger.WARNING)
    Logger.log(message="b", level=Logger.LogLevel.VERBOSE)

    assert [(level, text) for level, _, _, text in messages] == [(1, "a"), (3, "b")]


@pytest.mark.parametrize("level", [None, 1, "INFO"])
def test_other_levels_are_type_errors(messages, level):
    with pytest.raises(TypeError, match=r"^Logger takes one of its levels, such as Logger.INFO, got "):
        Logger.log("x", level)
    assert messages == []


@pytest.mark.parametrize("log", [Logger.log, Logger.log_info, Logger.log_warn, Logger.log_error, Logger.log_verbose])
@pytest.mark.parametrize("message", [None, 3, [b"x"]])
def test_messages_are_text(messages, log, message):
    with pytest.raises(TypeError, match=rf"^Logger takes messages as str, got {type(message).__name__}$"):
        log(message)
    assert messages == []


@pytest.mark.parametrize(
    ("log", "letter"),
    [(Logger.log_info, "I"), (Logger.log_warn, "W"), (Logger.log_error, "E"), (Logger.log_verbose, "I")],
)
def test_without_a_server_lines_look_like_the_servers(capsys, log, letter):
    log('two\nlines "quoted"')

    written = capsys.readouterr().err
    assert re.fullmatch(
        rf'{letter}\d{{4}} \d\d:\d\d:\d\d\.\d{{6}} \d+ test_logger\.py:\d+\]  two\nlines "quoted"\n', written
    )
