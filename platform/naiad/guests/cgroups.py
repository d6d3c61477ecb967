"""Control groups of guests: one for each guest, with its memory limit and every process that it starts.

A process may leave its process group and its session (setsid), but not its control group. So the control group is what
ends the whole process tree of a guest. The kernel also enforces a memory limit for all processes of a group together.

Groups are made below the group of this server, where the system permits that: to root, or where systemd has delegated
the subtree (`Delegate=yes`). Both versions of control groups are used (cgroups(7)). Version 2 limits memory only below
a group that has no processes itself; `_make_limitable` moves this server into a separate group for that. Version 1
has a separate hierarchy for memory. Where nothing is permitted, `create` returns None and the log has no line about it.

Moving a process may wait for a grace period of the kernel (7 ms were measured), so call `add` on a thread.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import os
import re
import signal
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["GuestCgroup", "Hierarchy", "create", "find_hierarchies", "hierarchies_of", "remove_abandoned"]

logger = logging.getLogger("naiad.workers")

_PREFIX = "naiad-guest"
_HOST = "naiad-host"
_KILL_PASSES = 20
_V1, _V2 = 1, 2
_NEUTRAL = frozenset({"memory", "pids", "freezer"})
"""Controllers of version 1 whose groups change nothing for their processes unless they are told to. (In a new group of
`cpuset`, for example, no process may run.)"""
_DELEGATED = ("user.delegate", "trusted.delegate")
"""Extended attributes by which systemd marks a group whose subtree belongs to a service."""

_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """One mounted hierarchy of control groups, and the group in which this server may make others.

    Attributes:
        group: The directory of that group.
        version: 1 or 2.
        controllers: What limits it can enforce; in version 2 those of `cgroup.controllers`.
    """

    group: Path
    version: int
    controllers: frozenset[str]


class GuestCgroup:
    """The control groups of one guest: one, or one for its processes and one for its memory.

    Attributes:
        memory_limit: Bytes that its processes may use together; 0 for no limit.
    """

    def __init__(self, directories: Iterable[Path], memory_limit: int) -> None:
        self._directories = tuple(directories)
        self.memory_limit = memory_limit

    @property
    def directories(self) -> tuple[Path, ...]:
        """The directories of the groups."""
        return self._directories

    def __repr__(self) -> str:
        return f"<GuestCgroup {' '.join(map(str, self._directories))}>"

    def add(self, pid: int) -> None:
        """Move a process into the groups; the processes it starts from now on are in them, too. May block for 10 ms.

        Raises:
            OSError: If the process has ended or the system refuses.
        """
        for directory in self._directories:
            (directory / "cgroup.procs").write_text(str(pid))

    def pids(self) -> list[int]:
        """The processes in the groups; empty if they are removed."""
        found: list[int] = []
        for directory in self._directories:
            with contextlib.suppress(OSError):
                found += map(int, (directory / "cgroup.procs").read_text().split())
        return list(dict.fromkeys(found))

    def kill(self) -> None:
        """Kill every process in the groups, those that are being forked meanwhile included."""
        for directory in self._directories:
            try:
                (directory / "cgroup.kill").write_text("1")  # version 2, since Linux 5.14
            except OSError:
                self._kill_each(directory)

    def has_exceeded_memory(self) -> bool:
        """Whether the kernel killed a process of the groups because they had reached their memory limit."""
        return any(_oom_kills(directory) for directory in self._directories)

    def remove(self) -> bool:
        """Remove the groups; False while processes are left in them, which may take a moment after `kill`."""
        removed = True
        for directory in self._directories:
            try:
                directory.rmdir()
            except FileNotFoundError:
                pass
            except OSError:
                removed = False
        return removed

    @staticmethod
    def _kill_each(directory: Path) -> None:
        # A process that forks while the list is read escapes one pass, and is in the list of the next.
        for _ in range(_KILL_PASSES):
            try:
                pids = (directory / "cgroup.procs").read_text().split()
            except OSError:
                return
            if not pids:
                return
            for pid in map(int, pids):
                if pid:  # 0: a process that this one's namespace of process ids does not have
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, signal.SIGKILL)


def create(memory_limit: int = 0) -> GuestCgroup | None:
    """Groups for a new guest; None if the system lets this server make none.

    Args:
        memory_limit: Bytes that the guest and its processes may use together; 0 for no limit. The result's
            `memory_limit` is 0 if only this cannot be had.
    """
    name = f"{_PREFIX}-{os.getpid()}-{next(_numbers)}"
    tracking = limiting = None
    hierarchies = find_hierarchies()
    if memory_limit:
        limiting = next(filter(None, (_create_limited(each, name, memory_limit) for each in hierarchies)), None)
    if limiting is None or not (limiting / "cgroup.kill").exists():
        tracking = next(filter(None, (_create_in(each, name, limiting) for each in hierarchies)), None)
    directories = [each for each in (tracking, limiting) if each is not None]
    return GuestCgroup(directories, memory_limit if limiting else 0) if directories else None


@functools.cache
def find_hierarchies() -> tuple[Hierarchy, ...]:
    """Hierarchies in which this server may make groups, the most useful first: version 2, memory, others."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
        memberships = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return ()
    found = [each for each in hierarchies_of(mounts, memberships) if _is_permitted(each.group)]
    for each in found:
        remove_abandoned(each.group)
    return tuple(sorted(found, key=lambda each: (each.version != _V2, "memory" not in each.controllers)))


