"""Which files an entry of the store consists of, recorded when it was made and compared when somebody asks.

    <entry>/files.json    digest and mode of each file, target of each link, of the folder `env`

Digests are taken while an archive is unpacked, when the content is in memory anyway; only what was changed after that
(by conda-unpack, by compiling) is read once more.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from naiad import json_cache

__all__ = [
    "HEAD_BYTES",
    "FileChanges",
    "FileState",
    "UnpackedFile",
    "compare_files",
    "record_files",
    "scan_files",
    "stat_file",
]

_NAME = "files.json"
_FOLDER = "env"
_FORMAT = 1
_CHUNK = 1024 * 1024


HEAD_BYTES = 16
"""How much of a file of bytecode says what it was compiled from (PEP 552)."""


class UnpackedFile(NamedTuple):
    """A file as it was unpacked.

    Attributes:
        size: Its bytes.
        mtime_ns: Its time.
        digest: Its SHA-256.
        head: What bytecode begins with, empty for anything else.
    """

    size: int
    mtime_ns: int
    digest: str
    head: bytes = b""


class FileState(NamedTuple):
    """A file or link as it is now.

    Attributes:
        path: Where.
        mode: Its kind and permissions.
        size: Its bytes.
        mtime_ns: Its time.
        is_folder: Whether it is a link to a folder.
    """

    path: str
    mode: int
    size: int
    mtime_ns: int
    is_folder: bool = False

    def is_unchanged_since(self, written: UnpackedFile) -> bool:
        """Whether nobody has written it since it was unpacked."""
        return (self.size, self.mtime_ns) == (written.size, written.mtime_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChanges:
    """How an entry differs from what was recorded; paths are relative to its folder `env`.

    Attributes:
        changed: Other content, permissions or target of a link.
        missing: No longer there.
        added: Not there before.
        files: How many files and links were compared.
    """

    changed: tuple[str, ...]
    missing: tuple[str, ...]
    added: tuple[str, ...]
    files: int

    @property
    def any(self) -> bool:
        """Whether there are any."""
        return bool(self.changed or self.missing or self.added)


def scan_files(entry: Path) -> dict[str, FileState]:
    """Everything in an entry but folders, links not followed, by path relative to `env`.

    Raises:
        OSError: If a folder cannot be read.
    """
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
    """One of them, None if it is not there."""
    try:
        return _found(str(path), path.lstat(), is_folder=False)
    except FileNotFoundError:
        return None


def record_files(entry: Path, files: Mapping[str, FileState], written: Mapping[str, UnpackedFile]) -> None:
    """Write down the content of an entry that is about to be ready.

    Args:
        entry: Its folder.
        files: What is in it.
        written: What unpacking wrote, by path relative to `env`.

    Raises:
        OSError: If it cannot be read or written.
    """
    content = {name: _fact(found, written.get(name)) for name, found in files.items()}
    (entry / _NAME).write_text(json.dumps({"format": _FORMAT, "content": content}), encoding="utf-8")


def compare_files(entry: Path) -> FileChanges | None:
    """Read every file of an entry and compare; None if nothing was recorded for it.

    Raises:
        OSError: If a file cannot be read.
    """
    record = json_cache.read(entry / _NAME)
    if record is None or record.get("format") != _FORMAT or not isinstance(record.get("content"), dict):
        return None
    recorded = record["content"]
    found = {name: _fact(file, None) for name, file in scan_files(entry).items()}
    return FileChanges(
        changed=tuple(sorted(name for name in recorded.keys() & found.keys() if recorded[name] != found[name])),
        missing=tuple(sorted(recorded.keys() - found.keys())),
        added=tuple(sorted(found.keys() - recorded.keys())),
        files=len(recorded),
    )


def _found(path: str, facts: os.stat_result, is_folder: bool) -> FileState:  # noqa: FBT001
    return FileState(path, facts.st_mode, facts.st_size, facts.st_mtime_ns, is_folder)


def _fact(found: FileState, known: UnpackedFile | None) -> list[str]:
    """What is compared of a file: its permissions and digest; of a link, its target."""
    if stat.S_ISLNK(found.mode):
        return ["link", os.readlink(found.path)]  # noqa: PTH115 - called for each of 100,000 files
    if not stat.S_ISREG(found.mode):
        return ["special", ""]
    digest = known.digest if known is not None and found.is_unchanged_since(known) else _digest(found.path)
    return [f"{stat.S_IMODE(found.mode):o}", digest]


def _digest(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123
        while data := file.read(_CHUNK):
            digest.update(data)
    return digest.hexdigest()
