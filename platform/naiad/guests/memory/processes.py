"""The memory of processes: their share of it, where pages are shared with others."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from naiad.core.gpus import gpu_memory_of_processes

_PROC = Path("/proc")
_KIB = 1024
_FIRST_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO in the kernel's include/linux/proc_ns.h


def memory_of(pids: Iterable[int]) -> dict[int, int]:
    """Bytes that each process uses, GPU memory included where the driver reports it. Blocks for milliseconds."""
    wanted = list(pids)
    gpu = gpu_memory_of_processes()
    if gpu and not _has_machines_pids():
        gpu = {pid: gpu[pid] for pid in wanted if pid in gpu and may_use_gpu(pid)}
    return {pid: process_memory(pid) + gpu.get(pid, 0) for pid in wanted}


def _has_machines_pids(proc: Path = _PROC) -> bool:
    """Whether process ids are those of the machine. The driver reports these also in a container with its own."""
    try:
        return os.readlink(proc / "self" / "ns" / "pid") == _FIRST_NAMESPACE  # noqa: PTH115 - the link has no target
    except OSError:
        return True


def may_use_gpu(pid: int, proc: Path = _PROC) -> bool:
    """Whether a process has NVIDIA's driver loaded, as far as that can be read: else a GPU's process is another one."""
    try:
        maps = (proc / str(pid) / "maps").read_bytes()
    except PermissionError:
        return True
    except OSError:
        return False
    return b"/libcuda.so" in maps or b"/dev/nvidia" in maps


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
