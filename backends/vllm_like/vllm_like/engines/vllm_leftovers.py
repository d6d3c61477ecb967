"""Removes what vLLM leaves where its processes are killed: other processes, and shared memory in /dev/shm.

The server kills the process group of a guest that exits. If the server itself is killed, the kernel kills the guest
only (`PR_SET_PDEATHSIG`). So a small watchdog process waits for the guest's exit, which closes its stdin, and then
kills the group.

vLLM's processes exchange messages through segments of Python's `multiprocessing` (`/dev/shm/psm_...`). They remove
these at their end, and Python's resource tracker does it for a process that crashes. But the whole process tree of a
guest is killed together, with the tracker. So each guest writes the names of its segments to a record, and the next
guest of any model, also of another server of this user, removes the segments in records of guests that have exited.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Dict, Iterable, List, Optional, Set

SEGMENTS = Path("/dev/shm")  # noqa: S108 - the kernel's folder of POSIX shared memory
_PREFIXES = ("psm_", "sem.mp-")  # names that `multiprocessing` gives to segments and semaphores
_PROC = Path("/proc")
_STARTED = 19
"""Index of a process's start time in the fields of /proc/PID/stat that follow its name (proc(5): field 22)."""

_EXITED = ("Z", "X")  # states of processes that are only in the table of processes (proc(5))

_SCRIPT = """
import os, signal, sys
sys.stdin.buffer.read()
try:
    os.killpg(int(sys.argv[1]), signal.SIGKILL)
except (ProcessLookupError, PermissionError):
    pass
"""
_watchdog: Optional[subprocess.Popen[bytes]] = None


def start_watchdog() -> None:
    """Start the watchdog, unless this process does not lead its process group: the group then has other owners."""
    global _watchdog  # noqa: PLW0603 - one for the process; the object keeps the pipe open
    if _watchdog is not None or os.getpgrp() != os.getpid():
        return
    # In its own session, so that it is not killed together with the group.
    _watchdog = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _SCRIPT, str(os.getpid())], stdin=subprocess.PIPE, start_new_session=True
    )


def mapped_segments(group: int) -> List[str]:
    """Names of the segments of `multiprocessing` that the processes of a process group have mapped."""
    found: Set[str] = set()
    for process in _PROC.iterdir():
        # Processes end while they are listed, and those of other users cannot be read.
        with contextlib.suppress(OSError, ValueError):
            if process.name.isdecimal() and os.getpgid(int(process.name)) == group:
                found.update(_names((process / "maps").read_text("utf-8", "replace").splitlines()))
    return sorted(found)


def _names(lines: Iterable[str]) -> Iterable[str]:
    for line in lines:
        path = Path(line.split(maxsplit=5)[-1])
        if path.parent == SEGMENTS and path.name.startswith(_PREFIXES):
            yield path.name


def record(names: List[str]) -> None:
    """Write the names of this process's segments to its record, for the guest that comes after it."""
    folder = _folder()
    folder.mkdir(mode=0o700, exist_ok=True)
    (folder / f"{os.getpid()}.json").write_text(json.dumps({"started": _started(os.getpid()), "names": names}))


def remove_own_record() -> None:
    """Remove the record of this process, whose segments its engine has removed."""
    with contextlib.suppress(OSError):
        (_folder() / f"{os.getpid()}.json").unlink()
        _folder().rmdir()  # fails while it has records of others


def remove_abandoned() -> List[str]:
    """Remove the segments in the records of guests that have exited; return their names."""
    removed: List[str] = []
    folder = _folder()
    if not folder.is_dir() or folder.stat().st_uid != os.getuid():  # other users must not choose what is removed
        return removed
    for path in folder.glob("*.json"):
        with contextlib.suppress(OSError, ValueError, KeyError):
            content: Dict[str, object] = json.loads(path.read_text())
            if _started(int(path.stem)) == content["started"]:
                continue
            names = content["names"]
            removed += [name for name in names if _remove(name)] if isinstance(names, list) else []
            path.unlink()
    return removed


def _remove(name: object) -> bool:
    if not isinstance(name, str) or not name.startswith(_PREFIXES) or "/" in name:
        return False
    try:
        (SEGMENTS / name).unlink()
    except OSError:
        return False
    return True


def _folder() -> Path:
    return Path(tempfile.gettempdir(), f"naiad-vllm-{os.getuid()}")


def _started(pid: int) -> str:
    """When a process was started, in the kernel's ticks; "" if it has exited. Process ids are used again.

    A process has also exited if its parent has not waited for it yet: in a container whose first process does not wait
    for others, it stays in the table.
    """
    try:
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in _EXITED else fields[_STARTED]
