"""The memory of processes: their share of it, where pages are shared with others."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from naiad.core.gpus import gpu_memory_of_processes

__all__ = ["memory_of", "parse_pss", "process_memory"]

_PROC = Path("/proc")
_KIB = 1024


def memory_of(pids: Iterable[int]) -> dict[int, int]:
    """Bytes that each process uses, GPU memory included where the driver reports it. Blocks for milliseconds."""
    wanted = list(pids)
    gpu = gpu_memory_of_processes()
    return {pid: process_memory(pid) + gpu.get(pid, 0) for pid in wanted}


def process_memory(pid: int, proc: Path = _PROC) -> int:
    """Bytes of a process's proportional set size (PSS); 0 if it has exited.

    Each page counts by the number of processes that share it, so guests forked from one process are not counted twice.
    Reading this needs the rights of the process's user. Without them: what is resident and not shared.
    """
    try:
        return parse_pss((proc / str(pid) / "smaps_rollup").read_text())
    except PermissionError:
        pass
    except OSError:
        return 0
    try:
        fields = (proc / str(pid) / "statm").read_text().split()
        return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0


def parse_pss(text: str) -> int:
    """The PSS in bytes from the text of /proc/PID/smaps_rollup; 0 if it has none."""
    for line in text.splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * _KIB
    return 0
