"""How much memory this process may use: the machine's, a container's, or what `ulimit -v` leaves."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["available_memory", "cgroup_limits"]

_NO_LIMIT = 1 << 60
"""Version 1 of cgroups has no word for "no limit": it shows the largest multiple of a page below 2**63."""


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
    """The memory limits of a process's cgroups, those of their ancestors included.

    Args:
        membership: Such as `/proc/self/cgroup`; each line is `id:controllers:path`, and version 2 has no controllers.
        mounted: Where cgroups are mounted.
    """
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return  # not Linux
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            yield from _limits(mounted, path, "memory.max")
        elif "memory" in controllers.split(","):
            yield from _limits(mounted / "memory", path, "memory.limit_in_bytes")


def _limits(root: Path, path: str, name: str) -> Iterator[int]:
    # Within a container, the path may be that of the machine while only the container's own cgroup is mounted, at the
    # root. So directories that do not exist are skipped.
    parts = Path(path.lstrip("/")).parts
    for length in range(len(parts), -1, -1):
        try:
            text = root.joinpath(*parts[:length], name).read_text().strip()
        except OSError:
            continue
        if text.isdigit() and int(text) < _NO_LIMIT:
            yield int(text)
