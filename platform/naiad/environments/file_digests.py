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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from naiad.environments import jsonfile

__all__ = ["Alterations", "Written", "compare_files", "record_files"]

_NAME = "files.json"
_FOLDER = "env"
_FORMAT = 1
_CHUNK = 1024 * 1024


class Written(NamedTuple):
    """A file as it was unpacked."""

    size: int
    mtime_ns: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Alterations:
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


def record_files(entry: Path, written: Mapping[str, Written]) -> None:
    """Write down the content of an entry that is about to be ready.

    Args:
        entry: Its folder.
        written: What unpacking wrote, by path relative to `env`.

    Raises:
        OSError: If it cannot be read or written.
    """
    content = {name: _fact(path, facts, written.get(name)) for name, path, facts in _walk(entry / _FOLDER)}
    (entry / _NAME).write_text(json.dumps({"format": _FORMAT, "content": content}), encoding="utf-8")


def compare_files(entry: Path) -> Alterations | None:
    """Read every file of an entry and compare; None if nothing was recorded for it.

    Raises:
        OSError: If a file cannot be read.
    """
    record = jsonfile.read(entry / _NAME)
    if record is None or record.get("format") != _FORMAT or not isinstance(record.get("content"), dict):
        return None
    recorded = record["content"]
    found = {name: _fact(path, facts, None) for name, path, facts in _walk(entry / _FOLDER)}
    return Alterations(
        changed=tuple(sorted(name for name in recorded.keys() & found.keys() if recorded[name] != found[name])),
        missing=tuple(sorted(recorded.keys() - found.keys())),
        added=tuple(sorted(found.keys() - recorded.keys())),
        files=len(recorded),
    )


def _fact(path: str, facts: os.stat_result, known: Written | None) -> list[str]:
    """What is compared of a file: its permissions and digest; of a link, its target."""
    if stat.S_ISLNK(facts.st_mode):
        return ["link", os.readlink(path)]  # noqa: PTH115 - called for each of 100,000 files
    if not stat.S_ISREG(facts.st_mode):
        return ["special", ""]
    unchanged = known is not None and (known.size, known.mtime_ns) == (facts.st_size, facts.st_mtime_ns)
    digest = known.digest if known is not None and unchanged else _digest(path)
    return [f"{stat.S_IMODE(facts.st_mode):o}", digest]


def _digest(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123
        while data := file.read(_CHUNK):
            digest.update(data)
    return digest.hexdigest()


def _walk(folder: Path) -> Iterator[tuple[str, str, os.stat_result]]:
    """Everything but folders, links not followed: name relative to the folder, path, facts."""
    root = str(folder)
    for parent, folders, names in os.walk(root):
        links = [name for name in folders if os.path.islink(os.path.join(parent, name))]  # noqa: PTH114, PTH118
        for name in (*names, *links):
            path = os.path.join(parent, name)  # noqa: PTH118
            yield os.path.relpath(path, root), path, os.lstat(path)
