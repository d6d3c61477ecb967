"""Which models to load and unload after a poll of the repositories. Pure: snapshots are data, no clock is read.

A change counts once two snapshots in a row show the same state, so that a model that is still being copied is not
loaded half. Signatures are compared for equality, not by age: replacing a file by an older one is a change, too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

# State of a model's files: by path, values that change with the content (time and size, or an object's tag).
Signature = Mapping[str, tuple[object, ...]]

# Signatures of all models at one time, by key; None for a model that could not be read completely.
Snapshot = Mapping[str, "Signature | None"]

_IGNORED_NAMES = frozenset({"__pycache__", "lost+found", "Thumbs.db", "desktop.ini"})
_IGNORED_ENDS = (
    *("~", ".pyc", ".pyo", ".swp", ".swo", ".swx", ".tmp", ".temp", ".bak", ".orig", ".rej", ".lock", ".lck"),
    *(".part", ".partial", ".crdownload", ".filepart"),
)
_VIM_TEST_FILE = "4913"  # Vim creates it to test whether it may write to a directory


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What to do after a poll."""

    load: tuple[str, ...] = ()
    unload: tuple[str, ...] = ()
    unsettled: tuple[str, ...] = ()  # models that differ from the previous snapshot; poll again soon


def plan_changes(loaded: Mapping[str, Signature], before: Snapshot, now: Snapshot) -> Changes:
    """Decide which models to load and unload; *loaded* has the signatures with which loads were tried."""
    load, unload, unsettled = [], [], []
    for name in sorted({*loaded, *now, *before}):
        seen = now.get(name)
        is_settled = (name in now) == (name in before) and seen == before.get(name) and (name in now) != (seen is None)
        if name in now and seen is not None and seen == loaded.get(name):
            continue  # unchanged, even if the previous snapshot differed
        if name not in now and name not in loaded:
            continue  # appeared and vanished before it was loaded
        if not is_settled:
            unsettled.append(name)
        elif name in now:
            load.append(name)
        else:
            unload.append(name)
    return Changes(load=tuple(load), unload=tuple(unload), unsettled=tuple(unsettled))


def changed_entries(before: Signature, now: Signature) -> frozenset[str]:
    """The entries of a model's directory (files and version directories) in which two signatures differ."""
    paths = {path for path in {*before, *now} if before.get(path) != now.get(path)}
    return frozenset(path.partition("/")[0] for path in paths)


def due_retries(failed: Mapping[str, int], poll: int) -> list[str]:
    """The failed models to load again at this poll, although their files are unchanged: the cause may be elsewhere.

    They are retried 1, 2, 4, 8 ... polls after the poll at which they failed first.
    """
    # A power of two has one bit set.
    return sorted(name for name, since in failed.items() if poll > since and (poll - since) & (poll - since - 1) == 0)


def is_ignored(name: str, *, is_directory: bool = False) -> bool:
    """Whether changes of a file or directory of that name are ignored: bytecode, files of editors and tools."""
    if name in _IGNORED_NAMES or name.startswith("."):
        return True
    if is_directory:
        return False
    return name.endswith(_IGNORED_ENDS) or name == _VIM_TEST_FILE or (name.startswith("#") and name.endswith("#"))


def are_versions(entries: Collection[str], signature: Signature) -> bool:
    """Whether all *entries* are version directories: then nothing that other versions use has changed."""
    files = {path for path in signature if "/" not in path}
    return bool(entries) and all(entry.isdecimal() and entry not in files for entry in entries)
