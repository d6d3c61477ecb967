"""What a server does for others while one client attacks it.

    with watched(server) as seen:
        attack(server)
    seen.assert_others_served()
    seen.assert_memory(64 << 20)

The bounds are in processor time of the server (see `heartbeat.py`) and in bytes, so that they hold on a machine that
has other work to do.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from attacks.heartbeat import LongestGap
from attacks.probe import resident
from support.server import PROCESSES_VARIABLE, ServerProcess

_SHARE_NS = 100_000_000
"""What the server may spend on one client before others get their turn.

Attacks take 2 to 30 ms. The rest is for machines whose memory or processor is shared: the copy of a message of 60 MB,
which takes 10 ms, was once seen to take 60.
"""
_STARVED_NS = 1_000_000_000
"""What it may spend between two answers to the probe."""
_HEARTBEAT = Path(__file__).with_name("heartbeat.py")
_PROBE = Path(__file__).with_name("probe.py")
_REPORT = "heartbeat"


def attacked_server(
    repository: Path | Sequence[Path] | None,
    *options: str,
    work: Path,
    script: Path = _HEARTBEAT,
    prefix: Sequence[str] = (),
    timeout: float = 240,
) -> ServerProcess:
    """A server that `watched` can observe, with frontend processes if the environment asks for them.

    Args:
        repository: The models it serves.
        *options: Further flags.
        work: Its folder.
        script: What runs it, with the file of its heartbeat as first argument.
        prefix: A command that runs the command.
        timeout: Seconds to wait for it, and for each response: what takes it seconds takes it minutes on a busy machine.
    """
    work.mkdir(parents=True, exist_ok=True)
    count = os.environ.get(PROCESSES_VARIABLE, "")
    if count and script == _HEARTBEAT and not any(option.startswith("--processes") for option in options):
        options = (f"--processes={count}", *options)
    command = (*prefix, sys.executable, script, work / _REPORT)
    return ServerProcess(repository, *options, work=work, command=command, timeout=timeout)


class Observation:
    """What was seen during an attack; complete when the `with` block has ended.

    Attributes:
        answers: Number of probes that were answered.
        longest_ns: The most processor time of an event loop's thread between two turns of the loop, in nanoseconds.
        starved_ns: The most between two answers to the probe.
        memory_before: Resident memory of the server's processes before the attack, in bytes; shared pages count once.
        memory_peak: The most it was during the attack: of one process by the kernel's own account, of several as the
            probe saw it.
        memory_after: What it is at the end.
        problem: Why the probe ended early; empty if it did not.
    """

    def __init__(self) -> None:
        self.answers = self.longest_ns = self.starved_ns = 0
        self.memory_before = self.memory_peak = self.memory_after = 0
        self.problem = ""

    def assert_others_served(self) -> None:
        """The probe was served, and no turn of the event loop took long."""
        assert not self.problem, self.problem
        assert self.starved_ns <= _STARVED_NS, (
            f"an event loop spent {self.starved_ns / 1e6:.0f} ms of processor time without an answer to a probe"
        )
        assert self.longest_ns <= _SHARE_NS, (
            f"the event loop was held up for {self.longest_ns / 1e6:.0f} ms of processor time"
        )

    def assert_memory(self, grown: int) -> None:
        """Resident memory did not grow by more than *grown* bytes at any moment."""
        growth = self.memory_peak - self.memory_before
        assert growth <= grown, f"the server's memory grew by {growth >> 20} MiB, more than {grown >> 20} MiB"


@contextmanager
def watched(server: ServerProcess) -> Iterator[Observation]:
    """Probe *server* and watch its memory while the block runs; then the server must be ready, without a traceback."""
    seen = Observation()
    reported = len(server.log)
    pids = [process.pid for process in server.serving()]
    seen.memory_before = resident(*pids)
    for pid in pids:  # let the kernel measure VmHWM from now on (proc(5), clear_refs)
        Path(f"/proc/{pid}/clear_refs").write_text("5")
    # Isolated and without site-packages: the probe is to start fast, and to need nothing.
    command = [sys.executable, "-I", "-S", str(_PROBE), str(server.http_port), *map(str, pids)]
    gap = LongestGap(server.work / _REPORT, pids)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as probe:
        assert probe.stdin is not None
        assert probe.stdout is not None
        try:
            assert probe.stdout.readline() == "ready\n", "the probe got no answer before the attack"
            gap.reset()
            yield seen
        except BaseException:
            probe.kill()
            raise
        probe.stdin.close()
        report = json.loads(probe.stdout.readline())
    seen.starved_ns, seen.answers, seen.problem = report["longest_ns"], report["answers"], report["problem"]
    seen.longest_ns = gap.read()
    seen.memory_peak = report["memory"] if len(pids) > 1 else _highest(*pids)
    seen.memory_after = resident(*pids)
    print(  # shown when the test fails, and with `pytest -s`
        f"{seen.answers} probes, at most {seen.longest_ns / 1e6:.1f} ms of processor time in a turn of the loop and "
        f"{seen.starved_ns / 1e6:.1f} ms between answers, memory "
        f"{seen.memory_before >> 20} -> {seen.memory_peak >> 20} -> {seen.memory_after >> 20} MiB {seen.problem}"
    )
    server.wait_health("ready")
    assert "Traceback" not in server.log[reported:]


@contextmanager
def harmless(server: ServerProcess, grown: int | None = None) -> Iterator[Observation]:
    """`watched`, and then others must have been served, and the memory must not have grown by more than *grown* bytes."""
    with watched(server) as seen:
        yield seen
    seen.assert_others_served()
    if grown is not None:
        seen.assert_memory(grown)


def _highest(pid: int) -> int:
    """The most resident memory that a process had since that was reset."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found, f"/proc/{pid}/status has no VmHWM: has the server ended?"
    return int(found[1]) << 10
