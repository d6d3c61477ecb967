"""Room for a new entry on the disk of a store: how much it needs, and making it by removing entries.

Room is made before an archive is unpacked. Afterwards would be too late: a disk may have no room for the new entry and
the unused ones at the same time.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path

from naiad.core.errors import ExecutionEnvironmentError
from naiad.core.quantities import size_text
from naiad.environments.archives.formats import detect_format, unpacked_size
from naiad.environments.archives.manifest import read_manifest
from naiad.environments.store.eviction import choose_removals, describe, disk_usage, read_parts, remove_entries
from naiad.environments.store.leases import EntryLeases
from naiad.environments.store.store import Store

_log = logging.getLogger("naiad.environments")

# Assumed ratio of unpacked to packed size, for archives that do not state it; conda-pack's archives have 3 to 4.
_UNPACKED_RATIO = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class NeededRoom:
    """What an archive takes unpacked; *files* is None if unknown, *is_stated* if its manifest states the size."""

    size: int
    files: int | None
    is_stated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeRoom:
    """What a file system has left: bytes, and files; None where their number is not limited."""

    size: int
    files: int | None


def needed_room(archive: Path) -> NeededRoom:
    """What an archive takes when it is unpacked."""
    manifest = read_manifest(archive)
    if manifest is not None:
        return NeededRoom(size=manifest.size, files=manifest.files, is_stated=True)
    size = unpacked_size(archive, detect_format(archive)) or archive.stat().st_size * _UNPACKED_RATIO
    return NeededRoom(size=size, files=None, is_stated=False)


def free_room(folder: Path) -> FreeRoom:
    """What the file system of a folder has left.

    The folder need not exist: its closest existing parent counts. Btrfs and some others report 0 inodes in total,
    because they allocate them as needed.
    """
    status = os.statvfs(next(place for place in (folder, *folder.parents) if place.is_dir()))
    return FreeRoom(size=status.f_bavail * status.f_frsize, files=status.f_favail if status.f_files else None)


def unused_bytes(root: Path) -> int:
    """The bytes that removing all entries and pulled repositories frees that no process uses."""
    return sum(removal.freed for removal in choose_removals(read_parts(root), now=0.0, keep_bytes=0))


def make_room(store: Store, leases: EntryLeases, archive: Path, origin: str, *, max_bytes: int) -> None:
    """Make room for unpacking an archive; above *max_bytes* (0: never) unused parts go, least recently used first."""
    needed = needed_room(archive)
    if max_bytes:
        parts = read_parts(store.root)
        total = disk_usage(parts).total
        lacking = max(0, needed.size - free_room(store.root).size)
        keep = max(0, min(max_bytes - needed.size, total - lacking))
        for removal in remove_entries(store, leases, choose_removals(parts, now=0.0, keep_bytes=keep)):
            _log.info(
                "removed %s (%s) from the store, which needs room for the environment of %s",
                describe(removal.entry),
                size_text(removal.entry.size),
                origin,
            )
    free = free_room(store.root).size
    if needed.is_stated and needed.size > free:
        unused = unused_bytes(store.root)
        advice = f"`naiad env gc --keep-bytes=0` frees {size_text(unused)} of it; or " if unused else ""
        raise ExecutionEnvironmentError(
            f"no space to unpack {origin}: it takes {size_text(needed.size)}, and {size_text(free)} are free on the "
            f"disk of {store.root}; {advice}make room there, or name another --env-store"
        )
