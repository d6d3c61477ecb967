"""Members of an archive, independent of its format."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import IO, NamedTuple, Protocol


class MemberKind(enum.Enum):
    """Types of members; the values are their names in messages."""

    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symbolic link"
    HARDLINK = "hard link"
    DEVICE = "device node"
    FIFO = "named pipe"
    OTHER = "special file"


class Member(NamedTuple):
    """One member as the archive describes it. The values are untrusted and unchecked."""

    name: str
    kind: MemberKind
    size: int
    mode: int
    mtime: float
    target: str = ""


class MemberContent(Protocol):
    """The content of a file member, read forward only."""

    def read(self, size: int) -> bytes:
        """The next *size* bytes; fewer only at the end."""

    def read_pieces(self, size: int) -> Sequence[bytes | memoryview]:
        """The next *size* bytes as a list of buffers, without joining them; empty at the end."""


class FileMemberContent:
    """Content that is read from a file object."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def read(self, size: int) -> bytes:
        return self._file.read(size)

    def read_pieces(self, size: int) -> Sequence[bytes | memoryview]:
        data = self._file.read(size)
        return (data,) if data else ()


MemberAndContent = tuple[Member, "MemberContent | None"]  # a member, with its content if it is a file
