"""Unpacked archives, addressed by content, shared by every server of a user on this machine.

    <root>/<sha256>/env/...        the environment; what conda-pack left open is fixed for this very path
    <root>/<sha256>/ready.json     written last, by rename: what is in `env` is complete
    <root>/<sha256>/files.json     digests of its files (see `file_digests`)
    <root>/<sha256>/bytecode/      bytecode of an environment that came without
    <root>/locks/<sha256>.lock     held while an entry is made
    <root>/staging/<sha256>.*/     an archive being unpacked, on the same file system
    <root>/uses/<sha256>/          who uses an entry (see `uses`)
    <root>/remote/, downloads/     what came from elsewhere (see `remote`)
    <root>/index/, interpreters/   small facts worth remembering

Whoever holds an entry's lock is the only one that makes or removes it; a folder without `ready.json` whose lock is
free was left by a crash. The lock, not a process id, tells: ids are reused, and differ between containers that share
a store. An entry is never changed once it is ready, and a changed archive is another entry, so guests keep running.
"""

from __future__ import annotations

import logging
import re
import shutil
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from naiad.environments.progress import ProgressReporter
from naiad.environments.store.archive_digest import Content, content_of, fingerprint
from naiad.environments.store.file_digests import UnpackedFile
from naiad.environments.store.placement import spread
from naiad.environments.store.record import ReadyEntry, is_marked, read_record
from naiad.errors import ExecutionEnvironmentError
from naiad.interpreters.prefix import find_interpreter_in, require_interpreter

if TYPE_CHECKING:
    from filelock import FileLock

_log = logging.getLogger("naiad.environments")
_DIGEST = re.compile(r"[0-9a-f]{64}")


