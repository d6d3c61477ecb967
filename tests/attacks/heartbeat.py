"""A server whose event loop says how long it was held up.

    python heartbeat.py FILE [OPTION ...]

It is `tritonserver OPTION ...` with one addition: the event loop runs a timer every few milliseconds, and the most
processor time that the loop's thread spent between two of its runs is kept in FILE, as a number of eight bytes. A
client writes 0 there to begin anew.

Time without an answer, measured by a client, also holds what the kernel did: on a machine with more work than
processors the packets of a loopback connection wait for their turn, too. That says nothing about the server. So the
server measures itself, in **processor time**: of the thread that runs the loop, since other threads may do what takes
long. With `--processes`, each further process does the same, in a file of its own beside FILE. A virtual machine's processor that serves another machine for a while
("steal" in proc_stat(5)) counts as processor time of whoever ran on it, so that is subtracted.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import struct
import subprocess
import sys
import time
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

_NUMBER = struct.Struct("=q")
_PERIOD = 0.002
"""Seconds between two runs of the timer."""
_STEAL_PERIOD_NS = 10_000_000
"""Reading what was stolen costs as much as a small request: it is done once in this time of processor use, and after a
gap that is longer."""


class Heartbeat:
    """The timer, and what it has seen.

    Args:
        loop: The event loop that is watched.
        report: Where the longest gap is kept, in nanoseconds.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, report: mmap.mmap) -> None:
        self._loop = loop
        self._report = report
        self._stolen_fd = os.open("/proc/stat", os.O_RDONLY | os.O_CLOEXEC)
        self._stolen = self._stolen_ns()
        self._stolen_read = self._last = time.thread_time_ns()
        loop.call_soon(self._beat)

    def _beat(self) -> None:
        now = time.thread_time_ns()
        gap = now - self._last
        if now - self._stolen_read >= _STEAL_PERIOD_NS:
            before, self._stolen, self._stolen_read = self._stolen, self._stolen_ns(), now
            gap -= self._stolen - before
        if gap > _NUMBER.unpack_from(self._report)[0]:
            _NUMBER.pack_into(self._report, 0, gap)
        # Not `now`: what the measurement itself took is not the server's.
        self._last = time.thread_time_ns()
        self._loop.call_later(_PERIOD, self._beat)

    def _stolen_ns(self) -> int:
        """What all processors of this machine gave to others since it was started."""
        fields = os.pread(self._stolen_fd, 256, 0).split(b"\n", 1)[0].split()
        return int(fields[8]) * 1_000_000_000 // os.sysconf("SC_CLK_TCK")


class LongestGap:
    """What the processes of a server that runs with a heartbeat report in *path* and beside it.

    Args:
        path: The file that the server was started with.
        pids: Its processes, itself first.
    """

    def __init__(self, path: Path, pids: Sequence[int]) -> None:
        self._reports = [path, *(path.with_name(f"{path.name}.{pid}") for pid in pids[1:])]

    def reset(self) -> None:
        """Begin anew."""
        for report in self._reports:
            with report.open("r+b") as file:
                file.write(_NUMBER.pack(0))

    def read(self) -> int:
        """The most processor time of a loop's thread between two runs of its timer since `reset`, in nanoseconds."""
        return max(int(_NUMBER.unpack(report.read_bytes())[0]) for report in self._reports)


def report_file(path: Path) -> mmap.mmap:
    """Make *path*, to be shared with those who read it."""
    path.write_bytes(_NUMBER.pack(0))
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), _NUMBER.size)


def beat_in_loop(path: str) -> None:
    """Let the event loop that this process runs later have a heartbeat that reports in *path*."""
    import uvloop

    report = report_file(Path(path))
    run = uvloop.run

    async def with_heartbeat(main: Coroutine[Any, Any, object]) -> object:
        Heartbeat(asyncio.get_running_loop(), report)
        return await main

    uvloop.run = lambda main: run(with_heartbeat(main))


_REPORT_VARIABLE = "ATTACKS_HEARTBEAT"
_FURTHER_MAIN = "naiad.server.further_process:main"


def main_of_further_process(descriptor: int) -> None:
    """What a further process of the server runs in place of its own function."""
    beat_in_loop(f"{os.environ.pop(_REPORT_VARIABLE)}.{os.getpid()}")
    from naiad.server.further_process import main

    main(descriptor)


def _give_heartbeats(report: str) -> None:
    """Let each process that this one starts as a further process of the server have a heartbeat."""
    from naiad.server.processes import spawned

    start = spawned.start_own_code  # fails if it is not there any more

    def start_with_heartbeat(
        function: str, descriptor: int, environ: Mapping[str, str], *, title: Sequence[str] = ()
    ) -> subprocess.Popen[bytes]:
        assert function == _FURTHER_MAIN, f"cannot give {function} a heartbeat"
        tests = str(Path(__file__).parents[1])
        sys.path.append(tests)  # which the process gets
        try:
            own = f"attacks.heartbeat:{main_of_further_process.__name__}"
            return start(own, descriptor, {**environ, _REPORT_VARIABLE: report}, title=title)
        finally:
            sys.path.remove(tests)

    spawned.start_own_code = start_with_heartbeat


def main() -> int:
    """Run `tritonserver` with a heartbeat in its event loop, and in those of its further processes."""
    del sys.path[0]  # this folder: its modules are not the server's
    from naiad.cli.main import main_tritonserver

    report = sys.argv.pop(1)
    beat_in_loop(report)
    _give_heartbeats(report)
    sys.argv[0] = "tritonserver"
    return main_tritonserver()


if __name__ == "__main__":
    sys.exit(main())
