"""A repository in an object store: what it holds is listed there, and a model's files are copied here to be loaded.

Only what changed is copied. A model's files are copied beside the old ones first and take their places together: a copy
that fails half-way changes nothing here.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from naiad.errors import RepositoryError
from naiad.lifecycle.polling import Look, Signature, is_ignored
from naiad.repository.temporary import temporary_folder
from naiad.storage.listing import StoredFile, list_files, list_folders
from naiad.storage.opening import Storage, translate_storage_errors

__all__ = ["RemotePlace"]

_MOUNTS = {
    "s3": "TRITON_AWS_MOUNT_DIRECTORY",
    "gs": "TRITON_GCS_MOUNT_DIRECTORY",
    "as": "TRITON_AZURE_MOUNT_DIRECTORY",
}
_COPIES_AT_ONCE = 8
_STAGING = ".naiad-staging"


class RemotePlace:
    """See `naiad.repository.place.Place`."""

    def __init__(self, storage: Storage, environ: Mapping[str, str]) -> None:
        self.given = storage.uri
        self._storage = storage
        self._names: list[str] = []
        self._copied: dict[str, dict[str, StoredFile]] = {}
        self._locks: dict[str, threading.Lock] = {}
        self.directory = _mirror(storage.uri, environ)
        self._close = weakref.finalize(self, shutil.rmtree, self.directory, ignore_errors=True)

    def names(self) -> list[str]:
        """See `Place.names`."""
        self._names = [name for name in list_folders(self._storage) if not name.startswith(".")]
        return self._names

    def stored(self) -> list[str]:
        """See `Place.stored`."""
        return self._names

    def look(self) -> Look:
        """See `Place.look`; one listing of the whole repository."""
        models: dict[str, dict[str, StoredFile]] = {name: {} for name in self.names()}
        for path, file in list_files(self._storage).items():
            name, _, rest = path.partition("/")
            if rest and name in models and not _is_ignored(file, rest):
                models[name][rest] = file
        return {name: _signature(files) for name, files in models.items()}

    def fetch(self, name: str) -> None:
        """See `Place.fetch`."""
        with self._locks.setdefault(name, threading.Lock()):
            files = {path: file for path, file in self._list(name).items() if not _is_ignored(file, path)}
            if not files:
                raise RepositoryError(f"failed to poll model '{name}': there is nothing in '{self.given}/{name}'")
            copied = self._copied.get(name, {})
            wanted = [file for path, file in files.items() if not file.is_folder and copied.get(path) != file]
            with tempfile.TemporaryDirectory(prefix=f"{_STAGING}-", dir=self.directory) as staging:
                self._copy(name, wanted, Path(staging))
                self._take_places(name, wanted, Path(staging), files)
            self._copied[name] = files

    def close(self) -> None:
        """See `Place.close`."""
        self._close()

    def _list(self, name: str) -> dict[str, StoredFile]:
        storage = self._storage
        return list_files(Storage(f"{storage.uri}/{name}", storage.filesystem, f"{storage.path.rstrip('/')}/{name}"))

    def _copy(self, name: str, files: list[StoredFile], staging: Path) -> None:
        with ThreadPoolExecutor(_COPIES_AT_ONCE, thread_name_prefix="naiad-copy") as pool:
            for _ in pool.map(lambda file: self._copy_one(f"{name}/{file.path}", file, staging), files):
                pass

    def _copy_one(self, path: str, file: StoredFile, staging: Path) -> None:
        target = staging / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        with translate_storage_errors(f"cannot copy '{self.given}/{path}'"):
            self._storage.filesystem.get_file(f"{self._storage.path.rstrip('/')}/{path}", str(target))
        size = target.stat().st_size
        if size != file.size:
            raise RepositoryError(f"'{self.given}/{path}' changed while it was copied: {size} bytes, not {file.size}")

    def _take_places(self, name: str, wanted: list[StoredFile], staging: Path, files: Mapping[str, StoredFile]) -> None:
        model = self.directory / name
        model.mkdir(exist_ok=True)
        folders = {parent for path, file in files.items() for parent in _folders(path, file)}
        # Deepest first, so that folders are empty when their turn comes.
        for there in sorted(model.rglob("*"), key=lambda each: len(each.parts), reverse=True):
            path = there.relative_to(model).as_posix()
            if there.is_dir() and path not in folders:
                there.rmdir()
            elif not there.is_dir() and (path not in files or files[path].is_folder):
                there.unlink()
        for folder in sorted(folders):
            (model / folder).mkdir(parents=True, exist_ok=True)
        for file in wanted:
            os.replace(staging / file.path, model / file.path)  # noqa: PTH105 - one step, whatever was there


def _mirror(uri: str, environ: Mapping[str, str]) -> Path:
    """A fresh folder for a repository: below the one that the reference's variable names, else a temporary one."""
    scheme = uri.partition(":")[0].lower()
    mount = environ.get(_MOUNTS.get(scheme, ""), "")
    if mount and not Path(mount).is_dir():
        raise RepositoryError(f"{_MOUNTS[scheme]} names '{mount}', which is not a directory: create it, or unset it")
    name = hashlib.sha256(uri.encode()).hexdigest()[:12]
    return temporary_folder(f"naiad-repository-{name}-", mount or None)


def _is_ignored(file: StoredFile, path: str) -> bool:
    *folders, name = path.split("/")
    return any(is_ignored(folder, is_directory=True) for folder in folders) or is_ignored(
        name, is_directory=file.is_folder
    )


def _signature(files: Mapping[str, StoredFile]) -> Signature:
    """As `look_at` makes it of a folder here: folders end with a slash."""
    signature: dict[str, tuple[object, ...]] = {}
    for path, file in files.items():
        signature.update((f"{folder}/", ()) for folder in _folders(path, file))
        if not file.is_folder:
            signature[path] = (file.tag, file.size)
    return signature


def _folders(path: str, file: StoredFile) -> list[str]:
    """The folders that a path needs, without end slashes."""
    parts = path.split("/") if file.is_folder else path.split("/")[:-1]
    return ["/".join(parts[: count + 1]) for count in range(len(parts))]
