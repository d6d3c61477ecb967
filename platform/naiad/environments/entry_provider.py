"""Store entries for archives: checks the operator's policy, downloads and unpacks when needed, and takes a lease.

A local archive is identified by its SHA-256. For a URI the expected digest is known before any download:

- with `--env-trust`, from its signatures;
- from a pin `@sha256:` in the model's configuration;
- otherwise from the first use of the URI (trust on first use), unless `--env-require-digest` forbids that.

If the store has the entry of the expected digest, no network is used.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path

from naiad.config.model.environment_source import EnvironmentSource, redact
from naiad.core.errors import ExecutionEnvironmentError
from naiad.core.signatures import read_signatures
from naiad.environments.fetching.remote import RemoteArchives, signature_uri
from naiad.environments.policy import StorePolicy
from naiad.environments.progress import ProgressReporter
from naiad.environments.store.archive_digest import ArchiveIdentity
from naiad.environments.store.eviction import shrink_store
from naiad.environments.store.leases import EntryLeases, Lease
from naiad.environments.store.record import ReadyEntry
from naiad.environments.store.store import Store

_log = logging.getLogger("naiad.environments")
_HEAD = 256


def _reject_web_page(archive: Path, uri: str) -> None:
    """Reject a page that a server sent in place of the archive, usually to ask for a login."""
    with archive.open("rb") as file:
        head = file.read(_HEAD).lstrip().lower()
    if head.startswith((b"<!doctype html", b"<html")):
        raise ExecutionEnvironmentError(
            f"cannot use the execution environment {redact(uri)}: the server sent a web page, not an archive; check "
            "the address, and whether it needs a login"
        )


class EntryProvider:
    """Provides store entries for archives; one per server. Methods are thread-safe."""

    def __init__(self, root: Path, policy: StorePolicy, reporter: ProgressReporter, store: Store) -> None:
        self._store = store
        self._leases = EntryLeases(root)
        self._remote = RemoteArchives(root, reporter, waits=store.waits)
        self._policy = policy
        self._cleanup_lock = threading.Lock()
        self._is_cleaned_up = False
        self._compared: set[str] = set()

    def acquire_local(self, path: Path, *, digest: str = "", label: str = "") -> tuple[ReadyEntry, Lease]:
        """The entry of a local archive, of any SHA-256 if *digest* is empty, with a lease on it."""
        self.remove_leftovers()
        identity = self._store.identify(path, label)
        if digest and identity.digest != digest:
            raise ExecutionEnvironmentError(
                f"the execution environment {path} does not match its pin: its SHA-256 is {identity.digest}, "
                f"pinned is {digest}; provide the pinned archive, or pin the digest of this one"
            )
        keys = self._policy.keys_for(path)
        if keys is not None:
            keys.verify_local_archive(path, identity.digest)
        return self._unpack(path, identity, str(path), label)

    def acquire_remote(self, named: EnvironmentSource, label: str = "") -> tuple[ReadyEntry, Lease]:
        """The entry of a remote archive, with a lease on it. Uses no network if the store has the entry."""
        self.remove_leftovers()
        version = self._current_version(named)
        found = self._find_entry(self._expected(named, version), named.uri, label)
        if found is not None:
            if self._policy.reports_changed and self._is_first_use(named.uri):
                # In a separate thread: a start must neither wait for the network nor fail without it.
                threading.Thread(target=self._warn_if_changed, args=(named,), daemon=True).start()
            return found
        with self._remote.exclusive(named.uri, label):
            # Another process may have downloaded it while this one waited for the lock.
            expected = self._expected(named, version)
            return self._find_entry(expected, named.uri, label) or self._download(named, expected, version, label)

    def explain_changed(self, named: EnvironmentSource) -> str:
        """How a URI differs from the content that was seen first and is used; empty if it does not, or is pinned."""
        if not named.uri or named.digest or named.is_mutable or self._policy.trust is not None:
            return ""
        before = self._remote.recorded_version(named.uri)
        if not before:
            return ""
        from naiad.environments.fetching.download import read_version  # imports HTTP, which most servers do not need

        now = read_version(named.uri, or_size=True)
        if now == before:
            return ""
        uri = redact(named.uri)
        return (
            f"the execution environment {uri} has changed since its first use with this store, which keeps using the "
            f"first content, while a new store would use the present one (it was {before}, now it is "
            f"{now or 'unknown'}); accept it with `naiad env prefetch --accept-changed {uri}`, or write one digest for "
            "all servers with `naiad env pin`"
        )

    def _is_first_use(self, uri: str) -> bool:
        with self._cleanup_lock:
            if uri in self._compared:
                return False
            self._compared.add(uri)
            return True

    def _warn_if_changed(self, named: EnvironmentSource) -> None:
        try:
            changed = self.explain_changed(named)
        except ExecutionEnvironmentError as error:
            _log.debug("cannot compare %s with its first content: %s", redact(named.uri), error.message)
        else:
            if changed:
                _log.warning("%s", changed)

    def _current_version(self, named: EnvironmentSource) -> str:
        """The version (such as an ETag) of a URI that may change; empty if it is fixed or has no version."""
        if not named.is_mutable or named.digest:
            return ""
        if self._policy.trust is not None:
            self._remote.forget_signatures(named.uri)
            return ""
        from naiad.environments.fetching.download import read_version  # imports HTTP, which most servers do not need

        return read_version(named.uri)

    def _expected(self, named: EnvironmentSource, version: str) -> str:
        """The digest that the content of a URI must have, empty if unknown."""
        uri, trust = named.uri, self._policy.trust
        if trust is not None:
            where = f"the execution environment {redact(uri)}"
            found = read_signatures(self._remote.read_signatures_file(uri), where, redact(signature_uri(uri)))
            try:
                trust.verify(found, named.digest or found.digest, where)
            except ExecutionEnvironmentError:
                self._remote.forget_signatures(uri)  # the file may be corrected until the next load
                raise
            return found.digest
        if named.is_mutable and not named.digest:
            return self._remote.digest_if_unchanged(uri, version)
        expected = named.digest or self._remote.recorded_digest(uri)
        if not expected and self._policy.require_digest:
            raise ExecutionEnvironmentError(
                f"the execution environment {redact(uri)} is refused: it has no digest, and this server "
                "requires one (--env-require-digest); append @sha256: and the digest that `sha256sum` prints"
            )
        return expected

    def _find_entry(self, digest: str, uri: str, label: str) -> tuple[ReadyEntry, Lease] | None:
        if not digest:
            return None
        lease = self._leases.acquire(digest)
        stored = self._store.get(digest)
        if stored is None:
            lease.release()
            return None
        if label:
            self._leases.record_model(digest, label, redact(uri))
        return stored, lease

    def _download(self, named: EnvironmentSource, expected: str, version: str, label: str) -> tuple[ReadyEntry, Lease]:
        uri = named.uri
        if self._policy.offline:
            raise ExecutionEnvironmentError(
                f"the execution environment {redact(uri)} is not in the store, and nothing is downloaded (--offline); "
                "put it there with `naiad env prefetch`"
            )
        with self._remote.downloaded(uri, label) as archive:
            _reject_web_page(archive, uri)
            identity = self._store.identify(archive, label)
            if expected and identity.digest != expected:
                raise self._mismatch_error(named, identity.digest, expected)
            found = self._unpack(archive, identity, redact(uri), label)
            if not named.is_mutable:
                version = self._remote.downloaded_version(uri)
        if not expected:
            self._remote.record(uri, identity.digest, version)
        if not expected and not named.is_mutable:
            _log.warning(
                "the execution environment %s has no digest; from now on only its current content is accepted; to "
                "pin it in the model too, name it %s@sha256:%s",
                *(redact(uri), redact(uri), identity.digest),
            )
        return found

    def _mismatch_error(self, named: EnvironmentSource, found: str, expected: str) -> ExecutionEnvironmentError:
        uri = redact(named.uri)
        if self._policy.trust is not None:
            why = f"its signatures are for {expected}; sign the archive that is there, or put back the signed one"
        elif named.digest:
            why = (
                f"the model or environments.lock pins {expected}; put back the pinned archive, or pin the digest of "
                "this one"
            )
        else:
            why = (
                f"at its first use here it was {expected}; find out who changed it; if the change is intended, run "
                f"`naiad env prefetch --accept-changed {uri}`, or pin the new digest in the model"
            )
        return ExecutionEnvironmentError(
            f"the execution environment {uri} is refused: it has changed, its SHA-256 is {found}, and {why}"
        )

    def accept_changed(self, uri: str) -> None:
        """Forget the digest and signatures of a URI, so that its current content is accepted at the next use."""
        self._remote.forget(uri)
        self._remote.forget_signatures(uri)

    def remove_leftovers(self) -> None:
        """Remove leftovers of crashes, once per server. Not at start: a server without archives needs no store."""
        with self._cleanup_lock:
            if not self._is_cleaned_up:
                self._store.remove_leftovers()
                self._is_cleaned_up = True

    def _unpack(self, archive: Path, identity: ArchiveIdentity, origin: str, label: str) -> tuple[ReadyEntry, Lease]:
        # The lease comes before the lookup, so that no process can remove the entry between the two.
        lease = self._leases.acquire(identity.digest)
        try:
            is_new = self._store.get(identity.digest) is None
            if is_new:
                # Imported here: most starts unpack nothing.
                from naiad.environments.store.room import make_room

                make_room(self._store, self._leases, archive, origin, max_bytes=self._policy.max_bytes)
            stored = self._store.get_or_unpack(archive, identity, origin=origin, label=label)
        except BaseException:
            lease.release()
            raise
        if label:
            self._leases.record_model(identity.digest, label, origin)
        if is_new and self._policy.max_bytes:
            shrink_store(self._store, self._leases, self._policy.max_bytes)
        return stored, lease
