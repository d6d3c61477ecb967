"""Content digests of archives, read once per content: remembered by path, size, mtime and inode."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
from dataclasses import dataclass
from pathlib import Path

from naiad import json_cache
from naiad.environments.progress import ProgressMeter, ProgressReporter
from naiad.errors import ExecutionEnvironmentError

_log = logging.getLogger("naiad.environments")
_CHUNK = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Content:
    """What a file held.

    Attributes:
        digest: Its SHA-256, as hexadecimal digits.
        fingerprint: The state of the file that had it.
    """

    digest: str
    fingerprint: list[int]


def fingerprint(path: Path) -> list[int]:
    """What changes when a file is written or replaced. Nanoseconds, because two builds fit into one second.

    The time of the last change of the inode is part of it, as nobody can set that back.

    Raises:
        ExecutionEnvironmentError: If the file is not there.
    """
    try:
        facts = path.stat()
    except OSError as error:
        raise ExecutionEnvironmentError(
            f"cannot read the execution environment {path}: {error.strerror or error}"
        ) from error
    return [facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns]


def digest_of(path: Path, index: Path, *, reporter: ProgressReporter, label: str = "") -> str:
    """The SHA-256 of a file; see `content_of`."""
    return content_of(path, index, reporter=reporter, label=label).digest


def content_of(path: Path, index: Path, *, reporter: ProgressReporter, label: str = "") -> Content:
    """The SHA-256 of a file, and which state of it that is; read only if *index* does not know this state.

    Raises:
        ExecutionEnvironmentError: If it cannot be read, or changes while it is read.
    """
    before = fingerprint(path)
    file = index / json_cache.name_for(str(path))
    known = json_cache.read(file)
    if known is not None and known.get("fingerprint") == before and isinstance(known.get("digest"), str):
        return Content(str(known["digest"]), before)
    digest = _read(path, ProgressMeter(reporter, step="reading", label=label, path=path, total=before[2]))
    if fingerprint(path) != before:
        raise ExecutionEnvironmentError(
            f"the execution environment {path} changed while it was read; put archives in place with a rename "
            "(`mv`) from beside them, then load the model again"
        )
    try:
        json_cache.write(file, {"path": os.fspath(path), "fingerprint": before, "digest": digest})
    except OSError as error:
        _log.debug("cannot remember the digest of %s: %s", path, error)
    return Content(digest, before)


def _read(path: Path, meter: ProgressMeter) -> str:
    digest = hashlib.sha256()
    try:
        with meter, path.open("rb", buffering=0) as file:
            # One buffer for all of it: a new one for each part would have its memory mapped and cleared first.
            buffer = memoryview(bytearray(_CHUNK))
            while count := file.readinto(buffer):
                digest.update(buffer[:count])
                meter.advance(count)
    except OSError as error:
        # conda-pack makes its archives 0600: a server under another user's name meets this at once.
        cure = "; conda-pack lets only its own user read what it packs: chmod it" if error.errno == errno.EACCES else ""
        raise ExecutionEnvironmentError(
            f"cannot read the execution environment {path}: {error.strerror or error}{cure}"
        ) from error
    return digest.hexdigest()