def remove_abandoned(group: Path) -> None:
    """Remove empty groups below *group* that servers have left that were killed."""
    with contextlib.suppress(OSError):
        for directory in group.glob("naiad-*-*"):
            match = re.fullmatch(rf"(?:{_PREFIX}|{_HOST})-(\d+)(?:-\d+)?", directory.name)
            if match and not Path(f"/proc/{match[1]}").exists():
                with contextlib.suppress(OSError):
                    directory.rmdir()


def hierarchies_of(mounts: Iterable[str], memberships: Iterable[str]) -> Iterator[Hierarchy]:
    """The hierarchies of this process by the lines of /proc/self/mountinfo and /proc/self/cgroup (cgroups(7))."""
    paths: dict[frozenset[str], str] = {}
    for line in memberships:
        _, controllers, path = line.split(":", 2)
        paths[frozenset(filter(None, controllers.split(",")))] = path
    names: frozenset[str]
    for line in mounts:
        ours, _, theirs = line.partition(" - ")
        root, mount_point = ours.split()[3:5]
        kind, _, options = theirs.split()[:3]
        if kind == "cgroup2":
            names = frozenset()
        elif kind == "cgroup":
            names = next((each for each in paths if each and each <= set(options.split(","))), frozenset())
            if not names & _NEUTRAL:
                continue
        else:
            continue
        path = paths.get(names, "")
        if not (path == root or path.startswith(root.rstrip("/") + "/")):
            continue  # another part of the hierarchy is mounted here
        group = Path(mount_point) / path[len(root.rstrip("/")) :].lstrip("/")
        if kind == "cgroup":
            yield Hierarchy(group, _V1, names)
            continue
        with contextlib.suppress(OSError):
            if _is_delegated(group.parent):  # a service whose main process has its own group (DelegateSubgroup=)
                group = group.parent
            yield Hierarchy(group, _V2, frozenset((group / "cgroup.controllers").read_text().split()))


def _is_delegated(group: Path) -> bool:
    for name in _DELEGATED:
        with contextlib.suppress(OSError):
            if os.getxattr(group, name) == b"1":
                return True
    return False


def _is_permitted(group: Path) -> bool:
    """Whether groups can be made below *group* and processes moved to them: W_OK is not enough on a read-only mount."""
    probe = group / f"{_PREFIX}-{os.getpid()}"
    try:
        probe.mkdir()
    except OSError:
        return False
    try:
        return os.access(group / "cgroup.procs", os.W_OK) and os.access(probe / "cgroup.procs", os.W_OK)
    finally:
        probe.rmdir()


def _create_in(hierarchy: Hierarchy, name: str, existing: Path | None) -> Path | None:
    """A group without limits; None if it cannot be made, or is *existing*."""
    directory = hierarchy.group / name
    if directory == existing:
        return None
    try:
        directory.mkdir()
    except OSError:
        return None
    return directory


def _create_limited(hierarchy: Hierarchy, name: str, limit: int) -> Path | None:
    """A group with a memory limit; None if the hierarchy has no such limits."""
    if "memory" not in hierarchy.controllers:
        return None
    directory = hierarchy.group / name
    try:
        if hierarchy.version == _V2:
            _make_limitable(hierarchy.group)
        directory.mkdir()
    except OSError as error:
        logger.debug("no memory limits by %s: %s", hierarchy.group, error)
        return None
    try:
        if hierarchy.version == _V2:
            (directory / "memory.max").write_text(str(limit))
            # Otherwise the guest would slow down by swapping instead of ending, and its children would survive it.
            _write_if_there(directory / "memory.swap.max", "0")
            _write_if_there(directory / "memory.oom.group", "1")
        else:
            (directory / "memory.limit_in_bytes").write_text(str(limit))
            _write_if_there(directory / "memory.memsw.limit_in_bytes", str(limit))
    except OSError as error:
        logger.debug("no memory limits by %s: %s", hierarchy.group, error)
        directory.rmdir()
        return None
    return directory


def _make_limitable(group: Path) -> None:
    """Let groups below *group* limit memory (version 2).

    The kernel allows that only if *group* has no processes. If its only processes are this server and what it
    has started, they are moved into a separate group first.

    Raises:
        OSError: If that is not possible.
    """
    control = group / "cgroup.subtree_control"
    if "memory" in control.read_text().split():
        return
    try:
        control.write_text("+memory")
    except OSError:
        pids = _pids_of(group)
        if not pids <= _own_family():
            raise
        host = group / f"{_HOST}-{os.getpid()}"
        host.mkdir(exist_ok=True)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                (host / "cgroup.procs").write_text(str(pid))
        control.write_text("+memory")


def _pids_of(group: Path) -> set[int]:
    return set(map(int, (group / "cgroup.procs").read_text().split()))


def _own_family() -> set[int]:
    import psutil  # here: few servers need it

    return {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}


def _write_if_there(file: Path, text: str) -> None:
    with contextlib.suppress(OSError):
        file.write_text(text)


def _oom_kills(directory: Path) -> int:
    """How many processes of a group the kernel has killed for its memory limit."""
    for name in ("memory.events", "memory.oom_control"):
        with contextlib.suppress(OSError):
            for line in (directory / name).read_text().splitlines():
                field, _, count = line.partition(" ")
                if field == "oom_kill":
                    return int(count)
    return 0
