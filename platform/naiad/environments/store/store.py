"""The store of unpacked archives: addressed by content, shared by all servers of a user on a machine.

    <root>/<sha256>/env/...        the environment; `conda-unpack` has written this path into its files
    <root>/<sha256>/ready.json     the record, written last by rename: `env` is complete
    <root>/<sha256>/activation.json  what its activation scripts do to variables (see `activation`)
    <root>/<sha256>/files.json     digests of its files (see `file_digests`)
    <root>/<sha256>/bytecode/      bytecode of an environment packed without it
    <root>/locks/<sha256>.lock     locked while an entry is created or removed
    <root>/staging/<sha256>.*/     an archive being unpacked; same file system, so that rename works
    <root>/uses/<sha256>/          leases of the processes that use an entry (see `leases`)
    <root>/remote/, downloads/     remote archives (see `fetching.remote`)
    <root>/index/, interpreters/   caches: digests of archives, facts about interpreters
    <root>/activations/            what the activation scripts of folders do to variables

How an entry is created, and what a crash leaves at each step:

1. The process takes the entry's lock. The kernel releases it when the process dies.
2. It unpacks into `staging`. A crash leaves a staging folder, which is never mistaken for an entry.
3. It renames the staging folder to its final name: one atomic step on one file system.
4. It fixes prefixes and probes the interpreter at the final path (see `finishing`). A crash leaves a folder without
   `ready.json`.
5. It writes `ready.json` by rename. From then on the entry is complete and never changes.

A folder without a valid `ready.json` whose lock is free is therefore a leftover of a crash. The lock decides this, not
a process id: ids are reused, and differ between containers that share a store. A changed archive has another digest
and becomes another entry, so running guests keep their environment.
"""

from __future__ import annotations

import logging
import re
import secrets
import shutil
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from naiad.core import blocking
from naiad.core.errors import ExecutionEnvironmentError
from naiad.environments.archives.file_writers import UnpackedFile
from naiad.environments.progress import ProgressReporter
from naiad.environments.store.access import may_not_write, store_errors
from naiad.environments.store.archive_digest import ArchiveIdentity, fingerprint, identify_archive
from naiad.environments.store.file_locks import CreationLocks, try_exclusive_lock
from naiad.environments.store.placement import spread
from naiad.environments.store.record import ReadyEntry, has_record, read_record
from naiad.sources.interpreters.prefix import environments_below, require_interpreter

_log = logging.getLogger("naiad.environments")
_CREATED_AT_ONCE = 4  # entries that are built or unpacked at a time; further ones wait, and hold no slot of loading
_DIGEST = re.compile(r"[0-9a-f]{64}")


