"""Child processes end with all that they have started, and code of this installation runs in a separate process."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from support.waiting import until

from naiad.core.child_processes import ended_with_group, kill_group, start_own_code


def _shell_with_child() -> tuple[subprocess.Popen[str], psutil.Process]:
    process = subprocess.Popen(
        ["/bin/sh", "-c", "sleep 600 & echo $!; wait"], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    return process, psutil.Process(int(process.stdout.readline()))


def _is_gone(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def test_an_error_ends_a_process_with_all_that_it_has_started() -> None:
    process, child = _shell_with_child()

    with pytest.raises(KeyError), ended_with_group(process):
        raise KeyError("a reason")

    assert process.returncode == -9
    until(lambda: _is_gone(child), "the child of the shell to end")


def test_a_process_that_has_ended_is_left_alone() -> None:
    process = subprocess.Popen(["/bin/true"], text=True, start_new_session=True)

    with ended_with_group(process):
        assert process.wait() == 0
    with pytest.raises(KeyError), ended_with_group(process):
        raise KeyError("its id may be another's")

    kill_group(process.pid)
    assert process.returncode == 0


def test_own_code_runs_isolated_with_this_search_path_and_one_thread_of_numpy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "reporting.py").write_text(
        "import json, os, socket, sys\n"
        "def report(number):\n"
        "    facts = [sys.path, dict(os.environ), os.getsid(0) == os.getpid(), sys.argv[1:3]]\n"
        "    socket.socket(fileno=number).sendall(json.dumps(facts).encode() + b'\\n')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    own, other = socket.socketpair()
    with own, own.makefile("r") as lines:
        with other:
            process = start_own_code("reporting:report", other.fileno(), {"GIVEN": "1"}, title=["naiad-reports"])
            number = str(other.fileno())
        path, environ, leads, words = json.loads(lines.readline())
    assert process.wait() == 0
    assert path == [entry for entry in sys.path if entry]
    assert (environ["GIVEN"], environ["OMP_NUM_THREADS"], "HOME" in environ) == ("1", "1", False)
    assert (leads, words) == (True, ["naiad-reports", number])
