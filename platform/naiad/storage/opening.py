"""From a URI to something that can be read: fsspec's file system for it, opened with our credentials."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol

from naiad.errors import Code, NaiadError, StorageError
from naiad.storage.credentials import driver_options
from naiad.storage.locations import Location, parse_location

__all__ = ["Filesystem", "Storage", "open_storage", "translate_storage_errors"]

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
"""The extra of naiad that brings the driver, by the driver's name."""


class Filesystem(Protocol):
    """What we use of fsspec's file systems; all calls block."""

    def find(self, path: str, *, withdirs: bool = False, detail: bool = False) -> dict[str, dict[str, Any]]:
        """All files below *path* with what is known about each."""

    def ls(self, path: str, detail: bool) -> list[dict[str, Any]]:  # noqa: FBT001 - fsspec's
        """What lies in *path* itself."""

    def info(self, path: str) -> dict[str, Any]:
        """What is known about *path*."""

    def isdir(self, path: str) -> bool:
        """Whether something lies below *path*."""

    def open(self, path: str, mode: str = "rb") -> BinaryIO:
        """The content of a file."""

    def get_file(self, rpath: str, lpath: str) -> None:
        """Copy a file here."""

    def invalidate_cache(self) -> None:
        """Forget listings: the next one asks."""


@dataclass(frozen=True, slots=True)
class Storage:
    """An opened place.

    Attributes:
        uri: How it was called.
        filesystem: The file system it is in.
        path: Its path there.
    """

    uri: str
    filesystem: Filesystem
    path: str


def open_storage(uri: str, environ: Mapping[str, str] | None = None) -> Storage:
    """Open the place that a URI names; nothing is asked of the network yet by most drivers.

    Args:
        uri: See `naiad.storage.locations`.
        environ: Where the variables for credentials are; those of this process unless given.

    Raises:
        StorageError: If the URI or the credentials cannot be used, or the driver is not installed.
    """
    location = parse_location(uri)
    options = driver_options(location, os.environ if environ is None else environ)
    import fsspec  # here, as a server whose files are all on this machine needs none of it

    try:
        kind = fsspec.get_filesystem_class(location.protocol)
    except ImportError as error:
        raise _not_installed(location, error) from error
    except ValueError as error:
        raise StorageError(f"cannot open '{uri}': no driver of fsspec knows its scheme") from error
    with translate_storage_errors(f"cannot open '{location.uri}'"):
        return Storage(location.uri, kind(**options), kind._strip_protocol(location.path))  # noqa: SLF001 - fsspec's own way


def _not_installed(location: Location, error: ImportError) -> StorageError:
    extra = EXTRAS.get(location.protocol)
    advice = f"install it with: pip install 'naiad[{extra}]'" if extra else str(error)
    scheme = location.uri.partition("://")[0]
    return StorageError(
        f"cannot open '{location.uri}': the driver for {scheme}:// is not installed; {advice}", code=Code.UNSUPPORTED
    )


@contextlib.contextmanager
def translate_storage_errors(what: str) -> Iterator[None]:
    """Say *what* failed, whatever a driver raises: each has classes of its own.

    Raises:
        StorageError: Instead of it.
    """
    try:
        yield
    except NaiadError:
        raise
    except FileNotFoundError as error:
        raise StorageError(f"{what}: not found", code=Code.NOT_FOUND) from error
    except Exception as error:
        raise StorageError(f"{what}: {type(error).__name__}: {error}") from error
