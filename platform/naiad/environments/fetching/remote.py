"""Archives that lie elsewhere: what their content must be, and bringing it here.

    <root>/remote/*.json      what a URI's content was when it was used first, and its signatures
    <root>/downloads/*.part   a download, complete or not; removed once it is unpacked

A URI is trusted on first use: what it named then is what it names until somebody says otherwise, also if the file there
changes. Whoever writes the digest behind it needs no such trust.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from naiad import json_cache
from naiad.config.model.environment_source import shown
from naiad.environments.archives.signatures import SIGNATURE_SUFFIX
from naiad.environments.progress import ProgressReporter
from naiad.errors import ExecutionEnvironmentError

__all__ = ["RemoteArchives"]

_log = logging.getLogger("naiad.environments")
# Whoever is still downloading writes more often than this.
_ABANDONED_AFTER = 86_400.0


class RemoteArchives:
    """What one store knows of archives elsewhere.

    Args:
        root: The store's folder.
        reporter: Whoever shows progress.
    """

    def __init__(self, root: Path, reporter: ProgressReporter) -> None:
        self._root = root
        self._reporter = reporter

    def recorded_digest(self, uri: str) -> str:
        """The digest that a URI's content had when it was used first, empty if it never was."""
        return str((json_cache.read(self._record(uri)) or {}).get("digest", ""))

    def digest_if_unchanged(self, uri: str, version: str) -> str:
        """The digest that the content of a URI has if it is still in the state in which it was recorded, else empty."""
        known = json_cache.read(self._record(uri)) or {}
        return str(known.get("digest", "")) if version and known.get("version") == version else ""

    def record(self, uri: str, digest: str, version: str = "") -> None:
        """Remember what a URI names from now on, or names in one state.

        Raises:
            OSError: If it cannot be written.
        """
        said = {"uri": shown(uri), "digest": digest, "version": version, "time": time.time()}
        json_cache.write(self._record(uri), said)

    def forget(self, uri: str) -> None:
        """Let a URI name something else the next time."""
        self._record(uri).unlink(missing_ok=True)

    def read_signatures_file(self, uri: str) -> bytes | None:
        """What the file of signatures beside an archive holds, kept here so that a second start needs no network.

        Raises:
            ExecutionEnvironmentError: If it cannot be read.
        """
        kept = self._record(uri).with_suffix(SIGNATURE_SUFFIX)
        try:
            return kept.read_bytes()
        except OSError:
            pass
        from naiad.environments.fetching.download import (
            read_small_file,  # HTTP, which most servers do not need for this
        )

        found = read_small_file(signature_uri(uri))
        if found is not None:
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_bytes(found)
        return found

    def forget_signatures(self, uri: str) -> None:
        """Look for the signatures again the next time."""
        self._record(uri).with_suffix(SIGNATURE_SUFFIX).unlink(missing_ok=True)

    @contextmanager
    def exclusive(self, uri: str, label: str) -> Iterator[None]:
        """Nobody else brings this URI's content meanwhile, in any process."""
        path = self._part(uri).with_suffix(".lock")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            from filelock import FileLock  # here, as a start with what is there already needs none

            lock = FileLock(path, thread_local=False)
            try:
                lock.acquire(timeout=0)
            except TimeoutError:
                _log.info(
                    "waiting for %s%s: it is being downloaded already", shown(uri), f" of '{label}'" if label else ""
                )
                lock.acquire()
        except OSError as error:
            raise ExecutionEnvironmentError(
                f"cannot download {shown(uri)} into {path.parent}: {error.strerror or error}; choose another folder "
                "for the store of environments or mend its permissions"
            ) from error
        try:
            yield
        finally:
            lock.release()

    @contextmanager
    def downloaded(self, uri: str, label: str) -> Iterator[Path]:
        """The archive, here while the context lasts if all goes well; a download that fails is gone on with later."""
        from naiad.environments.fetching.download import download, metadata_path

        part = self._part(uri)
        _log.info("downloading the environment %s%s", shown(uri), f" for '{label}'" if label else "")
        download(uri, part, reporter=self._reporter, label=label)
        try:
            yield part
        finally:
            part.unlink(missing_ok=True)
            metadata_path(part).unlink(missing_ok=True)

    def stale_downloads(self) -> list[Path]:
        """Parts of downloads with which nobody went on for a day."""
        limit = time.time() - _ABANDONED_AFTER
        parts = (self._root / "downloads").glob("*.part")
        return [part for part in parts if part.stat().st_mtime < limit]

    def _record(self, uri: str) -> Path:
        return self._root / "remote" / json_cache.name_for(uri)

    def _part(self, uri: str) -> Path:
        return (self._root / "downloads" / json_cache.name_for(uri)).with_suffix(".part")


def signature_uri(uri: str) -> str:
    """Where the signatures of an archive elsewhere are: the query of a signed link stays behind the path."""
    path, mark, query = uri.partition("?")
    return f"{path}{SIGNATURE_SUFFIX}{mark}{query}"
