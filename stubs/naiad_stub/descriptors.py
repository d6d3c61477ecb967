"""Keeps a guest working whose model closes descriptors that it has not opened.

Launchers and daemon libraries close all descriptors from 3 on, up to some limit. In the reference such a model keeps
serving, since its process and the server exchange data by shared memory. A guest needs its sockets. So these get
numbers that such loops do not reach: from 4096 on and, where possible, above `os.sysconf("SC_OPEN_MAX")`. Models also
close stdout and stderr; what they print afterwards is discarded.
"""

from __future__ import annotations

import errno
import fcntl
import io
import os
import resource
import sys
from typing import Any

_LEAST_NUMBER = 4096
_MAX_NUMBER = 1 << 16
"""The kernel's table of descriptors has 8 bytes for each number up to the largest, and each fork copies it."""
_SPARE = 16
"""Numbers from the first one on: more than there are descriptors to move."""
_UNLIMITED = 1 << 40


def move_up(descriptor: int) -> int:
    """Move *descriptor* to a number that loops over descriptors do not reach, and return that number.

    Programs that the model starts do not inherit it. The soft limit on descriptors bounds only new numbers: it is
    raised while the descriptor is duplicated. Where the hard limit forbids that, the soft limit is lowered by a few.
    """
    given = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft, hard = [_UNLIMITED if each == resource.RLIM_INFINITY else each for each in given]
    first = min(max(soft, _LEAST_NUMBER), hard - _SPARE, _MAX_NUMBER)
    if first <= descriptor:  # moved already, or a limit of very few
        os.set_inheritable(descriptor, False)
        return descriptor
    if first + _SPARE < soft:
        moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, first)
    else:
        resource.setrlimit(resource.RLIMIT_NOFILE, (first + _SPARE, given[1]))
        try:
            moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, first)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, first), given[1]))
    os.close(descriptor)
    return moved


class _TolerantFile(io.FileIO):
    """stdout or stderr. After the model has closed the descriptor, writes succeed and do nothing."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno != errno.EBADF:
                raise
            return memoryview(data).nbytes


def tolerate_closed_output() -> None:
    """From now on let `print` succeed after the model has closed descriptor 1 or 2."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if not isinstance(stream, io.TextIOWrapper):  # closed from the start
            continue
        stream.flush()
        raw = _TolerantFile(stream.fileno(), "w", closefd=False)
        raw.name = stream.name
        tolerant = io.TextIOWrapper(
            raw if isinstance(stream.buffer, io.RawIOBase) else io.BufferedWriter(raw),
            encoding=stream.encoding,
            errors=stream.errors,
            newline="\n",
            line_buffering=stream.line_buffering,
            write_through=stream.write_through,
        )
        setattr(tolerant, "mode", "w")  # noqa: B010 - read-only for a type checker
        setattr(sys, name, tolerant)
        setattr(sys, f"__{name}__", tolerant)
