"""What an archive holds, whatever it is packed with."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import IO, NamedTuple, Protocol

__all__ = ["Content", "Entry", "FileContent", "Kind", "Member"]


class Kind(enum.Enum):
    """What a member is."""

    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symbolic link"
    HARDLINK = "hard link"
    DEVICE = "device node"
    FIFO = "named pipe"
    OTHER = "special file"


class Member(NamedTuple):
    """One entry of an archive, as it claims to be: nothing here is checked.

    Attributes:
        name: Its path.
        kind: What it is.
        size: Bytes of its content.
        mode: Permission bits.
        mtime: Seconds since the epoch.
        target: Where a link points.
    """

    name: str
    kind: Kind
    size: int
    mode: int
    mtime: float
    target: str = ""


class Content(Protocol):
    """What is in a file, from its beginning on."""

    def read(self, size: int) -> bytes:
        """The next bytes, as many, fewer only at the end."""

    def pieces(self, size: int) -> Sequence[bytes | memoryview]:
        """The same without copying them together; none at the end."""


class FileContent:
    """Content that something else gives out as a file."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def read(self, size: int) -> bytes:
        """The next bytes."""
        return self._file.read(size)

    def pieces(self, size: int) -> Sequence[bytes | memoryview]:
        """The same, as one piece."""
        data = self._file.read(size)
        return (data,) if data else ()


Entry = tuple[Member, "Content | None"]
"""A member, and its content if it is a file."""
