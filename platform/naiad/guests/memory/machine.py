"""What the machine or container gives this process: memory (within what `ulimit -v` leaves), and /proc."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from naiad_stub.process_limits import group_directories

from naiad.core.errors import UnsupportedRequestError

_PROC = Path("/proc/self/stat")
_FILES = {1: "memory.limit_in_bytes", 2: "memory.max"}  # the file that has a limit, by the version of cgroups
# Version 1 of cgroups has no word for "no limit": it shows the largest multiple of a page below 2**63.
_NO_LIMIT = 1 << 60


def available_memory() -> int:
    """Bytes: the least of the machine's memory, the limits of the cgroups, and the limit on address space."""
    import resource

    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    address_space, _ = resource.getrlimit(resource.RLIMIT_AS)
    limits = [machine, *cgroup_limits(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))]
    if address_space != resource.RLIM_INFINITY:
        limits.append(address_space)
    return min(limits)


def cgroup_limits(membership: Path, mounted: Path) -> Iterator[int]:
    """The memory limits of the cgroups that *membership* (`/proc/self/cgroup`) names, and of their ancestors."""
    for version, directory in group_directories("memory", membership, mounted):
        try:
            text = (directory / _FILES[version]).read_text().strip()
        except OSError:
            continue
        if text.isdigit() and int(text) < _NO_LIMIT:
            yield int(text)


def require_proc() -> None:
    """Reject a system on which nothing says what processes do: guests are supervised, and ended, by that."""
    if not _PROC.exists():
        raise UnsupportedRequestError(
            f"cannot run models: {_PROC} does not exist, and the server reads in /proc what guests do and which "
            "processes they started; mount it: mount -t proc proc /proc (a chroot or container without it hides it)"
        )
