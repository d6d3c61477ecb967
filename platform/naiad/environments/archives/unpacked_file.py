"""What unpacking knows of a file that it wrote, so that nobody reads the file again."""

from __future__ import annotations

from typing import NamedTuple

HEAD_BYTES = 16  # size of the header of a bytecode file (PEP 552)


class UnpackedFile(NamedTuple):
    """A file as it was written during unpacking."""

    size: int
    mtime_ns: int
    digest: str
    head: bytes = b""  # first bytes of a bytecode file, empty for other files
