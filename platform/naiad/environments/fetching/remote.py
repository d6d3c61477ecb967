"""Remote archives: their recorded digests, signatures and downloads.

    <root>/remote/*.json      digest of a URI's content at its first use, and its signatures
    <root>/downloads/*.part   a download, possibly incomplete; removed after unpacking

A URI without `@sha256:` is trusted on first use: the digest of its content is recorded, and other content is rejected
until `naiad env prefetch --accept-changed` forgets the record.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from naiad.config.model.environment_source import redact
from naiad.core import json_cache
from naiad.core.errors import ExecutionEnvironmentError
from naiad.core.signatures import SIGNATURE_SUFFIX
from naiad.environments.progress import ProgressReporter
from naiad.environments.store.access import require_readable
from naiad.environments.store.file_locks import CreationLocks

_log = logging.getLogger("naiad.environments")
# Seconds. A running download writes to its file far more often.
_ABANDONED_AFTER = 86_400.0


class RemoteArchives:
    """The records and downloads of remote archives of one store; with *waits*, it waits for other processes."""

    def __init__(self, root: Path, reporter: ProgressReporter, *, waits: bool = True) -> None:
        self._root = root
        self._reporter = reporter
        self._creation_locks = CreationLocks(waits=waits)

    def recorded_digest(self, uri: str) -> str:
        return str(self._known(uri).get("digest", ""))

    def digest_if_unchanged(self, uri: str, version: str) -> str:
        known = self._known(uri)
        return str(known.get("digest", "")) if version and known.get("version") == version else ""

    def recorded_version(self, uri: str) -> str:
        return str(self._known(uri).get("version", ""))

    def downloaded_version(self, uri: str) -> str:
        """The version of what was downloaded and is not deleted yet, as `read_version(or_size=True)` gives it."""
        from naiad.environments.fetching.download import metadata_path, version_or_size

        part = self._part(uri)
        known = json_cache.read(metadata_path(part)) or {}
        return version_or_size(str(known.get("version", "")), part.stat().st_size)

    def record(self, uri: str, digest: str, version: str = "") -> None:
        record = {"uri": redact(uri), "digest": digest, "version": version, "time": time.time()}
        json_cache.write(self._record(uri), record)

    def forget(self, uri: str) -> None:
        self._record(uri).unlink(missing_ok=True)

    def read_signatures_file(self, uri: str) -> bytes | None:
        """The `.sig` file of a URI, None if it does not exist. A copy is kept, so that later starts need no network."""
        copy = self._record(uri).with_suffix(SIGNATURE_SUFFIX)
        try:
            return copy.read_bytes()
        except OSError:
            pass
        from naiad.environments.fetching.download import (
            read_small_file,  # imports HTTP, which most servers do not need
        )

        found = read_small_file(signature_uri(uri))
        if found is not None:
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(found)
        return found

    def forget_signatures(self, uri: str) -> None:
        self._record(uri).with_suffix(SIGNATURE_SUFFIX).unlink(missing_ok=True)

    @contextmanager
    def exclusive(self, uri: str, label: str) -> Iterator[None]:
        """A lock on downloading this URI, across processes; ExecutionEnvironmentError if it cannot be had."""
        subject = redact(uri) + (f" of '{label}'" if label else "")
        locks = ExitStack()
        path = self._part(uri).with_suffix(".lock")
        try:
            locks.enter_context(self._creation_locks.hold(path, subject, "downloading"))
        except OSError as error:
            raise ExecutionEnvironmentError(
                f"cannot download {redact(uri)} into {path.parent}: {error.strerror or error}; choose another folder "
                "for the store of environments or correct its permissions"
            ) from error
        with locks:
            yield

    @contextmanager
    def downloaded(self, uri: str, label: str) -> Iterator[Path]:
        """Download a URI; the file is deleted when the context exits. A failed download is resumed by the next call."""
        from naiad.environments.fetching.download import download, metadata_path

        part = self._part(uri)
        _log.info("downloading the environment %s%s", redact(uri), f" for '{label}'" if label else "")
        download(uri, part, reporter=self._reporter, label=label)
        try:
            yield part
        finally:
            part.unlink(missing_ok=True)
            metadata_path(part).unlink(missing_ok=True)

    def stale_downloads(self) -> list[Path]:
        limit = time.time() - _ABANDONED_AFTER
        parts = (self._root / "downloads").glob("*.part")
        return [part for part in parts if part.stat().st_mtime < limit]

    def _known(self, uri: str) -> dict[str, Any]:
        """The record of a URI, empty before its first use; an error if this user may not read it."""
        known = json_cache.read(self._record(uri))
        if known is None:
            require_readable(self._record(uri), self._root)
        return known or {}

    def _record(self, uri: str) -> Path:
        return self._root / "remote" / json_cache.name_for(uri)

    def _part(self, uri: str) -> Path:
        return (self._root / "downloads" / json_cache.name_for(uri)).with_suffix(".part")


def signature_uri(uri: str) -> str:
    """The URI of an archive's `.sig` file: the suffix goes behind the path and before any query."""
    path, mark, query = uri.partition("?")
    return f"{path}{SIGNATURE_SUFFIX}{mark}{query}"
