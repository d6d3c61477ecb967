"""Leases on store entries: shared file locks of the processes that use an entry, and a record of its models.

    <root>/uses/<sha256>/lock      locked shared by every server whose models use the entry; its mtime is the last use
    <root>/uses/<sha256>/*.json    one for each model that ever used it

Removing an entry requires the exclusive lock. The lock is flock(2): it works between containers that share the store,
and the kernel releases it when the process ends, even after SIGKILL. The lock file stays when its entry is removed.
Otherwise one process could hold the lock of a deleted file while another locks a new file of the same name.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from naiad.core import json_cache

_log = logging.getLogger("naiad.environments")
_FOLDER = "uses"
_LOCK = "lock"
_LISTED = 3  # how many models a line names: hundreds may share an environment
# Any user who may share the store may take its locks.
_MODE = 0o666


class Lease:
    """Protects one entry from removal until it is released or garbage collected."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def __del__(self) -> None:
        # Environments are passed as values; a load that fails drops its lease without any explicit release.
        self.release()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelUse:
    """The last use of an entry by one model; the source is the environment named in its configuration."""

    model: str
    source: str
    time: float


def list_models(uses: Iterable[ModelUse]) -> str:
    """The models of *uses* for a line of text: all of a few, the first three of many and how many more there are."""
    names = list(dict.fromkeys(use.model for use in uses))
    more = len(names) - _LISTED
    return ", ".join(names) if more <= 1 else f"{', '.join(names[:_LISTED])} and {more} more"


class EntryLeases:
    """The leases of all entries of one store."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def acquire(self, digest: str, *, counts: bool = True) -> Lease:
        """Take a lease on an entry, which need not exist yet; blocks while a removal of it is in progress.

        In a read-only store the lease is empty: nothing can be removed from it here either. With *counts*, this is the
        time of its last use.
        """
        descriptor = self._open(digest)
        if descriptor is None:
            return Lease(None)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        except OSError as error:
            # Some network file systems do not support locks.
            _log.debug("cannot lock %s: %s", self._lock(digest), error)
            os.close(descriptor)
            return Lease(None)
        if counts:
            with contextlib.suppress(OSError):
                os.utime(descriptor)
        return Lease(descriptor)

    @contextmanager
    def exclusive(self, digest: str) -> Iterator[bool]:
        """Try to lock an entry exclusively: True if no process has a lease.

        While it is locked, `acquire` blocks.
        """
        descriptor = self._open(digest)
        if descriptor is None:
            yield False
            return
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield True
        finally:
            os.close(descriptor)

    def is_leased(self, digest: str) -> bool:
        if not os.path.lexists(self._lock(digest)):
            return False
        with self.exclusive(digest) as is_alone:
            return not is_alone

    def last_used(self, digest: str) -> float | None:
        try:
            return self._lock(digest).stat().st_mtime
        except OSError:
            return None

    def record_model(self, digest: str, model: str, source: str) -> None:
        """Record that a model uses an entry. Not flushed to disk: it is informational, and written at every load."""
        path = self._folder(digest) / json_cache.name_for(model)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        content = json.dumps({"model": model, "source": source, "time": time.time()})
        try:
            temporary.write_text(content, encoding="utf-8")
            temporary.replace(path)
        except OSError as error:
            _log.debug("cannot record that '%s' uses %s: %s", model, digest, error)

    def models(self, digest: str) -> list[ModelUse]:
        found = []
        for path in sorted(self._folder(digest).glob("*.json")):
            record = json_cache.read(path) or {}
            with contextlib.suppress(KeyError, TypeError, ValueError):
                found.append(
                    ModelUse(model=str(record["model"]), source=str(record["source"]), time=float(record["time"]))
                )
        return sorted(found, key=lambda use: use.model)

    def forget_models(self, digest: str) -> None:
        for path in self._folder(digest).glob("*.json"):
            path.unlink(missing_ok=True)

    def _folder(self, digest: str) -> Path:
        return self._root / _FOLDER / digest

    def _lock(self, digest: str) -> Path:
        return self._folder(digest) / _LOCK

    def _open(self, digest: str) -> int | None:
        """A new descriptor for each lease, because a flock(2) lock belongs to the open file description."""
        path = self._lock(digest)
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
        for flags in (os.O_RDWR | os.O_CREAT, os.O_RDONLY):
            with contextlib.suppress(OSError):
                return os.open(path, flags | os.O_CLOEXEC, _MODE)
        return None
