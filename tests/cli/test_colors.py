"""Colors are for terminals, unless somebody wants none."""

from __future__ import annotations

import io
import os
import pty

import pytest

from naiad.cli.colors import Paint


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")


def test_a_terminal_gets_colors():
    paint = Paint(Terminal())
    assert paint("error:", "red", bold=True) == "\x1b[31m\x1b[1merror:\x1b[0m"
    assert paint("x", dim=True) == "\x1b[2mx\x1b[0m"


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_who_wants_no_colors_gets_none(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    assert Paint(Terminal())("error:", "red", bold=True) == "error:"


def test_a_file_gets_none_and_an_empty_no_color_means_nothing(monkeypatch):
    assert Paint(io.StringIO())("error:", "red") == "error:"
    monkeypatch.setenv("NO_COLOR", "")
    assert Paint(Terminal())("error:", "red") != "error:"


def test_standard_output_decides_without_a_stream(monkeypatch):
    controller, terminal = pty.openpty()
    with os.fdopen(terminal, "w") as stream:
        monkeypatch.setattr("sys.stdout", stream)
        assert Paint().is_on
    os.close(controller)
