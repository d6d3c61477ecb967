"""CPU time and memory of a server's processes by their role, from /proc."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

FIRST, FURTHER, GUESTS, OTHERS = "first process", "further ones", "guests", "others"
ROLES = (FIRST, FURTHER, GUESTS, OTHERS)
_PROC = Path("/proc")
_TICKS = os.sysconf("SC_CLK_TCK")
# Fields of /proc/PID/stat after the name (proc(5)): state, parent, ..., user and system time.
_PARENT, _USER, _SYSTEM = 1, 11, 12
_FURTHER = "naiad-process"


@dataclasses.dataclass(frozen=True)
class Process:
    """One reading of a process.

    Attributes:
        parent: Process id of its parent.
        cpu: CPU seconds used so far, by all threads that it has had.
        arguments: Its command line.
    """

    parent: int
    cpu: float
    arguments: Sequence[str]


def parse_stat(text: str, ticks: int = _TICKS) -> tuple[int, float]:
    """The parent and the CPU seconds from the text of /proc/PID/stat."""
    fields = text[text.rindex(")") + 2 :].split()  # the name may contain spaces and parentheses
    return int(fields[_PARENT]), (int(fields[_USER]) + int(fields[_SYSTEM])) / ticks


def parse_pss(text: str) -> int:
    """The proportional set size in bytes from the text of /proc/PID/smaps_rollup; 0 if it has none."""
    found = re.search(r"^Pss:\s+(\d+) kB$", text, re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def role_of(pid: int, process: Process, first: int) -> str:
    """What a process of a server's family does; recognised by its command line, for both servers."""
    if pid == first:
        return FIRST
    if "--instance" in process.arguments or process.arguments[0].endswith("triton_python_backend_stub"):
        return GUESTS
    return FURTHER if _FURTHER in process.arguments else OTHERS


def family(processes: Mapping[int, Process], first: int) -> dict[int, Process]:
    """The first process and all below it."""
    found = {first: processes[first]} if first in processes else {}
    is_growing = True
    while is_growing:
        below = {pid: each for pid, each in processes.items() if each.parent in found and pid not in found}
        found |= below
        is_growing = bool(below)
    return found


def spent(before: Mapping[int, Process], after: Mapping[int, Process], first: int) -> dict[str, float]:
    """CPU seconds between two readings by role; a process that has ended in between does not count."""
    seconds = dict.fromkeys(ROLES, 0.0)
    for pid, process in after.items():
        earlier = before.get(pid)
        seconds[role_of(pid, process, first)] += process.cpu - (earlier.cpu if earlier else 0.0)
    return seconds


def read_family(first: int) -> dict[int, Process]:
    """The server's processes now."""
    found = {}
    for folder in _PROC.iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):  # it has just ended
                parent, cpu = parse_stat((folder / "stat").read_text(errors="replace"))
                arguments = (folder / "cmdline").read_text(errors="replace").split("\0")
                found[int(folder.name)] = Process(parent, cpu, arguments)
    return family(found, first)


def connection_memory(first: int) -> int:
    """Memory (PSS, bytes) of the processes that hold connections."""
    total = 0
    for pid, process in read_family(first).items():
        if role_of(pid, process, first) in {FIRST, FURTHER}:
            total += parse_pss((_PROC / str(pid) / "smaps_rollup").read_text())
    return total
