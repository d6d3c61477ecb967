"""A file system that is a dictionary: for tables of decisions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


class FakeFiles:
    """Files by path with their content; every parent is a directory."""

    def __init__(self, contents: Mapping[str, bytes | str] | set[str] = frozenset()) -> None:
        if not isinstance(contents, Mapping):
            contents = dict.fromkeys(contents, b"")
        self.contents = {
            Path(path): text.encode() if isinstance(text, str) else text for path, text in contents.items()
        }
        self.directories = {parent for path in self.contents for parent in path.parents}

    def exists(self, path: Path) -> bool:
        return path in self.contents or path in self.directories

    def is_dir(self, path: Path) -> bool:
        return path in self.directories

    def names(self, path: Path) -> list[str]:
        return sorted({each.name for each in (*self.contents, *self.directories) if each.parent == path})

    def read(self, path: Path, size: int = -1) -> bytes:
        if path not in self.contents:
            raise FileNotFoundError(2, "No such file or directory", str(path))
        content = self.contents[path]
        return content if size < 0 else content[:size]
