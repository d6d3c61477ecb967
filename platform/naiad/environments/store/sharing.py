"""Sharing equal files between the entries of a store, by hard links.

Two environments usually have most files in common. When an entry is complete but for its record, each file that another
entry has under the same path, with the same digest, permissions and modification time, is replaced by a hard link to
it. The modification time belongs to it, because bytecode refers to that of its source. Files of a complete entry are
read-only, so no entry can be changed through another, except by a process of root; removing an entry leaves the other
links.

A replacement is one `link` and one `rename`, so a file is the old one or the link, wherever the process is killed.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from naiad.environments.store.file_digests import FileState, read_digests
from naiad.environments.store.file_locks import exclusive_lock
from naiad.environments.store.record import RECORD_NAME, has_record

_log = logging.getLogger("naiad.environments")
# Below, the directory entry costs as much as the file; most of these are empty `__init__.py`.
_SMALLEST = 1
_UNFINISHED = ".naiad-shared"
_LOCK = "locks/sharing.lock"


@contextmanager
def sharing_lock(root: Path) -> Iterator[None]:
    """The lock under which entries of a store share files and become complete; the kernel frees it after a crash."""
    with exclusive_lock(root / _LOCK):
        yield


def share_files(entry: Path, files: Mapping[str, FileState], digests: Mapping[str, list[str]]) -> int:
    """Replace files of an entry by hard links to equal files of complete entries; returns the bytes saved.

    Where that is impossible, as on file systems without hard links, files stay as they are.
    """
    waiting = {name: file for name, file in files.items() if file.size >= _SMALLEST and len(digests[name][1]) == 64}  # noqa: PLR2004 - a SHA-256
    saved = 0
    for other in _complete_entries(entry):
        known = read_digests(other) or {}
        for name in [name for name in waiting if known.get(name) == digests[name]]:
            linked = _link(other / "env" / name, waiting[name])
            if linked is None:
                return saved
            if linked:
                saved += waiting.pop(name).size
    if saved:
        _log.debug("%s shares %.0f MB with other environments of the store", entry, saved / 1e6)
    return saved


def _complete_entries(entry: Path) -> list[Path]:
    """The other complete entries, the most recent first: it is most likely to be similar."""
    others = [path for path in entry.parent.iterdir() if path != entry and has_record(path)]
    return sorted(others, key=_time_of, reverse=True)


def _time_of(entry: Path) -> float:
    try:
        return (entry / RECORD_NAME).stat().st_mtime
    except OSError:
        return 0.0  # removed just now, or of another user


def _link(source: Path, target: FileState) -> bool | None:
    """Replace a file by a link; False if the other file is not equal or has too many links, None if links fail."""
    unfinished = target.path + _UNFINISHED
    try:
        facts = source.lstat()
        if (facts.st_mtime_ns, facts.st_size, facts.st_mode) != (target.mtime_ns, target.size, target.mode):
            return False
        os.link(source, unfinished)
    except (FileNotFoundError, FileExistsError):
        return False
    except OSError as error:
        _log.debug("cannot share %s: %s", source, error)
        # EMLINK is about one file; everything else is about the file system.
        return False if error.errno == errno.EMLINK else None
    os.replace(unfinished, target.path)  # noqa: PTH105 - plain strings, called for each of 10,000 files
    return True
