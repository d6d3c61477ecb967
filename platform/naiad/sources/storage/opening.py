"""Remote storage: fsspec's file system for a URI, with the configured credentials, and the files in it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from naiad.config.model.environment_source import redact
from naiad.core.errors import Code, NaiadError, StorageError
from naiad.core.extras import install_command
from naiad.sources.storage.credentials import driver_options
from naiad.sources.storage.locations import Location, parse_location

# The extra of naiad that installs a driver, by driver.
EXTRAS = {
    "s3": "s3",
    "gcs": "gcs",
    "abfs": "azure",
    "abfss": "azure",
    "az": "azure",
    "adl": "azure",
    "http": "http",
    "https": "http",
}
# Keys of s3fs, gcsfs, adlfs, HTTP and memory: digests and generation numbers first, times last.
_TAGS = ("ETag", "etag", "md5Hash", "md5", "generation", "LastModified", "last_modified", "updated", "mtime", "created")


@dataclass(frozen=True, slots=True)
class Storage:
    """An opened location."""

    uri: str
    filesystem: Any  # an `AbstractFileSystem` of fsspec, which has no types; all calls block
    path: str


def open_storage(uri: str, environ: Mapping[str, str] | None = None) -> Storage:
    """Open the location of a URI. Most drivers do not access the network yet."""
    location = parse_location(uri)
    options = driver_options(location, os.environ if environ is None else environ)
    import fsspec  # here, because servers with local files only do not need it

    try:
        kind = fsspec.get_filesystem_class(location.protocol)
    except ImportError as error:
        raise _not_installed(location, error) from error
    except ValueError as error:
        raise StorageError(
            f"cannot open '{redact(uri)}': no driver of fsspec knows its scheme; correct the scheme"
        ) from error
    with translate_storage_errors(f"cannot open '{redact(location.uri)}'"):
        return Storage(location.uri, kind(**options), kind._strip_protocol(location.path))  # noqa: SLF001 - fsspec's documented way to get the path


def _not_installed(location: Location, error: ImportError) -> StorageError:
    extra = EXTRAS.get(location.protocol)
    advice = f"install it with: {install_command(extra)}" if extra else str(error)
    scheme = location.uri.partition("://")[0]
    return StorageError(
        f"cannot open '{redact(location.uri)}': the driver for {scheme}:// is not installed; {advice}",
        code=Code.UNSUPPORTED,
    )


@contextlib.contextmanager
def translate_storage_errors(what: str) -> Iterator[None]:
    """Convert exceptions of drivers, which have no common class, into `StorageError`s that begin with *what*."""
    try:
        yield
    except NaiadError:
        raise
    except FileNotFoundError as error:
        raise StorageError(f"{what}: not found", code=Code.NOT_FOUND) from error
    except Exception as error:
        raise StorageError(f"{what}: {type(error).__name__}: {error}") from error


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
    folders = {entry["name"].strip("/") for entry in entries if entry["type"] == "directory"} - {own}
    return sorted({folder.rpartition("/")[2] for folder in folders})


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
