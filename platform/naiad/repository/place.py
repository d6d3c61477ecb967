"""A repository as the rest sees it: names of models, what they look like, and a folder of this machine to load from."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from naiad.errors import RepositoryError
from naiad.lifecycle.polling import Look, Signature, is_ignored
from naiad.repository.layout import model_directories

__all__ = ["LocalPlace", "Place", "look_at"]


class Place(Protocol):
    """One repository. Everything blocks."""

    @property
    def given(self) -> str:
        """How it was named: its models' namespace."""

    @property
    def directory(self) -> Path:
        """Where its models are on this machine, once they are fetched."""

    def names(self) -> list[str]:
        """The models it holds, by name; hidden folders are none.

        Raises:
            NaiadError: If it cannot be read.
        """

    def stored(self) -> list[str]:
        """As `names`, at once: what was seen last where that is dear to know; never raises."""

    def look(self) -> Look:
        """What its models look like now; raises as `names` does."""

    def fetch(self, name: str) -> None:
        """Bring the files of a model up to date in `directory`.

        Raises:
            NaiadError: If they cannot be had.
        """

    def close(self) -> None:
        """Leave nothing behind."""


class LocalPlace:
    """See `Place`: a folder of this machine, or one mounted here."""

    def __init__(self, directory: Path) -> None:
        self.given = str(directory)
        self.directory = directory

    def names(self) -> list[str]:
        """See `Place.names`."""
        return [entry.name for entry in model_directories(self.directory)]

    def stored(self) -> list[str]:
        """See `Place.stored`."""
        try:
            return self.names()
        except RepositoryError:
            return []

    def look(self) -> Look:
        """See `Place.look`."""
        return {name: look_at(self.directory / name) for name in self.names()}

    def fetch(self, name: str) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to do."""


def look_at(directory: Path) -> Signature | None:
    """The state of a model's folder; None if something in it went away while it was read, or may not be read."""
    signature: dict[str, tuple[object, ...]] = {}
    try:
        _collect(directory, "", signature, frozenset())
    except OSError:
        return None
    return signature


def _collect(
    directory: Path, prefix: str, signature: dict[str, tuple[object, ...]], above: frozenset[tuple[int, int]]
) -> None:
    status = directory.stat()
    identity = status.st_dev, status.st_ino
    if identity in above:
        return  # a link that leads upward
    for entry in directory.iterdir():
        is_directory = entry.is_dir()
        if is_ignored(entry.name, is_directory=is_directory):
            continue
        if is_directory:
            # No time of it: that changes with bytecode and the files of editors.
            signature[f"{prefix}{entry.name}/"] = ()
            _collect(entry, f"{prefix}{entry.name}/", signature, above | {identity})
        elif entry.is_symlink() and not entry.exists():
            signature[prefix + entry.name] = ("dangling", str(entry.readlink()))
        else:
            status = entry.stat()
            signature[prefix + entry.name] = (status.st_mtime_ns, status.st_size)
