"""Archive formats: detection, and iteration over the members of an archive.

The format is detected from the first bytes, never from the file name: files get renamed. Members are returned as the
archive describes them; `extraction` checks them.
"""

from __future__ import annotations

import enum
import io
import os
import shutil
import stat
import struct
import subprocess
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from pathlib import Path
from typing import IO, BinaryIO, cast

import zstandard

from naiad.core.child_processes import ended_with_group
from naiad.core.errors import ExecutionEnvironmentError
from naiad.core.file_content import explain_content
from naiad.environments.archives.decompression import DECOMPRESSION_ERRORS, open_decompressor, read_ahead, read_inline
from naiad.environments.archives.member import FileMemberContent, Member, MemberAndContent, MemberKind
from naiad.environments.archives.tar_stream import tar_members

# Errors of the decoders for damaged input. gzip and bz2 raise OSError for invalid data; `extraction` can tell it from a
# full disk, because it catches this tuple around reading only.
ARCHIVE_ERRORS: tuple[type[Exception], ...] = (
    tarfile.TarError,
    zipfile.BadZipFile,
    *DECOMPRESSION_ERRORS,
    EOFError,
    OSError,
    RuntimeError,
    NotImplementedError,
    ValueError,
)
_TAR_BLOCK = 512
_BUFFER = 256 * 1024
_EXTENDED_TIMESTAMP = 0x5455


class ArchiveFormat(enum.Enum):
    """Formats of archives; the values are their names in messages."""

    TAR = "tar"
    GZIP = "tar.gz"
    BZIP2 = "tar.bz2"
    XZ = "tar.xz"
    ZSTD = "tar.zst"
    ZIP = "zip"
    SQUASHFS = "squashfs"


_MAGIC = (
    (b"\x1f\x8b", ArchiveFormat.GZIP),
    (b"BZh", ArchiveFormat.BZIP2),
    (b"\xfd7zXZ\x00", ArchiveFormat.XZ),
    (b"\x28\xb5\x2f\xfd", ArchiveFormat.ZSTD),
    (b"PK\x03\x04", ArchiveFormat.ZIP),
    (b"PK\x05\x06", ArchiveFormat.ZIP),
    (b"hsqs", ArchiveFormat.SQUASHFS),
)
_KNOWN_OTHERS = (
    (b"7z\xbc\xaf", "a 7z archive"),
    (b"Rar!", "a rar archive"),
    (b"\x04\x22\x4d\x18", "compressed with lz4"),
    (b"\x02\x21\x4c\x18", "compressed with lz4"),
    (b"LZIP", "compressed with lzip"),
    (b"\x89LZO", "compressed with lzop"),
    (b"\x1f\x9d", "compressed with compress"),
    (b"\x5d\x00\x00", "compressed with lzma (the older format of xz)"),
    (b"!<arch>", "a Debian package or an archive of ar"),
    (b"\xed\xab\xee\xdb", "an RPM package"),
)


def detect_format(path: Path) -> ArchiveFormat:
    """The format of an archive."""
    try:
        with path.open("rb") as file:
            head = file.read(_TAR_BLOCK)
    except OSError as error:
        raise ExecutionEnvironmentError(
            f"cannot read the execution environment {path}: {error.strerror or error}"
        ) from error
    for magic, packed_with in _MAGIC:
        if head.startswith(magic):
            return packed_with
    if _is_tar_header(head):
        return ArchiveFormat.TAR
    if unfetched := explain_content(head):
        raise ExecutionEnvironmentError(f"cannot unpack the execution environment {path}: it is {unfetched}")
    what = next((name for magic, name in _KNOWN_OTHERS if head.startswith(magic)), "")
    found = what or ("empty" if not head else f"not an archive (its first bytes are {head[:4].hex(' ')})")
    raise ExecutionEnvironmentError(
        f"cannot unpack the execution environment {path}: it is {found}; "
        "expected a tar packed with gzip, bzip2, xz or zstd, a plain tar, or a zip, as conda-pack and "
        "`naiad env pack` write them, or a squashfs image"
    )


def _is_tar_header(head: bytes) -> bool:
    if len(head) < _TAR_BLOCK:
        return False
    try:
        tarfile.TarInfo.frombuf(head, "utf-8", "surrogateescape")
    except tarfile.TarError:
        return False
    return True


def unpacked_size(path: Path, packed_with: ArchiveFormat) -> int | None:
    """Size of the content if the archive states it, else None. Only a hint: the value is untrusted."""
    try:
        if packed_with is ArchiveFormat.TAR:
            return path.stat().st_size
        if packed_with is ArchiveFormat.ZIP:
            with zipfile.ZipFile(path) as archive:
                return sum(info.file_size for info in archive.infolist())
        if packed_with is ArchiveFormat.GZIP:
            return _gzip_size(path)
        if packed_with is ArchiveFormat.ZSTD:
            with path.open("rb") as file:
                size = zstandard.frame_content_size(file.read(64))
            return size if size > 0 else None
    except ARCHIVE_ERRORS:
        return None  # unpacking will report the error with more detail
    return None


def _gzip_size(path: Path) -> int | None:
    """The size in the trailer; None if below the packed size, because it is modulo 4 GiB (RFC 1952, 2.3.1)."""
    with path.open("rb") as file:
        packed = file.seek(0, io.SEEK_END)
        file.seek(max(0, packed - 4))
        (size,) = struct.unpack("<I", file.read(4))
    return size if size >= packed else None


class _CountedFile(io.RawIOBase):
    """A raw file that reports how many bytes are read from it."""

    def __init__(self, file: BinaryIO, advance: Callable[[int], None]) -> None:
        super().__init__()
        self._file = file
        self._advance = advance

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # typeshed allows any buffer; BufferedReader passes a memoryview
        count = cast("io.BufferedReader", self._file).readinto(buffer)
        self._advance(count)
        return count


