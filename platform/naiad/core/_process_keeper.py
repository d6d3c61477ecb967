"""Run by the server's Python with -I -S: runs a program, and ends with it all that it has started.

    _process_keeper.py PROGRAM ARGUMENT...

The first line of stdin has the program's variables as JSON. When the program ends, or stdin does, its descendants are
killed, also those with a session of their own or without the variables: they become children of this process when
their parents end (`PR_SET_CHILD_SUBREAPER` of Linux). The server holds the other end of stdin, so its own end, however
it comes, ends them too.

The exit code is the program's, with 128 + N if signal N killed it; it is 137 if stdin ended first.
"""

# ruff: noqa: PTH123, PTH208 - importing pathlib would take as long as all the rest

import contextlib
import ctypes
import json
import os
import select
import signal
import sys
from collections.abc import Iterator

_PR_SET_CHILD_SUBREAPER = 36


def main(command: list[str]) -> int:
    """Run the program, and end what is left of it; returns the exit code."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    variables = json.loads(sys.stdin.buffer.readline())
    woken, waking = os.pipe()
    os.set_blocking(waking, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waking)
    program = os.posix_spawn(
        command[0],
        command,
        variables,
        file_actions=[(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)],
        setpgroup=0,  # a program that kills its group must not kill this process
        setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],  # which Python ignores
    )
    status = ""
    while not status:
        ready, _, _ = select.select([0, woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
        ended, code = os.waitpid(program, os.WNOHANG)
        if ended:
            status = str(os.waitstatus_to_exitcode(code))
        elif 0 in ready:
            break
    _end_children()
    code = int(status or -signal.SIGKILL)
    return code if code >= 0 else 128 - code


def _end_children() -> None:
    """Kill all children, and those that become children as their parents end."""
    while True:
        for pid in _children():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _children() -> Iterator[int]:
    own = str(os.getpid())
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                parent = file.read().rpartition(")")[2].split()[1]
            if parent == own:
                yield int(pid)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
