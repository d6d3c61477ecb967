"""Measures the memory, pages of segments, descriptors and threads of a server and its guests. Linux only."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from pathlib import Path

import psutil

from naiad.frontends.offload import process as offload

MIB = 1 << 20
_PROCESS = "naiad-process"
_LOADS = "/memfd:naiad-loads"
"""How busy the processes of a server are for each version: it has no tensors, and is in use for good."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Held:
    """The resources of one process, or the sum for several.

    Attributes:
        private: Bytes of anonymous pages, in which leaks of objects show.
        pss: Bytes of memory, with the process's share of shared pages (PSS).
        segments: Bytes of pages in segments, the process's share.
        descriptors: Number of open files and sockets.
        threads: Number of threads.
        segment_descriptors: Number of open segments.
    """

    private: int = 0
    pss: int = 0
    segments: int = 0
    descriptors: int = 0
    threads: int = 0
    segment_descriptors: int = 0

    def __add__(self, other: Held) -> Held:
        return Held(
            **{field.name: getattr(self, field.name) + getattr(other, field.name) for field in dataclasses.fields(Held)}
        )


@dataclasses.dataclass(frozen=True)
class Reading:
    """The resources of a server and its guests at one time.

    Attributes:
        host: The server's main process.
        guests: Its guests, and its helpers.
        pids: Ids of all processes but those below further processes, which start when they are needed.
        further: Its further processes, with the descriptors that are not segments: they open the outputs of an
            instance when a client first gets some.
    """

    host: Held
    guests: Sequence[Held]
    pids: frozenset[int]
    further: Sequence[Held] = ()

    @property
    def guest(self) -> Held:
        """The sum for all guests."""
        return sum(self.guests, Held())

    @property
    def segments(self) -> int:
        """Bytes of pages in all segments."""
        return self.host.segments + self.guest.segments + sum(each.segments for each in self.further)


def read(pid: int) -> Reading:
    """Measure the server *pid* and all processes below it."""
    guests = []
    further = []
    pids = set()
    host = _held(pid)
    children = {child: _arguments(child) for child in psutil.Process(pid).children()}
    has_processes = any(_PROCESS in arguments for arguments in children.values())
    for child, arguments in children.items():
        with contextlib.suppress(psutil.NoSuchProcess):
            is_further = _PROCESS in arguments
            if has_processes and not is_further and offload.__name__ in " ".join(arguments):
                continue  # starts when it is needed, as do those of the other processes
            family = [child, *child.children(recursive=True)]
            held = [(each.pid, found) for each in family if (found := _held_if_running(each.pid))]
            if is_further:
                further += [
                    dataclasses.replace(each, descriptors=each.descriptors - each.segment_descriptors)
                    for number, each in held
                    if number == child.pid
                ]
                pids.add(child.pid)
            else:
                guests += [each for _, each in held]
                pids |= {number for number, _ in held}
    if further:  # then it opens outputs of instances of other processes, too
        host = dataclasses.replace(host, descriptors=host.descriptors - host.segment_descriptors)
    return Reading(host, guests, frozenset(pids), further)


def _arguments(process: psutil.Process) -> Sequence[str]:
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return ()


def _held_if_running(pid: int) -> Held | None:
    try:
        return _held(pid)
    except (FileNotFoundError, ProcessLookupError):
        return None


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
            is_segment = "/memfd:" in line and _LOADS not in line
    opened = list((proc / "fd").iterdir())
    return Held(
        private=private,
        pss=pss,
        segments=segments,
        descriptors=len(opened),
        threads=len(list((proc / "task").iterdir())),
        segment_descriptors=sum(_target(each).startswith("/memfd:") for each in opened),
    )


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except FileNotFoundError:
        return ""  # closed meanwhile
