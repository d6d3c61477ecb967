"""Writing reproducible archives: equal members in equal order give equal bytes.

Times, owners, umask and the number of processors do not influence the output. Every member has the same time, the
start of 1980, which is the earliest that wheels support.
"""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import zstandard
from naiad_stub.process_limits import usable_processors

from naiad.environments.archives.parallel_gzip import gzip_writer

__all__ = ["FORMATS", "MTIME", "OutputMember", "write_archive"]

MTIME = 315_532_800
"""Modification time of every member: 1980-01-01, UTC."""

FORMATS = ("tar.zst", "tar.gz", "tar")
"""Formats that can be written, the default first."""

# The next levels take twice the time for a size smaller by 5 %.
_ZSTD_LEVEL = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputMember:
    """One member to write: a symbolic link, or a file.

    Attributes:
        source: File with the content, unless `data` is given.
    """

    name: str
    source: Path | None = None
    data: bytes | None = None
    link: str | None = None
    executable: bool = False

    @property
    def size(self) -> int:
        if self.link is not None:
            return 0
        return len(self.data) if self.data is not None else os.stat(cast("Path", self.source)).st_size  # noqa: PTH116 - called for each of 10,000 members

    def read(self) -> bytes:
        return self.data if self.data is not None else cast("Path", self.source).read_bytes()


def write_archive(
    output: Path,
    format: str,  # noqa: A002 - the option's name
    members: Iterable[OutputMember],
    advance: Callable[[int], None],
) -> None:
    """Write members in their order into a new archive; *advance* receives the size of each."""
    with (
        output.open("wb") as raw,
        _compressing(raw, format) as stream,
        tarfile.open(fileobj=stream, mode="w|", bufsize=1 << 20) as tar,
    ):
        for member in members:
            _add(tar, member)
            advance(member.size)


def _add(tar: tarfile.TarFile, member: OutputMember) -> None:
    info = tarfile.TarInfo(member.name)
    info.mtime = MTIME
    info.mode = 0o755 if member.executable or member.link is not None else 0o644
    if member.link is not None:
        info.type, info.linkname = tarfile.SYMTYPE, member.link
        tar.addfile(info)
        return
    info.size = member.size
    with _content(member) as content:
        tar.addfile(info, content)


@contextmanager
def _content(member: OutputMember) -> Iterator[IO[bytes]]:
    if member.data is not None:
        yield io.BytesIO(member.data)
        return
    with cast("Path", member.source).open("rb") as content:
        yield content


def _compressing(raw: IO[bytes], format: str) -> AbstractContextManager[Any]:  # noqa: A002 - the option's name
    """The compressing stream for a tar."""
    match format:
        case "tar.gz":
            return gzip_writer(raw)
        case "tar.zst":
            # The output does not depend on the number of threads, as long as there is at least one worker.
            compressor = zstandard.ZstdCompressor(level=_ZSTD_LEVEL, threads=usable_processors(), write_checksum=True)
            return compressor.stream_writer(raw, closefd=False)
        case _:
            return nullcontext(raw)
