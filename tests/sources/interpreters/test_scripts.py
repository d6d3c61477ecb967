"""Commands of an environment that hang or do not start."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from support.waiting import until

from naiad.core.errors import ExecutionEnvironmentError
from naiad.sources.interpreters.scripts import run_clean


def test_a_command_that_hangs_ends_with_the_processes_that_it_started(tmp_path):
    """They hold its output open, so that reading it to its end would take as long as they run."""
    pids = tmp_path / "pids"
    hanging = f"sleep 600 & echo $$ $! > {pids}; sleep 600"

    with pytest.raises(ExecutionEnvironmentError, match="did not finish within 1 s of its start; start it by hand"):
        run_clean(["/bin/sh", "-c", hanging], time_limit=1)

    assert len(pids.read_text().split()) == 2
    until(lambda: not any(map(_is_running, pids.read_text().split())), "both processes to end")


def _is_running(pid: str) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


def test_a_missing_file_that_is_not_the_command_is_named(monkeypatch):
    monkeypatch.setattr(os, "devnull", "/nowhere/null")

    with pytest.raises(ExecutionEnvironmentError, match=r": No such file or directory: /nowhere/null$"):
        run_clean([sys.executable, "-c", ""], time_limit=10)
