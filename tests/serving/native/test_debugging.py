"""`naiad run --debug` of a native backend: it says how to attach gdb, and waits for it or for Enter."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.native import add_model
from support.system_packages import needs

pytestmark = pytest.mark.server

NAIAD = Path(sys.executable).with_name("naiad")


def start(model: Path) -> subprocess.Popen[str]:
    command = [NAIAD, "run", str(model), "--input=IN=[[1,2]]", "--debug"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def gdb_command(running: subprocess.Popen[str]) -> str:
    assert running.stdout is not None
    for line in running.stdout:
        found = re.search(r"gdb -p (\d+) -ex 'set breakpoint pending on'", line)
        if found:
            return found[1]
    raise AssertionError("no command for gdb was printed")


def test_enter_loads_the_library_without_a_debugger(tmp_path):
    model = add_model(tmp_path, "echo", "echo.c")
    with start(model) as running:
        gdb_command(running)
        printed, _ = running.communicate("\n", timeout=60)
    assert "[[1., 2.]]" in printed


@needs("gdb")
def test_gdb_stops_in_execute(tmp_path):
    model = add_model(tmp_path, "echo", "echo.c")
    with start(model) as running:
        pid = gdb_command(running)
        break_at = "break TRITONBACKEND_ModelInstanceExecute"
        steps = ["set breakpoint pending on", break_at, "continue", "bt 1", "detach"]
        arguments = [argument for step in steps for argument in ("-ex", step)]
        debugged = subprocess.run(
            ["gdb", "-nx", "-p", pid, "-batch", *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        if "ptrace: Operation not permitted" in debugged.stderr:
            running.communicate("\n", timeout=60)
            pytest.skip("this machine does not let processes be traced")
        printed, _ = running.communicate(timeout=60)
    assert "hit Breakpoint 1" in debugged.stdout, debugged.stdout + debugged.stderr
    assert "echo.c" in debugged.stdout
    assert "[[1., 2.]]" in printed
