"""What lies in a storage, and what tells one content of a file from another without reading it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from naiad.errors import Code, StorageError
from naiad.storage.opening import Storage, translate_storage_errors

__all__ = ["StoredFile", "list_files", "list_folders"]

# A digest or a number of generation first, times last; by the names that s3fs, gcsfs, adlfs, HTTP and memory have.
_TAGS = ("ETag", "etag", "md5Hash", "md5", "generation", "LastModified", "last_modified", "updated", "mtime", "created")


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file, or a folder, of a storage.

    Attributes:
        path: Its path below the place that was listed.
        size: Its bytes.
        tag: Changes with its content.
        is_folder: Whether it is a folder.
    """

    path: str
    size: int
    tag: str
    is_folder: bool = False


def list_folders(storage: Storage) -> list[str]:
    """Names of the folders right in a place, sorted.

    Raises:
        StorageError: If it is not there or cannot be read.
    """
    with translate_storage_errors(f"cannot list '{storage.uri}'"):
        storage.filesystem.invalidate_cache()
        entries = storage.filesystem.ls(storage.path, detail=True)
    own = storage.path.strip("/")  # some stores list a place as its own first entry
    return sorted(
        {_last(entry["name"]) for entry in entries if entry["type"] == "directory" and entry["name"].strip("/") != own}
    )


def list_files(storage: Storage) -> dict[str, StoredFile]:
    """All files and folders below a place, by path.

    Raises:
        StorageError: If it cannot be read, or holds a path that leads out of it.
    """
    with translate_storage_errors(f"cannot list '{storage.uri}'"):
        storage.filesystem.invalidate_cache()
        found = storage.filesystem.find(storage.path, withdirs=True, detail=True)
    start = storage.path.strip("/")
    files = {}
    for name, info in found.items():
        path = name.strip("/").removeprefix(start).strip("/")
        if path:
            files[path] = _file(storage.uri, path, name, info)
    return files


def _file(uri: str, path: str, name: str, info: Mapping[str, Any]) -> StoredFile:
    if not {"", ".", ".."}.isdisjoint(path.split("/")) or "\\" in path or "\0" in path:
        raise StorageError(f"'{uri}' holds '{path}', which leads out of it", code=Code.INVALID_ARG)
    is_folder = info.get("type") == "directory" or name.endswith("/")
    size = 0 if is_folder else int(info.get("size") or 0)
    tag = "" if is_folder else next((str(info[key]) for key in _TAGS if info.get(key)), "")
    return StoredFile(path, size, tag, is_folder)


def _last(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]