class Store:
    """The store in one folder, for all threads and processes; without *waits*, it raises EnvironmentBusyError."""

    def __init__(self, root: Path, reporter: ProgressReporter, *, waits: bool = True) -> None:
        self.root = root
        self._reporter = reporter
        self.waits = waits
        self._creation_locks = CreationLocks(waits=waits)
        self._creating = threading.Semaphore(_CREATED_AT_ONCE)
        self._digest_locks: defaultdict[Path, threading.Lock] = defaultdict(threading.Lock)

    def identify(self, archive: Path, label: str = "") -> ArchiveIdentity:
        # Models that share an archive load concurrently; the lock makes one of them read its gigabytes.
        with self._digest_locks[archive]:
            return identify_archive(archive, self.root / "index", reporter=self._reporter, label=label)

    def get(self, digest: str) -> ReadyEntry | None:
        return read_record(self.root / digest)

    def get_or_unpack(
        self, archive: Path, identity: ArchiveIdentity, *, origin: str = "", label: str = ""
    ) -> ReadyEntry:
        """The entry for an archive, created now if it is missing.

        Args:
            origin: Path or URI that the file was copied from, empty if it is the original.

        Raises:
            ExecutionEnvironmentError: If the archive cannot be used; nothing of it remains in the store.
        """
        known = self.get(identity.digest)
        if known is not None:
            return known
        with self._locked(identity.digest, label):
            # Another process may have created the entry while this one waited for the lock.
            known = self.get(identity.digest)
            return known if known is not None else self._create(archive, identity, origin or str(archive), label)

    def get_or_build(
        self, digest: str, build: Callable[[Path, Path], None], *, origin: str, label: str = ""
    ) -> ReadyEntry:
        """The entry of a digest, built now if it is missing.

        Args:
            digest: Name of the entry: SHA-256 of everything that determines the environment.
            build: Builds the environment in an empty folder, its first argument, for the path that is its second.

        Raises:
            ExecutionEnvironmentError: If it cannot be built; nothing of it remains in the store.
        """
        with self._locked(digest, label):
            # Another process may have built the entry while this one waited for the lock.
            known = self.get(digest)
            if known is not None:
                return known
            _log.info("building the environment of %s%s", origin, f" for '{label}'" if label else "")
            return self._complete(digest, origin, lambda: self._build(digest, build, origin))

    @contextmanager
    def scratch(self, digest: str, label: str = "") -> Iterator[Path]:
        """A temporary folder to create something in that the digest names, which no other process creates meanwhile.

        `remove_leftovers` removes the folder of a process that was killed.
        """
        with ExitStack() as held:
            held.enter_context(self._locked(digest, label))
            with store_errors(self.root):
                folder = tempfile.TemporaryDirectory(prefix=f"{digest}.", dir=self._staging())
            yield Path(held.enter_context(folder))

    def remove(self, digest: str) -> bool:
        """Remove an entry whose exclusive lease the caller holds; False if it does not exist or is being created."""
        removed = self._staging() / f"{digest}.{secrets.token_hex(8)}"
        try:
            # Renamed first, in one atomic step: a crash during deletion leaves a staging folder, never half an entry.
            # No folder is made for it, which a full disk refuses, and a full disk is why entries are removed.
            with try_exclusive_lock(self._lock(digest)) as is_free:
                if not is_free:
                    return False
                (self.root / digest).rename(removed)
        except FileNotFoundError:
            return False
        shutil.rmtree(removed, ignore_errors=True)
        return True

    def remove_leftovers(self) -> None:
        """Remove incomplete entries and staging folders whose lock is free: crashes left them."""
        for path in self._abandoned():
            _log.info("removing %s, left by a process that was interrupted", path)
            shutil.rmtree(path, ignore_errors=True)

    def find_leftovers(self) -> list[Path]:
        return list(self._abandoned())

    def _abandoned(self) -> Iterator[Path]:
        for name in sorted(self._incomplete_digests()):
            try:
                with store_errors(self.root), try_exclusive_lock(self._lock(name)) as is_free:
                    # Otherwise another process is creating it.
                    yield from self._incomplete_folders(name) if is_free else ()
            except ExecutionEnvironmentError as error:
                # Not a warning where another user has filled the store: nothing can be removed here then.
                level = logging.DEBUG if may_not_write(self.root) else logging.WARNING
                _log.log(level, "cannot clean up %s in %s: %s", name, self.root, error)

    def _incomplete_digests(self) -> set[str]:
        entries = {path.name for path in _list_folder(self.root) if not has_record(path)}
        staged = {path.name.partition(".")[0] for path in _list_folder(self.root / "staging")}
        return {name for name in entries | staged if _DIGEST.fullmatch(name)}

    def _incomplete_folders(self, digest: str) -> list[Path]:
        """The incomplete folders of a digest. They are leftovers only while the caller holds the lock."""
        entry = self.root / digest
        incomplete = [entry] if entry.exists() and self.get(digest) is None else []
        return incomplete + [path for path in _list_folder(self.root / "staging") if path.name.startswith(f"{digest}.")]

    def _lock(self, digest: str) -> Path:
        return self.root / "locks" / f"{digest}.lock"

    @contextmanager
    def _locked(self, digest: str, label: str) -> Iterator[None]:
        subject = "the environment" + (f" of '{label}'" if label else "")
        with ExitStack() as locks:
            with store_errors(self.root):
                locks.enter_context(self._creation_locks.hold(self._lock(digest), subject))
            yield

    def _create(self, archive: Path, identity: ArchiveIdentity, origin: str, label: str) -> ReadyEntry:
        _log.debug("Extracting Python execution env %s", archive)  # the reference's line
        _log.info("unpacking the environment %s%s", origin, f" for '{label}'" if label else "")
        return self._complete(identity.digest, origin, lambda: self._unpack(archive, identity, origin, label))

    def _complete(self, digest: str, origin: str, make: Callable[[], None]) -> ReadyEntry:
        """Make an entry with *make*, which ends with its record. The caller holds the entry's lock."""
        for path in self._incomplete_folders(digest):
            shutil.rmtree(path, ignore_errors=True)
        try:
            with store_errors(self.root), blocking.held(self._creating):
                began = time.monotonic()
                make()
        finally:
            if self.get(digest) is None:
                shutil.rmtree(self.root / digest, ignore_errors=True)
        stored = self.get(digest)
        assert stored is not None
        _log.info("environment %s is ready after %.1f s: %s", origin, time.monotonic() - began, stored.interpreter)
        return stored

    def _unpack(self, archive: Path, identity: ArchiveIdentity, origin: str, label: str) -> None:
        from naiad.environments.store.finishing import finish

        entry = self.root / identity.digest
        with self._staged(identity.digest) as folder:
            written = self._unpack_into(folder, archive, identity, origin, label)
        finish(entry, _environment_in(entry / "env"), origin, written)

    def _build(self, digest: str, build: Callable[[Path, Path], None], origin: str) -> None:
        from naiad.environments.store.finishing import finish_built

        entry = self.root / digest
        with self._staged(digest) as folder:
            build(folder, entry / "env")
        finish_built(entry, entry / "env", origin)

    @contextmanager
    def _staged(self, digest: str) -> Iterator[Path]:
        """An empty folder for an environment, which becomes that of the entry if the context ends without an error.

        It is another one at each attempt: installers outlive a killed server, and must not write into the next one's.
        """
        staged = Path(tempfile.mkdtemp(prefix=f"{digest}.", dir=self._staging()))
        try:
            (staged / "env").mkdir()
            yield staged / "env"
        except BaseException:
            shutil.rmtree(staged, ignore_errors=True)
            raise
        staged.chmod(0o755)
        staged.rename(self.root / digest)

    def _unpack_into(
        self, folder: Path, archive: Path, identity: ArchiveIdentity, origin: str, label: str
    ) -> Mapping[str, UnpackedFile]:
        from naiad.environments.archives.extraction import unpack
        from naiad.environments.archives.manifest import read_manifest, require_compatible_host, require_content

        where = f"the execution environment {origin}"
        manifest = read_manifest(archive)
        if manifest is not None:
            require_compatible_host(manifest.platform, manifest.glibc, where=where)
        size = None if manifest is None else manifest.size
        unpacked = unpack(archive, folder, reporter=self._reporter, label=label, size=size)
        if manifest is not None:
            require_content(manifest, {name: file.digest for name, file in unpacked.written.items()}, archive)
        # The digest may be old: this process may have waited long for the lock, and unpacking takes seconds.
        if fingerprint(archive) != identity.fingerprint:
            raise ExecutionEnvironmentError(
                f"the execution environment {archive} changed while it was unpacked; load the model again"
            )
        require_interpreter(_environment_in(folder), where=where)
        return unpacked.written

    def _staging(self) -> Path:
        staging = self.root / "staging"
        staging.mkdir(parents=True, exist_ok=True)
        spread(staging)
        return staging


def _environment_in(folder: Path) -> Path:
    """The environment in an unpacked archive: the folder itself, or the only one in it, as in `opt/conda/envs/e`."""
    found = environments_below(folder)
    return found[0] if len(found) == 1 else folder


def _list_folder(folder: Path) -> Iterator[Path]:
    try:
        yield from folder.iterdir()
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return  # of another user, who removes what was left there
