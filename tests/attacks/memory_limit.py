"""A server that the kernel ends when it uses more memory than a bound."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_VERSION_1 = Path("/sys/fs/cgroup/memory")
_VERSION_2 = Path("/sys/fs/cgroup")


@contextlib.contextmanager
def limited(size: int) -> Iterator[tuple[str, ...]]:
    """The beginning of a command whose processes may use *size* bytes together.

    By a control group where one may be made, which counts what the processes of the server use together, as containers
    do. Else by a limit on the data of each process.
    """
    for root, limit in ((_VERSION_1, "memory.limit_in_bytes"), (_VERSION_2, "memory.max")):
        group = root / f"naiad-test-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / limit).write_text(str(size))
        except OSError:
            group.rmdir()
            continue
        try:
            yield "sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh"
        finally:
            group.rmdir()
        return
    yield "prlimit", f"--data={size}"
