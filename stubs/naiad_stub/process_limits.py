"""What limits this process: the processors that it may use, and the control groups that it is in.

The host uses this module, too. It has no code for systems without control groups: their files are missing there.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Iterator, Optional, Tuple

_MEMBERSHIP = Path("/proc/self/cgroup")
_MOUNTED = Path("/sys/fs/cgroup")
_ROOTS = "0::/\n1:cpu:/\n2:memory:/\n"
"""The membership where /proc is not mounted: a container's own groups are at the root of what it sees."""


def usable_processors(membership: Path = _MEMBERSHIP, mounted: Path = _MOUNTED) -> int:
    """How many processors' time this process may use, at least 1.

    That is the number that it may run on (`taskset`, cpusets), or less if a control group has a quota (`docker
    --cpus`, `limits.cpu` of Kubernetes). A quota of 1.5 counts as 2: threads that are stopped for a part of each period
    get more done than one thread.
    """
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = processor_quota(membership, mounted)
    return processors if quota is None else max(1, min(processors, math.ceil(quota)))


def processor_quota(membership: Path = _MEMBERSHIP, mounted: Path = _MOUNTED) -> Optional[float]:
    """How many processors' time the control groups allow, such as 1.5; None without a quota."""
    quotas = [
        _quota_v2(directory) if version == 2 else _quota_v1(directory)  # noqa: PLR2004 - the versions have no names
        for version, directory in group_directories("cpu", membership, mounted)
    ]
    return min((quota for quota in quotas if quota is not None), default=None)


def group_directories(
    controller: str, membership: Path = _MEMBERSHIP, mounted: Path = _MOUNTED
) -> Iterator[Tuple[int, Path]]:
    """The directories of the process's control groups, and of those above them, each with the version of its hierarchy.

    Within a container, the membership may be that of the machine while only the container's own group is mounted, at
    the root. So some directories may not exist.

    Args:
        controller: Such as `memory`. In version 2 the groups of all controllers are the same.
        membership: Lines `id:controllers:path` (cgroups(7)); version 2 has no controllers there.
        mounted: Where control groups are mounted.
    """
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        lines = _ROOTS.splitlines()
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        # Hierarchies of version 1 have the names of their controllers; usually each of these is a link.
        roots = [mounted / controller, mounted / controllers] if controllers else [mounted]
        root = next(filter(Path.is_dir, roots), roots[0])
        parts = Path(path.lstrip("/")).parts
        for length in range(len(parts), -1, -1):
            yield (1 if controllers else 2), root.joinpath(*parts[:length])


def _quota_v2(directory: Path) -> Optional[float]:
    words = _words(directory / "cpu.max")  # such as `150000 100000`, or `max 100000`
    return int(words[0]) / int(words[1]) if len(words) == 2 and words[0].isdigit() else None  # noqa: PLR2004 - as shown


def _quota_v1(directory: Path) -> Optional[float]:
    quota, period = (_words(directory / f"cpu.cfs_{name}_us") for name in ("quota", "period"))  # a quota may be -1
    return int(quota[0]) / int(period[0]) if quota and period and quota[0].isdigit() else None


def _words(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except OSError:
        return []
