"""What the system tells of a guest's process: how it ended, whether it works."""

from __future__ import annotations

import signal

import psutil


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
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system)
