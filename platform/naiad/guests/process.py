"""What the system says about a guest's process: how it ended, and whether it makes progress."""

from __future__ import annotations

import signal
from collections.abc import Callable

PROGRESS_CHECK_SECONDS = 0.5  # time between two looks at a process that starts


def describe_exit(pid: int, status: int | None) -> str:
    """How a process ended, in words; *status* as `subprocess` gives it."""
    if status is None:
        return f"pid {pid} is gone"
    if status >= 0:
        return f"pid {pid} exited with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    hint = " (out of memory?)" if name == "SIGKILL" else ""
    return f"pid {pid} was killed by {name}{hint}"


def cpu_seconds_of(pid: int) -> float:
    """Processor time that a process has used so far; 0 if it has exited."""
    import psutil  # here: importing it takes time in which the first guest can start already

    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system)


class ProgressMonitor:
    """Whether a process that starts makes progress: it sends messages, or uses processor time."""

    def __init__(self, timeout: float, cpu_seconds: Callable[[int], float] = cpu_seconds_of) -> None:
        """Allow *timeout* seconds without progress; *cpu_seconds* returns the processor time of a process."""
        self._timeout = timeout
        self._cpu_seconds_of = cpu_seconds
        self._pid = 0
        self._last = 0.0
        self._cpu_seconds = 0.0

    def start(self, pid: int, now: float) -> None:
        self._pid, self._last = pid, now

    def record(self, now: float) -> None:
        self._last = now

    def is_stalled(self, now: float) -> bool:
        used = self._cpu_seconds_of(self._pid)
        if used > self._cpu_seconds:
            self._cpu_seconds, self._last = used, now
        return now - self._last > self._timeout
