"""Cleaning a store up at a person's request: entries by age and size, and what crashes and downloads left."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from naiad.environments.fetching.download import note_of
from naiad.environments.fetching.remote import RemoteArchives
from naiad.environments.progress import LogReporter
from naiad.environments.store.entries import read_entries
from naiad.environments.store.eviction import Removal, choose_removals, collect
from naiad.environments.store.store import Store
from naiad.environments.store.uses import Uses

__all__ = ["Collected", "collect_garbage"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
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
) -> Collected:
    """Remove what may go of a store.

    Args:
        root: The store.
        older_than: Seconds without use after which an entry goes.
        keep_bytes: Size to bring the store down to.
        dry_run: Only say what would go.
    """
    store, uses = Store(root, LogReporter()), Uses(root)
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
            note_of(part).unlink(missing_ok=True)
    return Collected(
        removed=tuple(chosen), kept=len(entries) - len(chosen), leftovers=len(leftovers), leftover_bytes=size
    )


def _sizes(path: Path) -> Iterator[int]:
    if not path.is_dir():
        yield path.lstat().st_size
    for parent, _, names in os.walk(path):
        yield from (Path(parent, name).lstat().st_size for name in names)
