"""The file system operations that resolution needs, as a protocol, so that tests need no disk."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol


class Files(Protocol):
    """Read access to a file system."""

    def exists(self, path: Path) -> bool: ...

    def is_dir(self, path: Path) -> bool: ...

    def names(self, path: Path) -> list[str]:
        """Names in a directory, sorted; none if it cannot be read."""
        ...

    def read(self, path: Path, size: int = -1) -> bytes:
        """The first `size` bytes of a file, all of them if negative; raises OSError."""
        ...


class RealFiles:
    """The disk."""

    def exists(self, path: Path) -> bool:
        return path.exists()

    def is_dir(self, path: Path) -> bool:
        return path.is_dir()

    def names(self, path: Path) -> list[str]:
        try:
            return sorted(entry.name for entry in path.iterdir())
        except OSError:
            return []

    def read(self, path: Path, size: int = -1) -> bytes:
        with path.open("rb") as file:
            return file.read(size)
