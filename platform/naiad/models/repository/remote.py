"""A model repository in an object store. Listing happens there; a model's files are copied here before it is loaded.

Only changed files are copied. They are first copied to a staging directory and then moved into place together, so a
copy that fails half-way changes nothing.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import threading
import weakref
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from naiad.core.blocking import run_each
from naiad.core.errors import RepositoryError
from naiad.models.artifacts.folders import move_into_place
from naiad.models.polling import Signature, Snapshot, is_ignored
from naiad.models.repository.layout import is_never_model, make_temporary_directory
from naiad.sources.storage.opening import Storage, StoredFile, list_files, list_folders, translate_storage_errors

_MOUNTS = {
    "s3": "TRITON_AWS_MOUNT_DIRECTORY",
    "gs": "TRITON_GCS_MOUNT_DIRECTORY",
    "as": "TRITON_AZURE_MOUNT_DIRECTORY",
}
_COPY_THREADS = 8
_STAGING = ".naiad-staging"


class RemoteRepository:
    """A `naiad.models.repository.repositories.Repository` in an object store."""

    def __init__(self, storage: Storage, environ: Mapping[str, str]) -> None:
        self.location = self.base_uri = storage.uri
        self._storage = storage
        self._names: list[str] = []
        self._copied: dict[str, dict[str, StoredFile]] = {}
        self._locks: dict[str, threading.Lock] = {}
        self.directory = _make_local_directory(storage.uri, environ)
        self._close = weakref.finalize(self, shutil.rmtree, self.directory, ignore_errors=True)

    def model_names(self) -> list[str]:
        folders = list_folders(self._storage)
        self._names = [name for name in folders if not (name.startswith(".") or is_never_model(name))]
        return self._names

    def known_model_names(self) -> list[str]:
        return self._names

    def snapshot(self) -> Snapshot:
        """See `Repository.snapshot`; it takes one listing of the whole repository."""
        models: dict[str, dict[str, StoredFile]] = {name: {} for name in self.model_names()}
        for path, file in list_files(self._storage).items():
            name, _, rest = path.partition("/")
            if rest and name in models and not _is_ignored(file, rest):
                models[name][rest] = file
        return {name: _signature(files) for name, files in models.items()}

    def has_directory(self, directory: Path) -> bool:
        return directory == self.directory

    def fetch(self, name: str, directory: Path | None = None) -> None:  # noqa: ARG002 - the protocol's
        with self._locks.setdefault(name, threading.Lock()):
            files = {path: file for path, file in self._list(name).items() if not _is_ignored(file, path)}
            if not files:
                raise RepositoryError(f"failed to poll model '{name}': there is nothing in '{self.location}/{name}'")
            copied = self._copied.get(name, {})
            changed = [file for path, file in files.items() if not file.is_folder and copied.get(path) != file]
            with tempfile.TemporaryDirectory(prefix=f"{_STAGING}-", dir=self.directory) as staging:
                copy = partial(self._copy_one, name, Path(staging))
                run_each(copy, changed, threads=_COPY_THREADS)
                move_into_place(
                    Path(staging),
                    self.directory / name,
                    [file.path for file in changed],
                    files={path for path, file in files.items() if not file.is_folder},
                    folders={parent for path, file in files.items() for parent in _folders(path, file)},
                )
            self._copied[name] = files

    def close(self) -> None:
        self._close()

    def _list(self, name: str) -> dict[str, StoredFile]:
        storage = self._storage
        return list_files(Storage(f"{storage.uri}/{name}", storage.filesystem, f"{storage.path.rstrip('/')}/{name}"))

    def _copy_one(self, name: str, staging: Path, file: StoredFile) -> None:
        path, target = f"{name}/{file.path}", staging / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        with translate_storage_errors(f"cannot copy '{self.location}/{path}'"):
            self._storage.filesystem.get_file(f"{self._storage.path.rstrip('/')}/{path}", str(target))
        size = target.stat().st_size
        if size != file.size:
            raise RepositoryError(
                f"'{self.location}/{path}' changed while it was copied: {size} bytes, not {file.size}"
            )


def _make_local_directory(uri: str, environ: Mapping[str, str]) -> Path:
    """A new directory for a repository's files: in the one that the reference's variable names, else in /tmp."""
    scheme = uri.partition(":")[0].lower()
    mount = environ.get(_MOUNTS.get(scheme, ""), "")
    if mount and not Path(mount).is_dir():
        raise RepositoryError(f"{_MOUNTS[scheme]} names '{mount}', which is not a directory: create it, or unset it")
    name = hashlib.sha256(uri.encode()).hexdigest()[:12]
    return make_temporary_directory(f"naiad-repository-{name}-", mount or None)


def _is_ignored(file: StoredFile, path: str) -> bool:
    *folders, name = path.split("/")
    return any(is_ignored(folder, is_directory=True) for folder in folders) or is_ignored(
        name, is_directory=file.is_folder
    )


def _signature(files: Mapping[str, StoredFile]) -> Signature:
    """The signature of a model, in the form of `directory_signature`: directories end with a slash."""
    signature: dict[str, tuple[object, ...]] = {}
    for path, file in files.items():
        signature.update((f"{folder}/", ()) for folder in _folders(path, file))
        if not file.is_folder:
            signature[path] = (file.tag, file.size)
    return signature


def _folders(path: str, file: StoredFile) -> list[str]:
    parts = path.split("/") if file.is_folder else path.split("/")[:-1]
    return ["/".join(parts[: count + 1]) for count in range(len(parts))]
