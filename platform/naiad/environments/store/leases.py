"""Who uses which entry of the store: locks that the kernel drops with their holder, and notes for people.

    <root>/uses/<sha256>/lock      held shared by every server whose models use the entry; its mtime is the last use
    <root>/uses/<sha256>/*.json    one for each model that ever did

Whoever removes an entry needs the lock for itself, so nothing is removed that any process of any container on this
machine uses, and a server that was killed holds nothing. The lock file stays when its entry goes: two processes could
otherwise hold "the" lock on two files of one name.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from naiad import json_cache

__all__ = ["EntryLeases", "Lease", "ModelUse"]

_log = logging.getLogger("naiad.environments")
_FOLDER = "uses"
_LOCK = "lock"
# Everybody who may share the store may hold its locks.
_MODE = 0o666


class Lease:
    """Keeps one entry from being removed until it is released, or nobody refers to it any more."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        """Use the entry no longer; a second time does nothing."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def __del__(self) -> None:
        # Environments are passed around as values, and a load that fails drops its own wherever it got to.
        self.release()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelUse:
    """A model that used an entry.

    Attributes:
        model: Its name.
        source: What it named as its environment.
        time: When it was loaded last, in seconds since the epoch.
    """

    model: str
    source: str
    time: float


class EntryLeases:
    """The uses of the entries below one store."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def hold(self, digest: str, *, counts: bool = True) -> Lease:
        """Keep an entry from being removed; waits for the moment that a removal in progress takes.

        In a store that cannot be written to, nothing can be removed from here either, and the lease is empty.

        Args:
            digest: The entry, which need not be there yet.
            counts: Whether this is a use to be remembered.
        """
        descriptor = self._open(digest)
        if descriptor is None:
            return Lease(None)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        except OSError as error:
            # Some network file systems have no locks at all.
            _log.debug("cannot lock %s: %s", self._lock(digest), error)
            os.close(descriptor)
            return Lease(None)
        if counts:
            with contextlib.suppress(OSError):
                os.utime(descriptor)
        return Lease(descriptor)

    @contextmanager
    def alone(self, digest: str) -> Iterator[bool]:
        """Whether nobody uses an entry; if so, nobody begins to until the context ends."""
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

    def is_used(self, digest: str) -> bool:
        """Whether any process uses an entry now."""
        if not self._lock(digest).exists():
            return False
        with self.alone(digest) as is_alone:
            return not is_alone

    def last(self, digest: str) -> float | None:
        """When an entry was last asked for, in seconds since the epoch; None if never."""
        try:
            return self._lock(digest).stat().st_mtime
        except OSError:
            return None

    def note(self, digest: str, model: str, source: str) -> None:
        """Remember that a model uses an entry. Not flushed to the disk: this is for people, and paid at every load."""
        path = self._folder(digest) / json_cache.name_for(model)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        content = json.dumps({"model": model, "source": source, "time": time.time()})
        try:
            temporary.write_text(content, encoding="utf-8")
            temporary.replace(path)
        except OSError as error:
            _log.debug("cannot note that '%s' uses %s: %s", model, digest, error)

    def models(self, digest: str) -> list[ModelUse]:
        """The models that used an entry, by name."""
        found = []
        for path in sorted(self._folder(digest).glob("*.json")):
            said = json_cache.read(path) or {}
            with contextlib.suppress(KeyError, TypeError, ValueError):
                found.append(ModelUse(model=str(said["model"]), source=str(said["source"]), time=float(said["time"])))
        return sorted(found, key=lambda using: using.model)

    def forget(self, digest: str) -> None:
        """Drop the notes about an entry that is gone; the lock stays."""
        for path in self._folder(digest).glob("*.json"):
            path.unlink(missing_ok=True)

    def _folder(self, digest: str) -> Path:
        return self._root / _FOLDER / digest

    def _lock(self, digest: str) -> Path:
        return self._folder(digest) / _LOCK

    def _open(self, digest: str) -> int | None:
        """A descriptor of its own for each use: that is what a lock of flock(2) belongs to."""
        path = self._lock(digest)
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
        for flags in (os.O_RDWR | os.O_CREAT, os.O_RDONLY):
            with contextlib.suppress(OSError):
                return os.open(path, flags | os.O_CLOEXEC, _MODE)
        return None
