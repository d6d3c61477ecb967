"""From an archive, here or elsewhere, to its entry in the store: admitted, unpacked once, and kept while in use."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

from naiad.config.model.environment_source import EnvironmentSource, shown
from naiad.environments.archives.signatures import read_signatures
from naiad.environments.fetching.remote import RemoteArchives, signature_uri
from naiad.environments.policy import StorePolicy
from naiad.environments.progress import ProgressReporter
from naiad.environments.store.archive_digest import ArchiveIdentity
from naiad.environments.store.eviction import shrink_store
from naiad.environments.store.leases import EntryLeases, Lease
from naiad.environments.store.record import ReadyEntry
from naiad.environments.store.store import Store
from naiad.errors import ExecutionEnvironmentError

__all__ = ["EntryProvider"]

_log = logging.getLogger("naiad.environments")


class EntryProvider:
    """The archives of one server; every method may be called from any thread.

    Args:
        root: The store's folder.
        policy: What is allowed.
        reporter: Whoever shows progress.
    """

    def __init__(self, root: Path, policy: StorePolicy, reporter: ProgressReporter) -> None:
        self._store = Store(root, reporter)
        self._leases = EntryLeases(root)
        self._remote = RemoteArchives(root, reporter)
        self._policy = policy
        self._sweep_once = threading.Lock()
        self._swept = False

    def acquire_local(self, path: Path, *, digest: str = "", label: str = "") -> tuple[ReadyEntry, Lease]:
        """The entry of an archive on this machine, and what keeps it from being removed.

        Args:
            path: The archive.
            digest: SHA-256 it must have, empty for any.
            label: The model it is for.

        Raises:
            ExecutionEnvironmentError: If it must not or cannot be used.
        """
        self.remove_leftovers()
        content = self._store.identify(path, label)
        if digest and content.digest != digest:
            raise ExecutionEnvironmentError(
                f"the execution environment {path} is not the one that is asked for: its SHA-256 is {content.digest}, "
                f"pinned is {digest}; bring the archive that was pinned, or pin the one that is there"
            )
        if self._policy.trust is not None:
            self._policy.trust.verify_local_archive(path, content.digest)
        return self._take(path, content, str(path), label)

    def acquire_remote(self, named: EnvironmentSource, label: str = "") -> tuple[ReadyEntry, Lease]:
        """The same for an archive elsewhere; without network if what it names is in the store already.

        Raises:
            ExecutionEnvironmentError: If it must not or cannot be used, or brought here.
        """
        self.remove_leftovers()
        version = self._look_again(named)
        found = self._held(self._expected(named, version), named.uri, label)
        if found is not None:
            return found
        with self._remote.exclusive(named.uri, label):
            # Whoever was here before may have brought it.
            expected = self._expected(named, version)
            return self._held(expected, named.uri, label) or self._bring(named, expected, version, label)

    def _look_again(self, named: EnvironmentSource) -> str:
        """What is there now of something that may change, empty for what may not or where nothing tells."""
        if not named.follows or named.digest:
            return ""
        if self._policy.trust is not None:
            self._remote.forget_signatures(named.uri)
            return ""
        from naiad.environments.fetching.download import read_version  # HTTP, which most servers do not need for this

        return read_version(named.uri)

    def _expected(self, named: EnvironmentSource, version: str) -> str:
        """The digest that the content of a URI must have, empty if nobody has said or seen it."""
        uri, trust = named.uri, self._policy.trust
        if trust is not None:
            where = f"the execution environment {shown(uri)}"
            found = read_signatures(self._remote.read_signatures_file(uri), where, shown(signature_uri(uri)))
            try:
                trust.check(found, named.digest or found.digest, where)
            except ExecutionEnvironmentError:
                self._remote.forget_signatures(uri)  # it may have been replaced by a better one
                raise
            return found.digest
        if named.follows and not named.digest:
            return self._remote.digest_if_unchanged(uri, version)
        expected = named.digest or self._remote.recorded_digest(uri)
        if not expected and self._policy.require_digest:
            raise ExecutionEnvironmentError(
                f"the execution environment {shown(uri)} is refused: it is named without a digest, and this server "
                "needs one (--env-require-digest); write @sha256: and its digest behind it, as `sha256sum` prints it"
            )
        return expected

    def _held(self, digest: str, uri: str, label: str) -> tuple[ReadyEntry, Lease] | None:
        """The entry of that digest if it is there, and what keeps it there."""
        if not digest:
            return None
        lease = self._leases.acquire(digest)
        stored = self._store.get(digest)
        if stored is None:
            lease.release()
            return None
        if label:
            self._leases.record_model(digest, label, shown(uri))
        return stored, lease

    def _bring(self, named: EnvironmentSource, expected: str, version: str, label: str) -> tuple[ReadyEntry, Lease]:
        uri = named.uri
        with self._remote.downloaded(uri, label) as archive:
            content = self._store.identify(archive, label)
            if expected and content.digest != expected:
                raise ExecutionEnvironmentError(
                    f"the execution environment {shown(uri)} is refused: its SHA-256 is {content.digest}, expected is "
                    f"{expected}, which is what the model pins, its signers signed, or this URI named when it was used "
                    "first; find out who changed it; if that is as it should be, pin the new digest, or run `naiad env "
                    f"prefetch --accept-changed {shown(uri)}`"
                )
            found = self._take(archive, content, shown(uri), label)
        if not expected:
            self._remote.record(uri, content.digest, version)
        if not expected and not named.follows:
            _log.warning(
                "the execution environment %s was named without a digest; from now on it must be what it is now; to "
                "say so in the model, too, name it %s@sha256:%s",
                *(shown(uri), shown(uri), content.digest),
            )
        return found

    def accept(self, uri: str) -> None:
        """Let a URI name something else than when it was used first."""
        self._remote.forget(uri)
        self._remote.forget_signatures(uri)

    def remove_leftovers(self) -> None:
        """Clean up after crashes once, before the first archive; a server without archives touches no store."""
        with self._sweep_once:
            if not self._swept:
                self._store.remove_leftovers()
                self._swept = True

    def _take(self, archive: Path, content: ArchiveIdentity, origin: str, label: str) -> tuple[ReadyEntry, Lease]:
        # Held before it is looked for: between the two, nobody can remove it.
        lease = self._leases.acquire(content.digest)
        try:
            is_new = self._store.get(content.digest) is None
            stored = self._store.get_or_unpack(archive, content, origin=origin, label=label)
        except BaseException:
            lease.release()
            raise
        if label:
            self._leases.record_model(content.digest, label, origin)
        if is_new and self._policy.max_bytes:
            shrink_store(self._store, self._leases, self._policy.max_bytes)
        return stored, lease
