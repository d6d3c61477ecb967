"""Copies of the signed files of a repository in a folder, which guests run in place of the folder's own files.

A user who can write to the folder can change a file after it was checked, or put one beside it that Python prefers,
such as bytecode. A copy has exactly the files that were signed, with exactly the signed content. It is made before a
model is loaded, and guests that are restarted later run it, too.
"""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import os
import shutil
import tempfile
import threading
import uuid
import weakref
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath

from naiad.core.errors import RegistryError
from naiad.core.signatures import TrustedKeys
from naiad.environments.store.pulled import copies_folder, remove_unused_copies
from naiad.models.artifacts.folders import FolderListing, copy_file, list_folder, move_into_place
from naiad.models.artifacts.manifest import HIDDEN_FOLDER, needed_folders
from naiad.models.artifacts.statements import SignedStatement
from naiad.models.artifacts.verification import changed_content, changed_names, refused, trusted_statements

_BACKENDS, _ENVIRONMENTS = f"{HIDDEN_FOLDER}/backends", f"{HIDDEN_FOLDER}/environments"
_Identity = tuple[int, ...]
# Digest of a copied file, and what its source was then: a copy of the same source is not made again.
_Copied = tuple[str, _Identity]


class SignedCopies:
    """Copies of a folder's models; methods block and are thread-safe."""

    def __init__(self, source: Path, keys: TrustedKeys, store: Path) -> None:
        self._source = source
        self._keys = keys
        self._shared_lock = threading.Lock()  # for backends and environments, which several models have
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._copied: dict[str, _Copied] = {}
        try:
            root = copies_folder(store)
            remove_unused_copies(root)
            self.directory, lock = _take_folder(root, source)
        except OSError as error:
            raise RegistryError(
                f"cannot create a folder for the signed files of {source} in {store}: {error.strerror or error}; "
                "choose another folder with --env-store, or correct its permissions"
            ) from error
        self._remove = weakref.finalize(self, _remove, self.directory, lock)

    def close(self) -> None:
        self._remove()

    def update(self, model: str) -> str:
        """Make the copies of a model, its backends and its environments what the folder has now.

        Returns:
            The name of the trusted key that signed them.

        Raises:
            RegistryError: If no trusted key did, or something was changed afterwards; the message names it. The copy of
                the model is what it was before.
        """
        where = f"model '{model}' in {self._source}"
        try:
            statements = trusted_statements(self._source, self._keys, where)
            # Without bytecode: the copy has none, so what is in the folder cannot run.
            found = list_folder(self._source, (model, HIDDEN_FOLDER), with_bytecode=False)
            differences: list[str] = []
            for statement in statements:
                files = _signed_files(statement, model, found)
                differences = changed_names(found, files) or self._copy(statement, model, files)
                if not differences:
                    return statement.signer
        except OSError as error:
            raise RegistryError(
                f"cannot copy the signed files of {where} to {self.directory}: {error.strerror or error}; make room "
                "there, choose another folder with --env-store, or correct the permissions"
            ) from error
        raise refused(where, differences, statements[-1].signer)

    def _copy(self, statement: SignedStatement, model: str, files: Mapping[str, str]) -> list[str]:
        needed = needed_folders(statement.layers, model)
        environments = sorted(folder for folder in needed if folder.startswith(f"{_ENVIRONMENTS}/"))
        with self._shared_lock:
            differences = self._copy_parts((_BACKENDS, *environments), files)
        with self._locks[model]:
            return differences or self._copy_parts((model,), files)

    def _copy_parts(self, parts: Sequence[str], files: Mapping[str, str]) -> list[str]:
        """Copy the files below some folders; returns what differs from their digests, and then changes nothing."""
        differences = []
        self.directory.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".staging-", dir=self.directory) as staging:
            staged: dict[str, _Copied] = {}
            for path in (path for path in files if path.startswith(tuple(f"{part}/" for part in parts))):
                now = _identity(self._source / path)
                if self._copied.get(path) == (files[path], now):
                    continue
                copy = Path(staging, path)
                copy.parent.mkdir(parents=True, exist_ok=True)
                staged[path] = copy_file(self._source / path, copy), now
                differences += changed_content(path, files[path], staged[path][0])
            for part in () if differences else parts:
                own = frozenset(path[len(part) + 1 :] for path in files if path.startswith(f"{part}/"))
                changed = [path for path in own if f"{part}/{path}" in staged]
                move_into_place(
                    Path(staging, part), self.directory / part, changed, files=own, folders=_folders_of(own)
                )
            if not differences:
                self._copied.update(staged)
        return differences


def _signed_files(statement: SignedStatement, model: str, found: FolderListing) -> dict[str, str]:
    needed = needed_folders(statement.layers, model)
    present = set(found.files)

    def is_required(path: str) -> bool:
        top = path.split("/", maxsplit=1)[0]
        # What other models need may not be there: `naiad pull --model` leaves it out.
        is_needed = path in present or any(str(parent) in needed for parent in PurePosixPath(path).parents)
        return top == model or (top == HIDDEN_FOLDER and is_needed)

    return {path: digest for path, digest in statement.files.items() if is_required(path)}


def _folders_of(paths: Iterable[str]) -> frozenset[str]:
    return frozenset(str(parent) for path in paths for parent in list(PurePosixPath(path).parents)[:-1])


def _identity(path: Path) -> _Identity:
    status = path.lstat()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _take_folder(root: Path, source: Path) -> tuple[Path, int | None]:
    """An empty folder that no other process uses, and the descriptor that locks it.

    Its name is the same at each start, because bytecode in the store is kept by the paths of sources.
    """
    name = hashlib.sha256(os.fsencode(source)).hexdigest()[:12]
    for number in itertools.count():
        folder = root / f"{name}-{number}"
        descriptor = os.open(root / f"{folder.name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            continue
        except OSError:  # some network file systems have no locks
            os.close(descriptor)
            folder, descriptor = root / f"{name}-{uuid.uuid4().hex}", -1
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        return folder, descriptor if descriptor >= 0 else None
    raise AssertionError("the numbers do not end")


def _remove(folder: Path, lock: int | None) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    if lock is not None:
        os.close(lock)
