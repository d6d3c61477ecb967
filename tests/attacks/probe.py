"""A client that asks for liveness again and again: others must be served while one client attacks.

    python probe.py PORT PID ...

It runs as a process of its own, as the attack beside it would hold this interpreter's lock. It needs the standard
library alone, prints `ready` after the first answer, and its report as JSON when its stdin is closed.

How long an answer takes says little on a busy machine, so it reports the most processor time that the server, whose
processes are given, spent between two answers. That is still a coarse figure: it holds what the kernel took to deliver packets, and what a virtual
machine's processor did for others (see `heartbeat.py`).
"""

from __future__ import annotations

import json
import select
import socket
import sys
import time

_REQUEST = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
_PAUSE = 0.002
"""Seconds between probes: they are not to be an attack themselves."""
_PATIENCE = 120
"""Seconds after which a probe is given up."""


def processor_clock(pid: int) -> int:
    """The clock of a process's processor time, for `time.clock_gettime_ns` (clock_getcpuclockid(3))."""
    scheduled = 2  # CPUCLOCK_SCHED of the kernel: precise, of all threads
    return (~pid << 3) | scheduled


def _answer(connection: socket.socket) -> None:
    received = b""
    while b"\r\n\r\n" not in received:
        part = connection.recv(4096)
        if not part:
            raise ConnectionError("the server closed the probe's connection")
        received += part
    if not received.startswith(b"HTTP/1.1 200"):
        raise ConnectionError(f"the probe was answered {received[:200]!r}")


def main(port: int, *pids: int) -> None:
    clocks = [processor_clock(pid) for pid in pids]
    answers = longest = 0
    problem = ""
    with socket.create_connection(("127.0.0.1", port), timeout=_PATIENCE) as connection:
        connection.sendall(_REQUEST)
        _answer(connection)
        print("ready", flush=True)
        last = sum(map(time.clock_gettime_ns, clocks))
        while not select.select([sys.stdin], [], [], _PAUSE)[0]:
            try:
                connection.sendall(_REQUEST)
                _answer(connection)
                now = sum(map(time.clock_gettime_ns, clocks))
            except OSError as error:  # among them a server that has ended
                problem = f"{type(error).__name__}: {error}"
                break
            answers += 1
            longest, last = max(longest, now - last), now
    print(json.dumps({"longest_ns": longest, "answers": answers, "problem": problem}), flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
