"""What an archive holds, whatever it is packed with."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import IO, NamedTuple, Protocol

__all__ = ["FileMemberContent", "Member", "MemberAndContent", "MemberContent", "MemberKind"]


class MemberKind(enum.Enum):
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
    kind: MemberKind
    size: int
    mode: int
    mtime: float
    target: str = ""


class MemberContent(Protocol):
    """What is in a file, from its beginning on."""

    def read(self, size: int) -> bytes:
        """The next bytes, as many, fewer only at the end."""

    def read_pieces(self, size: int) -> Sequence[bytes | memoryview]:
        """The same without copying them together; none at the end."""


class FileMemberContent:
    """Content that something else gives out as a file."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def read(self, size: int) -> bytes:
        """The next bytes."""
        return self._file.read(size)

    def read_pieces(self, size: int) -> Sequence[bytes | memoryview]:
        """The same, as one piece."""
        data = self._file.read(size)
        return (data,) if data else ()


MemberAndContent = tuple[Member, "MemberContent | None"]
"""A member, and its content if it is a file."""
