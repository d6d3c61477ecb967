"""Which models a polled repository wants loaded and unloaded. Pure: what was seen is data, and nobody looks at a clock.

A change counts once it was seen alike in two looks: what is being copied right now is not loaded half. What a model was
last loaded from is compared by difference, not by age: an older file put in the place of a newer one is a change, too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

__all__ = ["Changes", "Look", "Signature", "all_versions", "changed_parts", "changes", "due", "is_ignored"]

Signature = Mapping[str, tuple[object, ...]]
"""What tells one state of a model's files from another: by path, whatever changes with the content."""

Look = Mapping[str, "Signature | None"]
"""What was seen of all models at one time; None for one that could not be read to its end."""

_IGNORED_NAMES = frozenset({"__pycache__", "lost+found", "Thumbs.db", "desktop.ini"})
_IGNORED_ENDS = (
    *("~", ".pyc", ".pyo", ".swp", ".swo", ".swx", ".tmp", ".temp", ".bak", ".orig", ".rej", ".lock", ".lck"),
    *(".part", ".partial", ".crdownload", ".filepart"),
)
_VIM_TEST_FILE = "4913"


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What is to be done about a repository.

    Attributes:
        load: Models to load or reload, by name.
        unload: Models to unload.
        unsettled: Models that changed and may go on changing: look again soon.
    """

    load: tuple[str, ...] = ()
    unload: tuple[str, ...] = ()
    unsettled: tuple[str, ...] = ()


def changes(loaded: Mapping[str, Signature], before: Look, now: Look) -> Changes:
    """Decide what to do.

    Args:
        loaded: What each model was last loaded from, or tried to.
        before: The look before.
        now: This look.
    """
    load, unload, unsettled = [], [], []
    for name in sorted({*loaded, *now, *before}):
        seen = now.get(name)
        is_settled = (name in now) == (name in before) and seen == before.get(name) and (name in now) != (seen is None)
        if name in now and seen is not None and seen == loaded.get(name):
            continue  # also when it was another one in between
        if name not in now and name not in loaded:
            continue  # came and went
        if not is_settled:
            unsettled.append(name)
        elif name in now:
            load.append(name)
        else:
            unload.append(name)
    return Changes(load=tuple(load), unload=tuple(unload), unsettled=tuple(unsettled))


def changed_parts(before: Signature, now: Signature) -> frozenset[str]:
    """What differs between two states of a model: names of files and folders right in its folder."""
    paths = {path for path in {*before, *now} if before.get(path) != now.get(path)}
    return frozenset(path.partition("/")[0] for path in paths)


def due(failed: Mapping[str, int], look: int) -> list[str]:
    """The models to try again at a regular look, with pauses that double: a cause may lie outside of their files.

    Args:
        failed: The number of the look at which each failed first.
        look: The number of this look.
    """
    # Powers of two have one bit set.
    return sorted(name for name, since in failed.items() if look > since and (look - since) & (look - since - 1) == 0)


def is_ignored(name: str, *, is_directory: bool = False) -> bool:
    """Whether a file or folder of that name says nothing about a model: bytecode, what editors and tools leave."""
    if name in _IGNORED_NAMES or name.startswith("."):
        return True
    if is_directory:
        return False
    return name.endswith(_IGNORED_ENDS) or name == _VIM_TEST_FILE or (name.startswith("#") and name.endswith("#"))


def all_versions(parts: Collection[str], signature: Signature) -> bool:
    """Whether *parts* are folders with a number, each: then nothing that other versions use has changed."""
    files = {path for path in signature if "/" not in path}
    return bool(parts) and all(part.isdecimal() and part not in files for part in parts)