class Store:
    """The store below one folder; any number of threads and processes may use one at a time."""

    def __init__(self, root: Path, reporter: ProgressReporter) -> None:
        self.root = root
        self._reporter = reporter
        self._readings: defaultdict[Path, threading.Lock] = defaultdict(threading.Lock)

    def content(self, archive: Path, label: str = "") -> Content:
        """The digest of an archive's content, which is the name of its entry.

        Raises:
            ExecutionEnvironmentError: If it cannot be read.
        """
        # Models of one server that share an archive of gigabytes are loaded at once; one of them reads it.
        with self._readings[archive]:
            return content_of(archive, self.root / "index", reporter=self._reporter, label=label)

    def ready(self, digest: str) -> ReadyEntry | None:
        """The entry of that name, None if there is none that is whole."""
        return read_record(self.root / digest)

    def ensure(self, archive: Path, content: Content, *, origin: str = "", label: str = "") -> ReadyEntry:
        """The entry for an archive's content, made now if there is none.

        Args:
            archive: The file.
            content: What `content` said of it.
            origin: Where the file came from, if it is a copy.
            label: The model's name, for the log.

        Raises:
            ExecutionEnvironmentError: If the archive cannot be used; nothing of it stays then.
        """
        known = self.ready(content.digest)
        if known is not None:
            return known
        with self._locked(content.digest, label):
            # Whoever had the lock before may have done the work.
            known = self.ready(content.digest)
            return known if known is not None else self._make(archive, content, origin or str(archive), label)

    def unpack_for_trial(self, archive: Path, content: Content) -> ReadyEntry:
        """Do all that `ensure` does, on the same disk, and keep nothing of it.

        Raises:
            ExecutionEnvironmentError: If the archive cannot be used.
        """
        prefix = f"{content.digest}."
        with (
            self._locked(content.digest, ""),
            tempfile.TemporaryDirectory(prefix=prefix, dir=self._staging()) as folder,
        ):
            return Store(Path(folder), self._reporter).ensure(archive, content)

    def remove(self, digest: str) -> bool:
        """Remove an entry; whoever calls has made sure that nobody uses it.

        Returns:
            Whether it was removed: not while it is being made, nor if it is not there.

        Raises:
            OSError: If it cannot be removed.
        """
        gone = Path(tempfile.mkdtemp(prefix=f"{digest}.", dir=self._staging()))
        try:
            # In one step: a crash while files are deleted leaves something that `sweep` knows.
            with self._lock(digest).acquire(timeout=0):
                (self.root / digest).rename(gone / "removed")
        except (TimeoutError, FileNotFoundError):
            return False
        finally:
            shutil.rmtree(gone, ignore_errors=True)
        return True

    def sweep(self) -> None:
        """Remove what crashes left: half-made entries and staging folders that nobody is working on."""
        for path in self._abandoned():
            _log.info("removing %s, left by an interrupted unpacking", path)
            shutil.rmtree(path, ignore_errors=True)

    def leftovers(self) -> list[Path]:
        """What `sweep` would remove."""
        return list(self._abandoned())

    def _abandoned(self) -> Iterator[Path]:
        """Each with its lock held while the caller looks at it."""
        for name in sorted(self._leftovers()):
            try:
                with self._lock(name).acquire(timeout=0):
                    yield from self._half_made(name)
            except TimeoutError:
                continue  # being made right now
            except OSError as error:
                _log.warning("cannot clean up %s in %s: %s", name, self.root, error)

    def _leftovers(self) -> set[str]:
        entries = {path.name for path in _children(self.root) if not is_marked(path)}
        staged = {path.name.partition(".")[0] for path in _children(self.root / "staging")}
        return {name for name in entries | staged if _DIGEST.fullmatch(name)}

    def _half_made(self, digest: str) -> list[Path]:
        """What of a digest is not ready. Only with its lock held is that a leftover."""
        entry = self.root / digest
        half = [entry] if entry.exists() and self.ready(digest) is None else []
        return half + [path for path in _children(self.root / "staging") if path.name.startswith(f"{digest}.")]

    def _lock(self, digest: str) -> FileLock:
        locks = self.root / "locks"
        try:
            locks.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _unwritable(self.root, error) from error
        # What a start with environments that are there already never needs is imported where it is.
        from filelock import FileLock

        # thread_local=False: each use has its own object, and a lock file of a removed entry must stay, or two
        # processes could hold "the" lock on two different files of one name.
        return FileLock(locks / f"{digest}.lock", thread_local=False)

    @contextmanager
    def _locked(self, digest: str, label: str) -> Iterator[None]:
        lock = self._lock(digest)
        try:
            lock.acquire(timeout=0)
        except TimeoutError:
            _log.info("waiting for the environment%s: it is being unpacked already", f" of '{label}'" if label else "")
            lock.acquire()
        except OSError as error:
            raise _unwritable(self.root, error) from error
        try:
            yield
        finally:
            lock.release()

    def _make(self, archive: Path, content: Content, origin: str, label: str) -> ReadyEntry:
        digest = content.digest
        for path in self._half_made(digest):
            shutil.rmtree(path, ignore_errors=True)
        entry = self.root / digest
        began = time.monotonic()
        _log.info("unpacking the environment %s%s", origin, f" for '{label}'" if label else "")
        from naiad.environments.store.finishing import finish

        try:
            staged, written = self._stage(archive, content, origin, label)
            staged.rename(entry)
            finish(entry, _environment_in(entry / "env"), origin, written)
        except OSError as error:
            raise _unwritable(self.root, error) from error
        finally:
            if self.ready(digest) is None:
                shutil.rmtree(entry, ignore_errors=True)
        stored = self.ready(digest)
        assert stored is not None
        _log.info("environment %s is ready after %.1f s: %s", origin, time.monotonic() - began, stored.interpreter)
        return stored

    def _stage(
        self, archive: Path, content: Content, origin: str, label: str
    ) -> tuple[Path, Mapping[str, UnpackedFile]]:
        """Unpack and check beside the final place; returns the folder that becomes the entry, and what was written."""
        from naiad.environments.archives.extraction import unpack
        from naiad.environments.archives.manifest import read_manifest, require_compatible_host

        staged = Path(tempfile.mkdtemp(prefix=f"{content.digest}.", dir=self._staging()))
        try:
            folder = staged / "env"
            folder.mkdir()
            manifest = read_manifest(archive)
            if manifest is not None:
                require_compatible_host(manifest, where=f"the execution environment {origin}")
            size = None if manifest is None else manifest.size
            unpacked = unpack(archive, folder, reporter=self._reporter, label=label, size=size)
            # Since its digest was taken, which may have been a long wait for another process ago.
            if fingerprint(archive) != content.fingerprint:
                raise ExecutionEnvironmentError(
                    f"the execution environment {archive} changed while it was unpacked; load the model again"
                )
            require_interpreter(_environment_in(folder), where=f"the execution environment {origin}")
        except BaseException:
            shutil.rmtree(staged, ignore_errors=True)
            raise
        staged.chmod(0o755)
        return staged, unpacked.written

    def _staging(self) -> Path:
        """The folder for what is half-made, and half-removed."""
        staging = self.root / "staging"
        staging.mkdir(parents=True, exist_ok=True)
        spread(staging)
        return staging


def _environment_in(folder: Path) -> Path:
    """The environment in an unpacked archive: the folder itself, or the only one in it (`tar czf x.tgz myenv`)."""
    if find_interpreter_in(folder) is None:
        children = list(_children(folder))
        if len(children) == 1 and find_interpreter_in(children[0]) is not None:
            return children[0]
    return folder


def _children(folder: Path) -> Iterator[Path]:
    try:
        yield from folder.iterdir()
    except (FileNotFoundError, NotADirectoryError):
        return


def _unwritable(root: Path, error: OSError) -> ExecutionEnvironmentError:
    return ExecutionEnvironmentError(
        f"cannot use the store of environments at {root}: {error.strerror or error}"
        f"{f' ({error.filename})' if error.filename else ''}; choose another folder for it or mend its permissions"
    )
