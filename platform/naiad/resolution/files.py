"""The little of a file system that decisions need, so that they can be tested without a disk."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

__all__ = ["Files", "RealFiles"]


class Files(Protocol):
    """What may be asked about a path."""

    def exists(self, path: Path) -> bool:
        """Whether anything is there."""
        ...

    def is_dir(self, path: Path) -> bool:
        """Whether a directory is there."""
        ...

    def read(self, path: Path, size: int = -1) -> bytes:
        """The first `size` bytes of a file, all of them if negative; raises OSError."""
        ...


class RealFiles:
    """The disk."""

    def exists(self, path: Path) -> bool:
        """Whether anything is there; a dangling link is nothing."""
        return path.exists()

    def is_dir(self, path: Path) -> bool:
        """Whether a directory, or a link to one, is there."""
        return path.is_dir()

    def read(self, path: Path, size: int = -1) -> bytes:
        """The first `size` bytes of a file."""
        with path.open("rb") as file:
            return file.read(size)