def iterate_members(
    path: Path, packed_with: ArchiveFormat, advance: Callable[[int], None], *, ahead: bool = False
) -> Generator[MemberAndContent, None, None]:
    """All members with their contents, in the archive's order. A content is valid until the next member is requested.

    Args:
        advance: Called with the number of bytes read; with `ahead`, from another thread.

    Raises:
        One of `ARCHIVE_ERRORS`: If the archive is damaged.
    """
    with path.open("rb") as file:
        if packed_with is ArchiveFormat.SQUASHFS:
            yield from squashfs_members(path, advance)
        elif packed_with is ArchiveFormat.ZIP:
            yield from _zip_members(file, advance)
        else:
            counted = io.BufferedReader(_CountedFile(file, advance), _BUFFER)
            read = read_ahead if ahead else read_inline
            with (
                closing(open_decompressor(packed_with.value, cast("IO[bytes]", counted))) as decoded,
                read(decoded) as reader,
            ):
                yield from tar_members(reader)


def _zip_members(file: BinaryIO, advance: Callable[[int], None]) -> Iterator[MemberAndContent]:
    with zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            kind = _zip_kind(info)
            target = archive.read(info).decode() if kind is MemberKind.SYMLINK else ""
            member = Member(
                name=info.filename,
                kind=kind,
                size=info.file_size,
                # Zip files written without Unix permissions have 0 here.
                mode=stat.S_IMODE(info.external_attr >> 16) or 0o644,
                mtime=_zip_mtime(info),
                target=target,
            )
            if kind is MemberKind.FILE:
                with archive.open(info) as content:
                    yield member, FileMemberContent(content)
            else:
                yield member, None
            advance(info.compress_size)


def _zip_kind(info: zipfile.ZipInfo) -> MemberKind:
    if info.is_dir():
        return MemberKind.DIRECTORY
    kind = stat.S_IFMT(info.external_attr >> 16)
    known = {
        0: MemberKind.FILE,
        stat.S_IFREG: MemberKind.FILE,
        stat.S_IFLNK: MemberKind.SYMLINK,
        stat.S_IFDIR: MemberKind.DIRECTORY,
    }
    return known.get(kind, MemberKind.OTHER)


def _zip_mtime(info: zipfile.ZipInfo) -> float:
    """Info-ZIP's UTC time if present, else the local time in steps of two seconds that every zip member has."""
    extra = info.extra
    while len(extra) >= 4:  # noqa: PLR2004 - a header id and a length, two bytes each
        kind, length = struct.unpack_from("<HH", extra)
        if kind == _EXTENDED_TIMESTAMP and length >= 5 and extra[4] & 1:  # noqa: PLR2004 - flags, then mtime
            return float(struct.unpack_from("<i", extra, 5)[0])
        extra = extra[4 + length :]
    return time.mktime((*info.date_time, 0, 0, -1))


_TOOL = "unsquashfs"
_SHOWN = 300


def squashfs_members(path: Path, advance: Callable[[int], None]) -> Iterator[MemberAndContent]:
    """All members of an image with contents; ExecutionEnvironmentError if no tool of this machine reads it."""
    tool = shutil.which(_TOOL)
    if tool is None:
        raise ExecutionEnvironmentError(
            f"cannot unpack the execution environment {path}: it is a squashfs image, and this machine has no {_TOOL}; "
            "install it (squashfs-tools), or pack the environment as a tar"
        )
    with tempfile.TemporaryDirectory(prefix="naiad-squashfs-") as scratch:
        folder = Path(scratch, "image")
        command = [tool, "-no-progress", "-no-xattrs", "-dest", str(folder), str(path)]
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        with ended_with_group(process):
            _, errors = process.communicate()
        if process.returncode != 0:
            said = errors.decode("utf-8", "replace").strip().replace("\n", " | ")[-_SHOWN:]
            raise ExecutionEnvironmentError(
                f"the execution environment {path} is truncated or damaged: {_TOOL} cannot read it ({said}); copy or "
                "pack it again"
            )
        advance(path.stat().st_size)
        yield from _members(folder, "")


def _members(folder: Path, above: str) -> Iterator[MemberAndContent]:
    with os.scandir(folder) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    for entry in found:
        facts = entry.stat(follow_symlinks=False)
        name = f"{above}{entry.name}"
        kind = _kind(facts.st_mode)
        target = os.readlink(entry.path) if kind is MemberKind.SYMLINK else ""  # noqa: PTH115 - of a DirEntry
        size = facts.st_size if kind is MemberKind.FILE else 0
        member = Member(name, kind, size, stat.S_IMODE(facts.st_mode), facts.st_mtime, target)
        if kind is MemberKind.FILE:
            with open(entry.path, "rb") as content:  # noqa: PTH123 - of a DirEntry
                yield member, FileMemberContent(content)
        else:
            yield member, None
        if kind is MemberKind.DIRECTORY:
            yield from _members(Path(entry.path), f"{name}/")


def _kind(mode: int) -> MemberKind:
    kinds = {
        stat.S_IFREG: MemberKind.FILE,
        stat.S_IFDIR: MemberKind.DIRECTORY,
        stat.S_IFLNK: MemberKind.SYMLINK,
        stat.S_IFIFO: MemberKind.FIFO,
        stat.S_IFCHR: MemberKind.DEVICE,
        stat.S_IFBLK: MemberKind.DEVICE,
    }
    return kinds.get(stat.S_IFMT(mode), MemberKind.OTHER)
