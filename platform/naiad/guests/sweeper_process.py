"""The sweeper process: kills what guests leave behind, also when the server itself was killed.

Run as a script with the interpreter's options -I -S: `sweeper_process.py MARKER HOST_PID`. It imports the standard
library alone and nothing of ours, so that it starts quickly and takes little memory (4 MiB).

A guest and all that it starts have the variable NAIAD_GUEST_ID in the environment with which they were started. A
process may leave its process group and session, but keeps that; /proc/PID/environ shows it. The value begins with
MARKER, which is random and unique for each server.

A line `ID NAME` on stdin has the processes of one guest killed, which has exited.
When the server ends, however that happens, the sweeper kills the processes of all its guests and exits. On stdout it
reports what it killed: `COUNT NAME`, a line each.
"""
# ruff: noqa: PTH123, PTH208 - importing pathlib would take as long as all the rest

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Iterator

_NAME = b"\0NAIAD_GUEST_ID="
_PASSES = 40
_PASS_SECONDS = 0.01
_RECEIVE = 1 << 16


def main(marker: str, host: int) -> None:
    """Handle commands until the server ends, then kill what is left."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # a service manager sends them to every process
        signal.signal(number, signal.SIG_IGN)
    rest = b""
    for data in _received(host):
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            guest_id, _, name = line.partition(b" ")
            count = sweep(_NAME + guest_id + b"\0")
            if count:
                os.write(1, b"%d %s\n" % (count, name))
    sweep(_NAME + marker.encode())


def sweep(needle: bytes) -> int:
    """Kill the processes whose first environment contains *needle*; their number."""
    killed: set[int] = set()
    for number in range(_PASSES):  # a process that forks while the list is read is found in the next pass
        if number:
            time.sleep(_PASS_SECONDS)
        found = {pid for pid in _processes() if _kill_if(pid, needle)}
        if not found:
            break
        killed |= found
    return len(killed)


def _received(host: int) -> Iterator[bytes]:
    """What arrives on stdin, until its end or the end of the process *host*."""
    poll = select.poll()
    poll.register(0, select.POLLIN)
    try:
        pidfd = os.pidfd_open(host)  # stdin alone would not do: other children of the server may hold the pipe open
    except (OSError, AttributeError):
        pidfd = -1
    else:
        poll.register(pidfd, select.POLLIN)
    while os.getppid() == host:
        ready = [descriptor for descriptor, _ in poll.poll()]
        if 0 not in ready:
            return
        data = os.read(0, _RECEIVE)
        if not data:
            return
        yield data


def _processes() -> list[int]:
    own = os.getpid()
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != own]


def _kill_if(pid: int, needle: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            if needle not in b"\0" + file.read() + b"\0":
                return False
        # The id may be another process's by now: look again when a descriptor refers to the process itself.
        pidfd = os.pidfd_open(pid)
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                if needle not in b"\0" + file.read() + b"\0":
                    return False
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        finally:
            os.close(pidfd)
    except (OSError, AttributeError):  # it has ended, belongs to another user, or the system has no pidfds
        return False
    return True


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
