"""Removing entries and pulled repositories from a store: to keep its size limit, and for `naiad env gc`.

What a running process uses is never removed: removal needs its exclusive lock (see `leases`).
"""

from __future__ import annotations

import logging
import os
import stat
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from naiad.core.quantities import size_text
from naiad.environments.store.entries import StoreEntry, read_entries
from naiad.environments.store.leases import EntryLeases, list_models
from naiad.environments.store.pulled import PulledRepository, read_pulled, remove_pulled
from naiad.environments.store.store import Store

_log = logging.getLogger("naiad.environments")
_DAY = 86_400

StorePart: TypeAlias = StoreEntry | PulledRepository  # what may be removed


_Inode = tuple[int, int]


class DiskUsage:
    """The bytes that parts take together; *linked* has the sizes of their files that have several links."""

    def __init__(self, sizes: Mapping[str, int], linked: Mapping[str, Mapping[_Inode, int]]) -> None:
        self._sizes = dict(sizes)
        self._linked = {name: linked.get(name, {}) for name in sizes}
        self._users = Counter(inode for files in self._linked.values() for inode in files)
        shared = {inode: size for files in self._linked.values() for inode, size in files.items()}
        self.total = sum(sizes.values()) - sum((self._users[inode] - 1) * size for inode, size in shared.items())

    def remove(self, name: str) -> int:
        """Remove a part; returns the bytes that this frees: those of files that no other part has."""
        freed = self._sizes.pop(name)
        for inode, size in self._linked[name].items():
            self._users[inode] -= 1
            if self._users[inode]:
                freed -= size
        self.total -= freed
        return freed


def linked_files(folders: Iterable[Path]) -> dict[_Inode, int]:
    """The sizes in bytes of the files in folders that have more than one link, by device and inode."""
    found: dict[_Inode, int] = {}
    for folder in folders:
        for parent, _, names in os.walk(folder):
            for name in names:
                try:
                    facts = os.lstat(os.path.join(parent, name))  # noqa: PTH118 - plain strings: called for each of 10,000 files
                except FileNotFoundError:
                    continue  # removed just now
                if facts.st_nlink > 1 and stat.S_ISREG(facts.st_mode):
                    found[facts.st_dev, facts.st_ino] = facts.st_size
    return found


@dataclass(frozen=True, slots=True)
class Removal:
    """An entry, or another part of a store, chosen for removal or not."""

    entry: StorePart
    reason: str
    freed: int = 0  # bytes that its removal frees: without files that it shares with what stays


def read_parts(root: Path) -> list[StorePart]:
    """The entries of a store, and the repositories that were pulled into it."""
    return [*read_entries(root), *read_pulled(root)]


def choose_removals(
    entries: Iterable[StorePart], *, now: float, older_than: float | None = None, keep_bytes: int | None = None
) -> list[Removal]:
    """The entries to remove, least recently used first; those unused for *older_than* seconds in any case.

    Entries in use may keep the store larger than *keep_bytes*.
    """
    if older_than is None and keep_bytes is None:
        return []
    ordered = sorted(entries, key=lambda entry: (entry.last_used, entry.digest))
    usage = disk_usage(ordered)
    chosen: list[Removal] = []
    for entry in ordered:
        if entry.in_use:
            continue
        unused = now - entry.last_used
        if older_than is not None and unused > older_than:
            reason = f"not used for {unused / _DAY:.1f} days"
        elif keep_bytes is not None and usage.total > keep_bytes:
            reason = f"least recently used of more than {keep_bytes / 1e6:.0f} MB"
        else:
            continue
        chosen.append(Removal(entry, reason, usage.remove(entry.digest)))
    return chosen


def disk_usage(entries: Iterable[StorePart]) -> DiskUsage:
    """What entries take together. Reads the facts of all their files."""
    entries = list(entries)
    sizes = {entry.digest: entry.size for entry in entries}
    return DiskUsage(sizes, {entry.digest: linked_files(entry.folders) for entry in entries})


def remove_entry(store: Store, leases: EntryLeases, digest: str) -> bool:
    """Remove an entry unless a process uses it; False if it stays."""
    with leases.exclusive(digest) as is_unused:
        removed = is_unused and store.remove(digest)
        if removed:
            leases.forget_models(digest)
    return removed


def explain_kept(
    entry: StorePart, *, now: float, older_than: float | None = None, keep_bytes: int | None = None
) -> str:
    """Why an entry stays that `choose_removals` has not chosen under these limits."""
    unused = now - entry.last_used
    if entry.in_use:
        models = list_models(entry.models)
        return f"a running server uses it{f', last for {models}' if models else ''}"
    if older_than is None and keep_bytes is None:
        return "no limit is given: --older-than or --keep-bytes"
    reasons = []
    if older_than is not None:
        reasons.append(f"used {unused / _DAY:.1f} days ago, and the limit is {older_than / _DAY:.1f} days")
    if keep_bytes is not None:
        reasons.append(f"the store with it is within {size_text(keep_bytes)}")
    return "; ".join(reasons)


def remove_entries(store: Store, leases: EntryLeases, removals: Iterable[Removal]) -> list[Removal]:
    """Remove the chosen entries and repositories; returns those that were removed."""
    done = []
    for removal in removals:
        digest = removal.entry.digest
        try:
            if isinstance(removal.entry, PulledRepository):
                is_removed = remove_pulled(store.root, digest)
            else:
                is_removed = remove_entry(store, leases, digest)
        except OSError as error:
            _log.warning("cannot remove %s from the store %s: %s", describe(removal.entry), store.root, error)
        else:
            done += [removal] if is_removed else []
    return done


def describe(part: StorePart) -> str:
    """What a part of a store is, for messages."""
    kind = "the repository" if isinstance(part, PulledRepository) else "the environment of"
    return f"{kind} {part.archive}"


def shrink_store(store: Store, leases: EntryLeases, max_bytes: int) -> None:
    """Remove the least recently used parts until a store has at most *max_bytes*, and log each."""
    parts = read_parts(store.root)
    for removal in remove_entries(store, leases, choose_removals(parts, now=0.0, keep_bytes=max_bytes)):
        size = removal.entry.size / 1e6
        _log.info("removed %s (%.0f MB) from the store: %s", describe(removal.entry), size, removal.reason)
    left = disk_usage(read_parts(store.root)).total
    if left > max_bytes:
        _log.warning(
            "the store of environments at %s holds %.0f MB, more than the %.0f MB of --env-store-max-bytes: all of it "
            "is in use",
            store.root,
            left / 1e6,
            max_bytes / 1e6,
        )
