"""Garbage collection of a store: environments and pulled repositories that nothing uses, and what crashes left."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from naiad.environments.fetching.remote import RemoteArchives
from naiad.environments.progress import LogReporter
from naiad.environments.store.entries import file_sizes
from naiad.environments.store.eviction import Removal, choose_removals, explain_kept, read_parts, remove_entries
from naiad.environments.store.leases import EntryLeases
from naiad.environments.store.package_cache import remove_unused_packages, unused_packages
from naiad.environments.store.pulled import pulled_leftovers, remove_pulled_leftovers
from naiad.environments.store.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class GarbageReport:
    """The result of a garbage collection, or of a dry run."""

    removed: tuple[Removal, ...]
    kept: int
    stays: tuple[Removal, ...]
    failed: int
    leftovers: int  # number of incomplete entries, downloads, unused layers and packages that were removed
    leftover_bytes: int

    @property
    def freed_bytes(self) -> int:
        return sum(removal.freed for removal in self.removed) + self.leftover_bytes

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def collect_garbage(
    root: Path, *, older_than: float | None = None, keep_bytes: int | None = None, dry_run: bool = False
) -> GarbageReport:
    """Remove what was unused for *older_than* seconds or is beyond a size, and leftovers of crashes and downloads."""
    from naiad.environments.fetching.download import (
        metadata_path,  # imports HTTP, which eviction in a server does not need
    )

    store, leases = Store(root, LogReporter()), EntryLeases(root)
    parts = read_parts(root)
    now = time.time()
    chosen = choose_removals(parts, now=now, older_than=older_than, keep_bytes=keep_bytes)
    wanted = {removal.entry.digest for removal in chosen}
    downloads = RemoteArchives(root, LogReporter()).stale_downloads()
    leftovers = [*store.find_leftovers(), *unused_packages(root), *downloads, *pulled_leftovers(root)]
    size = sum(sum(file_sizes(path)) if path.is_dir() else path.lstat().st_size for path in leftovers)
    if not dry_run:
        chosen = remove_entries(store, leases, chosen)
        store.remove_leftovers()
        remove_unused_packages(root)
        remove_pulled_leftovers(root)
        for part in downloads:
            part.unlink(missing_ok=True)
            metadata_path(part).unlink(missing_ok=True)
    removed = {removal.entry.digest for removal in chosen}
    stays = tuple(
        Removal(
            part,
            "it cannot be removed, or a server has just begun to use it"
            if part.digest in wanted
            else explain_kept(part, now=now, older_than=older_than, keep_bytes=keep_bytes),
        )
        for part in parts
        if part.digest not in removed
    )
    return GarbageReport(
        removed=tuple(chosen),
        kept=len(stays),
        stays=stays,
        failed=len(wanted - removed),
        leftovers=len(leftovers),
        leftover_bytes=size,
    )
