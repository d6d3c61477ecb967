"""Measures the memory, pages of segments, descriptors and threads of a server and its guests. Linux only."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from pathlib import Path

import psutil

MIB = 1 << 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Held:
    """The resources of one process, or the sum for several.

    Attributes:
        private: Bytes of anonymous pages, in which leaks of objects show.
        pss: Bytes of memory, with the process's share of shared pages (PSS).
        segments: Bytes of pages in segments, the process's share.
        descriptors: Number of open files and sockets.
        threads: Number of threads.
    """

    private: int = 0
    pss: int = 0
    segments: int = 0
    descriptors: int = 0
    threads: int = 0

    def __add__(self, other: Held) -> Held:
        return Held(
            **{field.name: getattr(self, field.name) + getattr(other, field.name) for field in dataclasses.fields(Held)}
        )


@dataclasses.dataclass(frozen=True)
class Reading:
    """The resources of a server and its guests at one time."""

    host: Held
    guests: Sequence[Held]
    pids: frozenset[int]

    @property
    def guest(self) -> Held:
        """The sum for all guests."""
        return sum(self.guests, Held())

    @property
    def segments(self) -> int:
        """Bytes of pages in all segments."""
        return self.host.segments + self.guest.segments


def read(pid: int) -> Reading:
    """Measure the server *pid* and all processes below it."""
    guests = []
    pids = set()
    for process in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
            guests.append(_held(process.pid))
            pids.add(process.pid)
    return Reading(_held(pid), guests, frozenset(pids))


def _held(pid: int) -> Held:
    private = pss = segments = 0
    is_segment = False
    proc = Path("/proc") / str(pid)
    for line in (proc / "smaps").read_text(errors="replace").splitlines():
        key, _, rest = line.partition(":")
        if key == "Pss":
            size = int(rest.split()[0]) << 10
            pss += size
            if is_segment:
                segments += size
        elif key == "Anonymous":
            private += int(rest.split()[0]) << 10
        elif "-" in key.partition(" ")[0]:  # the head of a mapping
            is_segment = "/memfd:" in line
    return Held(
        private=private,
        pss=pss,
        segments=segments,
        descriptors=len(list((proc / "fd").iterdir())),
        threads=len(list((proc / "task").iterdir())),
    )
