"""What the system tells of a guest's process: how it ended, whether it works."""

from __future__ import annotations

import signal

PROGRESS_CHECK_SECONDS = 0.5
"""How often to look whether a process that starts makes progress."""


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
    """CPU time a process has used so far; 0 for one that is gone."""
    import psutil  # here, as the first guest is started before it is needed

    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system)


class ProgressMonitor:
    """Whether a process that starts is at work: it says so now and then, or it uses CPU time."""

    def __init__(self, patience: float) -> None:
        """*patience*: seconds that may pass without a sign."""
        self._patience = patience
        self._pid = 0
        self._last = 0.0
        self._cpu_seconds = 0.0

    def start(self, pid: int, now: float) -> None:
        """The process was started *now*."""
        self._pid, self._last = pid, now

    def record(self, now: float) -> None:
        """It gave a sign."""
        self._last = now

    def is_stalled(self, now: float) -> bool:
        """Whether there was no sign for too long."""
        used = cpu_seconds_of(self._pid)
        if used > self._cpu_seconds:
            self._cpu_seconds, self._last = used, now
        return now - self._last > self._patience
