"""Which entries of a store may go, and removing them: never one that a running process uses."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from naiad.environments.store.entries import StoreEntry, read_entries
from naiad.environments.store.store import Store
from naiad.environments.store.uses import Uses

__all__ = ["Removal", "choose_removals", "collect", "remove_entry", "shrink"]

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


def remove_entry(store: Store, uses: Uses, digest: str) -> bool:
    """Remove an entry unless a process uses it, now or since somebody looked.

    Raises:
        OSError: If it cannot be removed.
    """
    with uses.alone(digest) as is_alone:
        removed = is_alone and store.remove(digest)
        if removed:
            uses.forget(digest)
    return removed


def collect(store: Store, uses: Uses, removals: Iterable[Removal]) -> list[Removal]:
    """Remove what was chosen; returns what could be removed."""
    done = []
    for removal in removals:
        try:
            if remove_entry(store, uses, removal.entry.digest):
                done.append(removal)
        except OSError as error:
            _log.warning("cannot remove the environment in %s: %s", removal.entry.folder, error)
    return done


def shrink(store: Store, uses: Uses, max_bytes: int) -> None:
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
