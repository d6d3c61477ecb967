"""Which entries of a store may go, and removing them: never one that a running process uses."""

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

__all__ = ["GarbageReport", "Removal", "choose_removals", "collect", "collect_garbage", "remove_entry", "shrink_store"]

_log = logging.getLogger("naiad.environments")
_DAY = 86_400


@dataclass(frozen=True, slots=True)
class Removal:
    """An entry that may go, and why."""

    entry: StoreEntry
    reason: str


def choose_removals(
    entries: Iterable[StoreEntry], *, now: float, older_than: float | None = None, keep_bytes: int | None = None
) -> list[Removal]:
    """Choose what to remove, least recently used first.

    Args:
        entries: What there is.
        now: Seconds since the epoch.
        older_than: Seconds for which an entry was not used, after which it goes.
        keep_bytes: Size to which the store is brought down, as far as what is in use allows.
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


def remove_entry(store: Store, uses: EntryLeases, digest: str) -> bool:
    """Remove an entry unless a process uses it, now or since somebody looked.

    Raises:
        OSError: If it cannot be removed.
    """
    with uses.alone(digest) as is_alone:
        removed = is_alone and store.remove(digest)
        if removed:
            uses.forget(digest)
    return removed


def collect(store: Store, uses: EntryLeases, removals: Iterable[Removal]) -> list[Removal]:
    """Remove what was chosen; returns what could be removed."""
    done = []
    for removal in removals:
        try:
            if remove_entry(store, uses, removal.entry.digest):
                done.append(removal)
        except OSError as error:
            _log.warning("cannot remove the environment in %s: %s", removal.entry.folder, error)
    return done


def shrink_store(store: Store, uses: EntryLeases, max_bytes: int) -> None:
    """Bring a store down to a size after something was added to it, and say what went."""
    entries = read_entries(store.root)
    for removal in collect(store, uses, choose_removals(entries, now=0.0, keep_bytes=max_bytes)):
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
    """What went, or would go.

    Attributes:
        removed: Entries, with the reason of each.
        kept: How many entries stay.
        leftovers: How many half-made things went.
        leftover_bytes: Their size.
    """

    removed: tuple[Removal, ...]
    kept: int
    leftovers: int
    leftover_bytes: int

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def collect_garbage(
    root: Path, *, older_than: float | None = None, keep_bytes: int | None = None, dry_run: bool = False
) -> GarbageReport:
    """Remove what may go of a store.

    Args:
        root: The store.
        older_than: Seconds without use after which an entry goes.
        keep_bytes: Size to bring the store down to.
        dry_run: Only say what would go.
    """
    from naiad.environments.fetching.download import (
        metadata_path,  # HTTP, which a server that only evicts does not need
    )

    store, uses = Store(root, LogReporter()), EntryLeases(root)
    entries = read_entries(root)
    chosen = choose_removals(entries, now=time.time(), older_than=older_than, keep_bytes=keep_bytes)
    parts = RemoteArchives(root, LogReporter()).abandoned()
    leftovers = [*store.leftovers(), *parts]
    size = sum(sum(_sizes(path)) for path in leftovers)
    if not dry_run:
        chosen = collect(store, uses, chosen)
        store.sweep()
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
