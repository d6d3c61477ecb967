"""SHA-256 digests of archives, cached until the file changes.

The cache is a folder with one JSON file for each path. An entry is valid while device, inode, size, mtime and ctime of
the file are unchanged.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
from dataclasses import dataclass
from pathlib import Path

from naiad.core import json_cache
from naiad.core.errors import ExecutionEnvironmentError
from naiad.environments.progress import ProgressMeter, ProgressReporter

_log = logging.getLogger("naiad.environments")
_CHUNK = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ArchiveIdentity:
    """The SHA-256 of a file, and the state of the file that has it."""

    digest: str
    fingerprint: list[int]


def fingerprint(path: Path) -> list[int]:
    """Values that change when a file is written or replaced.

    Times are in nanoseconds, because two builds fit into one second. ctime is included because, unlike mtime, a program
    cannot set it back.
    """
    try:
        facts = path.stat()
    except OSError as error:
        raise ExecutionEnvironmentError(
            f"cannot read the execution environment {path}: {error.strerror or error}"
        ) from error
    return [facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns]


def digest_of(path: Path, index: Path, *, reporter: ProgressReporter, label: str = "") -> str:
    """The SHA-256 of a file, cached; see `identify_archive`."""
    return identify_archive(path, index, reporter=reporter, label=label).digest


def identify_archive(path: Path, index: Path, *, reporter: ProgressReporter, label: str = "") -> ArchiveIdentity:
    """The SHA-256 of a file and the state that has it; reads the file only if the cache *index* does not know it."""
    before = fingerprint(path)
    file = index / json_cache.name_for(str(path))
    known = json_cache.read(file)
    if known is not None and known.get("fingerprint") == before and isinstance(known.get("digest"), str):
        return ArchiveIdentity(str(known["digest"]), before)
    digest = _compute(path, ProgressMeter(reporter, step="reading", label=label, path=path, total=before[2]))
    if fingerprint(path) != before:
        raise ExecutionEnvironmentError(
            f"the execution environment {path} changed while it was read; put archives in place with a rename "
            "(`mv`) from beside them, then load the model again"
        )
    try:
        json_cache.write(file, {"path": os.fspath(path), "fingerprint": before, "digest": digest})
    except OSError as error:
        _log.debug("cannot cache the digest of %s: %s", path, error)
    return ArchiveIdentity(digest, before)


def _compute(path: Path, meter: ProgressMeter) -> str:
    digest = hashlib.sha256()
    try:
        with meter, path.open("rb", buffering=0) as file:
            # One reused buffer: the kernel would have to map and clear fresh memory for every new one.
            buffer = memoryview(bytearray(_CHUNK))
            while count := file.readinto(buffer):
                digest.update(buffer[:count])
                meter.advance(count)
    except OSError as error:
        # conda-pack creates archives with mode 0600, so a server of another user cannot read them.
        advice = (
            "; conda-pack lets only its own user read what it packs: chmod it" if error.errno == errno.EACCES else ""
        )
        raise ExecutionEnvironmentError(
            f"cannot read the execution environment {path}: {error.strerror or error}{advice}"
        ) from error
    return digest.hexdigest()
