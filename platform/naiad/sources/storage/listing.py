"""Listing folders and files of remote storage, with tags that change with the content of a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from naiad.core.errors import Code, StorageError
from naiad.sources.storage.opening import Storage, translate_storage_errors

# Keys of s3fs, gcsfs, adlfs, HTTP and memory: digests and generation numbers first, times last.
_TAGS = ("ETag", "etag", "md5Hash", "md5", "generation", "LastModified", "last_modified", "updated", "mtime", "created")


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file or folder below a listed folder; *tag* changes with the content, empty if the driver reports none."""

    path: str
    size: int
    tag: str
    is_folder: bool = False


def list_folders(storage: Storage) -> list[str]:
    """The sorted names of the direct sub-folders."""
    with translate_storage_errors(f"cannot list '{storage.uri}'"):
        storage.filesystem.invalidate_cache()
        entries = storage.filesystem.ls(storage.path, detail=True)
    own = storage.path.strip("/")  # some stores list a folder as its own first entry
    return sorted(
        {_last(entry["name"]) for entry in entries if entry["type"] == "directory" and entry["name"].strip("/") != own}
    )


def list_files(storage: Storage) -> dict[str, StoredFile]:
    """All files and folders below a folder, by relative path."""
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
        raise StorageError(f"'{uri}' contains '{path}', which leads out of it", code=Code.INVALID_ARG)
    is_folder = info.get("type") == "directory" or name.endswith("/")
    size = 0 if is_folder else int(info.get("size") or 0)
    tag = "" if is_folder else next((str(info[key]) for key in _TAGS if info.get(key)), "")
    return StoredFile(path, size, tag, is_folder)


def _last(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]
