"""Digests of the files of a store entry: recorded when it is created, compared by `naiad env verify`.

    <entry>/files.json    digest and mode of each file, target of each link, in the folder `env`

Digests are computed while an archive is unpacked, when the content is in memory anyway. Only files that changed later
(through conda-unpack or compiling) are read again.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from naiad.core import json_cache
from naiad.core.file_digest import file_digest
from naiad.environments.archives.file_writers import UnpackedFile

_NAME = "files.json"
_WRITABLE = 0o222
_FOLDER = "env"
_FORMAT = 1


class FileState(NamedTuple):
    """A file or link as it is on disk now."""

    path: str
    mode: int
    size: int
    mtime_ns: int
    is_folder: bool = False  # whether it is a link to a folder

    def is_unchanged_since(self, unpacked: UnpackedFile) -> bool:
        return (self.size, self.mtime_ns) == (unpacked.size, unpacked.mtime_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChanges:
    """Differences between an entry and its record; paths are relative to its folder `env`."""

    # Files with other content or more permissions, links with another target. Less permission to write is no change: a
    # file is read-only for all entries that share it since the newest of them was created.
    changed: tuple[str, ...]
    missing: tuple[str, ...]
    added: tuple[str, ...]
    files: int

    @property
    def has_changes(self) -> bool:
        return bool(self.changed or self.missing or self.added)


def scan_files(entry: Path) -> dict[str, FileState]:
    """All files and links of an entry by path relative to `env`; links are not followed."""
    found: dict[str, FileState] = {}
    waiting = [(str(entry / _FOLDER), "")]
    while waiting:
        folder, name = waiting.pop()
        with os.scandir(folder) as children:
            for child in children:
                if child.is_dir(follow_symlinks=False):
                    waiting.append((child.path, f"{name}{child.name}/"))
                else:
                    is_folder = child.is_symlink() and child.is_dir()
                    found[name + child.name] = _found(child.path, child.stat(follow_symlinks=False), is_folder)
    return found


def stat_file(path: Path) -> FileState | None:
    """The state of one file, None if it does not exist."""
    try:
        return _found(str(path), path.lstat(), is_folder=False)
    except FileNotFoundError:
        return None


def make_read_only(files: Mapping[str, FileState]) -> dict[str, FileState]:
    """Take the permission to write from all files (by path relative to `env`); returns their states afterwards."""
    found = dict(files)
    for name, state in files.items():
        if stat.S_ISREG(state.mode) and state.mode & _WRITABLE:
            mode = state.mode & ~_WRITABLE
            os.chmod(state.path, stat.S_IMODE(mode))  # noqa: PTH101 - a plain string: called for each of 100,000 files
            found[name] = state._replace(mode=mode)
    return found


def record_files(
    entry: Path, files: Mapping[str, FileState], unpacked: Mapping[str, UnpackedFile]
) -> dict[str, list[str]]:
    """Write the digests of an entry's files to its `files.json`; those of *unpacked* are reused while unchanged."""
    content = {name: _describe(state, unpacked.get(name)) for name, state in files.items()}
    (entry / _NAME).write_text(json.dumps({"format": _FORMAT, "content": content}), encoding="utf-8")
    return content


def read_digests(entry: Path) -> dict[str, list[str]] | None:
    """The properties that `record_files` wrote, by path relative to `env`; None without a record."""
    record = json_cache.read(entry / _NAME)
    if record is None or record.get("format") != _FORMAT or not isinstance(record.get("content"), dict):
        return None
    content: dict[str, list[str]] = record["content"]
    return content


def compare_files(entry: Path) -> FileChanges | None:
    """Read every file of an entry and compare it with the record; None without a record."""
    recorded = read_digests(entry)
    if recorded is None:
        return None
    found = {name: _describe(file, None) for name, file in scan_files(entry).items()}
    return FileChanges(
        changed=tuple(sorted(name for name in recorded.keys() & found.keys() if _differs(recorded[name], found[name]))),
        missing=tuple(sorted(recorded.keys() - found.keys())),
        added=tuple(sorted(found.keys() - recorded.keys())),
        files=len(recorded),
    )


def _found(path: str, facts: os.stat_result, is_folder: bool) -> FileState:  # noqa: FBT001 - private, three calls
    return FileState(path, facts.st_mode, facts.st_size, facts.st_mtime_ns, is_folder)


def _describe(state: FileState, known: UnpackedFile | None) -> list[str]:
    """The compared properties: permissions and digest of a file, target of a link."""
    if stat.S_ISLNK(state.mode):
        return ["link", os.readlink(state.path)]  # noqa: PTH115 - called for each of 100,000 files
    if not stat.S_ISREG(state.mode):
        return ["special", ""]
    digest = known.digest if known is not None and state.is_unchanged_since(known) else file_digest(Path(state.path))
    return [f"{stat.S_IMODE(state.mode):o}", digest]


def _differs(recorded: list[str], found: list[str]) -> bool:
    if recorded == found:
        return False
    if recorded[1] != found[1] or "link" in (recorded[0], found[0]) or "special" in (recorded[0], found[0]):
        return True
    before, now = int(recorded[0], 8), int(found[0], 8)
    return before & ~_WRITABLE != now & ~_WRITABLE or bool(now & ~before)
