"""What parts of a store take on the disk together: files that several share by hard links count once."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

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
