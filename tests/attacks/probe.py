"""A client that asks for liveness again and again: others must be served while one client attacks.

    python probe.py PORT PID ...

It runs as a process of its own, as the attack beside it would hold this interpreter's lock. It needs the standard
library alone, prints `ready` after the first answer, and its report as JSON when its stdin is closed.

How long an answer takes says little on a busy machine, so it reports the most processor time that the event loop of one
of the server's processes, which are given, spent between two answers. That is still a coarse figure: it holds what the
kernel took to deliver packets, and what a virtual machine's processor did for others (see `heartbeat.py`).

It also reports the most memory that these processes used together after an answer. Their largest values, which the
kernel keeps, cannot be added up: they are of different moments, and a page that two of them share stands in both.
"""

from __future__ import annotations

import json
import re
import select
import socket
import sys
from pathlib import Path

_REQUEST = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
_PAUSE = 0.002
"""Seconds between probes: they are not to be an attack themselves."""
_PATIENCE = 240
"""Seconds after which a probe is given up."""


def _loop_time(pid: int) -> int:
    """Nanoseconds of processor time of a process's first thread, which runs its event loop (sched-stats.rst)."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0])


def resident(*pids: int) -> int:
    """Bytes of resident memory of *pids*; what they share is counted once: for the one that has most of it."""
    own = shared = 0
    for pid in pids:
        status = Path(f"/proc/{pid}/status").read_text()
        sizes = {name: int(value.split()[0]) << 10 for name, value in re.findall(r"(Rss\w+):\s+(.*)", status)}
        own += sizes["RssAnon"] + sizes["RssFile"]
        shared = max(shared, sizes["RssShmem"])
    return own + shared


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
    answers = longest = memory = 0
    problem = ""
    with socket.create_connection(("127.0.0.1", port), timeout=_PATIENCE) as connection:
        connection.sendall(_REQUEST)
        _answer(connection)
        print("ready", flush=True)
        last = list(map(_loop_time, pids))
        while not select.select([sys.stdin], [], [], _PAUSE)[0]:
            try:
                connection.sendall(_REQUEST)
                _answer(connection)
                now = list(map(_loop_time, pids))
                memory = max(memory, resident(*pids))
            except OSError as error:  # among them a server that has ended
                problem = f"{type(error).__name__}: {error}"
                break
            answers += 1
            longest, last = max(longest, *(after - before for after, before in zip(now, last, strict=True))), now
    report = {"longest_ns": longest, "answers": answers, "memory": memory, "problem": problem}
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
