"""Writing reproducible archives: equal members in equal order give equal bytes.

Times, owners, umask and the number of processors do not influence the output. Every member has the same time, the
start of 1980, which is the earliest that wheels support.
"""

from __future__ import annotations

import hashlib
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

from naiad.environments.archives.parallel_gzip import Writable, gzip_writer

MTIME = 315_532_800  # modification time of every member: 1980-01-01, UTC

FORMATS = ("tar.zst", "tar.gz", "tar")  # formats that can be written, the default first

# The next levels take twice the time for a size smaller by 5 %.
_ZSTD_LEVEL = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputMember:
    """One member to write: a symbolic link, or a file."""

    name: str
    source: Path | None = None  # file with the content, unless `data` is given
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


class HashedOutput:
    """A stream that passes on what is written, and has its digest: a file of gigabytes need not be read for that."""

    def __init__(self, raw: Writable) -> None:
        self._raw = raw
        self._digest = hashlib.sha256()

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()

    def write(self, data: bytes) -> int:
        self._digest.update(data)
        return self._raw.write(data)


def write_archive(
    output: Path,
    format: str,  # noqa: A002 - the option's name
    members: Iterable[OutputMember],
    advance: Callable[[int], None],
) -> str:
    """Write members in order into a new archive; returns its SHA-256. *advance* receives the size of each."""
    with output.open("wb") as file:
        raw = HashedOutput(file)
        with _compressing(raw, format) as stream, tarfile.open(fileobj=stream, mode="w|", bufsize=1 << 20) as tar:
            for member in members:
                _add(tar, member)
                advance(member.size)
    return raw.digest


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


def _compressing(raw: HashedOutput, format: str) -> AbstractContextManager[Any]:  # noqa: A002 - the option's name
    match format:
        case "tar.gz":
            return gzip_writer(raw)
        case "tar.zst":
            # The output does not depend on the number of threads, as long as there is at least one worker.
            compressor = zstandard.ZstdCompressor(level=_ZSTD_LEVEL, threads=usable_processors(), write_checksum=True)
            return compressor.stream_writer(cast("IO[bytes]", raw), closefd=False)
        case _:
            return nullcontext(raw)
