"""Runs commands of `naiad` in processes that kill themselves at a chosen step: `python killed.py FOLDER`.

Reads one JSON line for each run, `{"step": N, "arguments": [...]}`, and writes one, `{"killed": bool, "code": int}`. A step is a
change of a file below FOLDER, or a connection. With step 0 nothing is killed, and the kinds of the steps are written to
`FOLDER/steps.json`: event and path, without what differs from run to run. The runs are forks of one process, which has imported everything before.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import naiad.cli.pull
import naiad.environments.store.inspection  # noqa: F401 - the forks find it imported
from naiad.cli.main import main

_CHANGES = {"os.mkdir", "os.rename", "os.link", "os.remove", "os.rmdir", "os.chmod", "os.utime", "os.truncate"}
# The files of the guest's package, which a store has a copy of, are steps of one kind.
_VARYING = re.compile(r"[0-9a-f]{12,}|(?<=tmp)\w{8}|-\d+\b|\.\d+$|(?<=\.guest-staging-)\w{8}|(?<=/naiad_stub)/.*")
_kinds: list[str] = []
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def run(folder: str, step: int, arguments: Sequence[str]) -> tuple[bool, int]:
    child = os.fork()
    if child == 0:
        code = 1
        with contextlib.suppress(BaseException):
            log = os.open(Path(folder, "killed.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(log, 1)
            os.dup2(log, 2)
            _kill_at(folder, step)
            code = main(arguments)
            if not step:
                found, _kinds[:] = list(_kinds), []
                Path(folder, "steps.json").write_text(json.dumps(found))
        os._exit(code)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True, -1
    return False, os.WEXITSTATUS(status)


def _kill_at(folder: str, step: int) -> None:
    left = step

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal left
        if _is_step(folder, event, arguments):
            _kinds.append(f"{event} {_VARYING.sub('*', str(arguments[0])) if event != 'socket.connect' else ''}")
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def _is_step(folder: str, event: str, arguments: tuple[Any, ...]) -> bool:
    if event == "socket.connect":
        return True
    if event == "open":
        path, _, flags = arguments
        return isinstance(flags, int) and bool(flags & _WRITING) and str(path).startswith(folder)
    return event in _CHANGES and str(arguments[0]).startswith(folder)


if __name__ == "__main__":
    for line in sys.stdin:
        request = json.loads(line)
        killed, code = run(sys.argv[1], request["step"], request["arguments"])
        print(json.dumps({"killed": killed, "code": code}), flush=True)
