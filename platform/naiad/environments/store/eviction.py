"""Removing entries from a store: to keep its size limit, and for `naiad env gc`.

An entry that a running process uses is never removed: removal needs its exclusive lock (see `leases`).
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from naiad.environments.fetching.remote import RemoteArchives
from naiad.environments.progress import LogReporter
from naiad.environments.store.entries import StoreEntry, read_entries
from naiad.environments.store.leases import EntryLeases
from naiad.environments.store.store import Store

__all__ = [
    "GarbageReport",
    "Removal",
    "choose_removals",
    "collect_garbage",
    "remove_entries",
    "remove_entry",
    "shrink_store",
]

_log = logging.getLogger("naiad.environments")
_DAY = 86_400


@dataclass(frozen=True, slots=True)
class Removal:
    """An entry chosen for removal, with the reason."""

    entry: StoreEntry
    reason: str


def choose_removals(
    entries: Iterable[StoreEntry], *, now: float, older_than: float | None = None, keep_bytes: int | None = None
) -> list[Removal]:
    """The entries to remove, least recently used first.

    Args:
        entries: All entries.
        now: Current time, in seconds since the epoch.
        older_than: Entries unused for longer are removed, in seconds.
        keep_bytes: Target size of the store; entries in use may keep it larger.
    """
    ordered = sorted(entries, key=lambda entry: (entry.last_used, entry.digest))
    total = sum(entry.size for entry in ordered)
    chosen: list[Removal] = []
    for entry in ordered:
        if entry.in_use:
            continue
        unused = now - entry.last_used
        if older_than is not None and unused > older_than:
            reason = f"not used for {unused / _DAY:.1f} days"
        elif keep_bytes is not None and total > keep_bytes:
            reason = f"least recently used of more than {keep_bytes / 1e6:.0f} MB"
        else:
            continue
        chosen.append(Removal(entry, reason))
        total -= entry.size
    return chosen


def remove_entry(store: Store, leases: EntryLeases, digest: str) -> bool:
    """Remove an entry unless a process uses it; False if it stays.

    Raises:
        OSError: If its files cannot be removed.
    """
    with leases.exclusive(digest) as is_unused:
        removed = is_unused and store.remove(digest)
        if removed:
            leases.forget_models(digest)
    return removed


def remove_entries(store: Store, leases: EntryLeases, removals: Iterable[Removal]) -> list[Removal]:
    """Remove the chosen entries; returns those that were removed."""
    done = []
    for removal in removals:
        try:
            if remove_entry(store, leases, removal.entry.digest):
                done.append(removal)
        except OSError as error:
            _log.warning("cannot remove the environment in %s: %s", removal.entry.folder, error)
    return done


def shrink_store(store: Store, leases: EntryLeases, max_bytes: int) -> None:
    """Remove least recently used entries until a store has at most *max_bytes*, and log each."""
    entries = read_entries(store.root)
    for removal in remove_entries(store, leases, choose_removals(entries, now=0.0, keep_bytes=max_bytes)):
        entry = removal.entry
        _log.info(
            "removed the environment of %s (%.0f MB) from the store: %s",
            entry.archive,
            entry.size / 1e6,
            removal.reason,
        )
    left = sum(entry.size for entry in read_entries(store.root))
    if left > max_bytes:
        _log.warning(
            "the store of environments at %s holds %.0f MB, more than the %.0f MB of --env-store-max-bytes: all of it "
            "is in use",
            store.root,
            left / 1e6,
            max_bytes / 1e6,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GarbageReport:
    """The result of a garbage collection, or of a dry run.

    Attributes:
        removed: Removed entries with reasons.
        kept: Number of entries that stay.
        leftovers: Number of incomplete entries and downloads that were removed.
        leftover_bytes: Their size.
    """

    removed: tuple[Removal, ...]
    kept: int
    leftovers: int
    leftover_bytes: int

    def as_json(self) -> dict[str, Any]:
        """Plain values for JSON output."""
        return asdict(self)


def collect_garbage(
    root: Path, *, older_than: float | None = None, keep_bytes: int | None = None, dry_run: bool = False
) -> GarbageReport:
    """Remove old entries, excess entries, and leftovers of crashes and downloads.

    Args:
        root: Folder of the store.
        older_than: Entries unused for longer are removed, in seconds.
        keep_bytes: Target size of the store.
        dry_run: Whether to report without removing.
    """
    from naiad.environments.fetching.download import (
        metadata_path,  # imports HTTP, which eviction in a server does not need
    )

    store, leases = Store(root, LogReporter()), EntryLeases(root)
    entries = read_entries(root)
    chosen = choose_removals(entries, now=time.time(), older_than=older_than, keep_bytes=keep_bytes)
    parts = RemoteArchives(root, LogReporter()).stale_downloads()
    leftovers = [*store.find_leftovers(), *parts]
    size = sum(sum(_sizes(path)) for path in leftovers)
    if not dry_run:
        chosen = remove_entries(store, leases, chosen)
        store.remove_leftovers()
        for part in parts:
            part.unlink(missing_ok=True)
            metadata_path(part).unlink(missing_ok=True)
    return GarbageReport(
        removed=tuple(chosen), kept=len(entries) - len(chosen), leftovers=len(leftovers), leftover_bytes=size
    )


def _sizes(path: Path) -> Iterator[int]:
    if not path.is_dir():
        yield path.lstat().st_size
    for parent, _, names in os.walk(path):
        yield from (Path(parent, name).lstat().st_size for name in names)
