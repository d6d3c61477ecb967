"""The file system operations that resolution needs, so that tests need no disk."""

from __future__ import annotations

from pathlib import Path


class Files:
    """Read access to the disk."""

    def exists(self, path: Path) -> bool:
        return path.exists()

    def is_dir(self, path: Path) -> bool:
        return path.is_dir()

    def names(self, path: Path) -> list[str]:
        """Names in a directory, sorted; none if it cannot be read."""
        try:
            return sorted(entry.name for entry in path.iterdir())
        except OSError:
            return []

    def read(self, path: Path, size: int = -1) -> bytes:
        """The first `size` bytes of a file, all of them if negative; raises OSError."""
        with path.open("rb") as file:
            return file.read(size)
