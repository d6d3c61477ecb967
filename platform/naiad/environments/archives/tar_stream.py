"""Reading the members of a tar from a stream.

`tarfile` knows every dialect, and takes as long for a header as the system takes to make a small file. So the headers
that nearly all members have are read here: an ordinary file, by itself or behind a record with its exact time, as
conda-pack writes them. Whatever is not exactly that, or could be read in two ways, is left to `tarfile`.
"""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator, Sequence
from typing import IO, cast

from naiad.environments.archives.decompression import ForwardReader
from naiad.environments.archives.member import FileMemberContent, Member, MemberAndContent, MemberContent, MemberKind

__all__ = ["tar_members"]

_BLOCK = 512
_FILE, _RECORDS = b"0", b"x"
_MAGICS = (b"ustar\x0000", b"ustar  \0")
_RECORD = re.compile(rb"([1-9]\d{0,2}) ([a-z]+)=")
# The first two count, the others say nothing that is used.
_UNDERSTOOD = frozenset((b"path", b"mtime", b"atime", b"ctime", b"uid", b"gid", b"uname", b"gname"))
_TIME = re.compile(r"\d{1,12}(\.\d*)?")


def tar_members(reader: ForwardReader) -> Iterator[MemberAndContent]:
    """Every member with its content, which must be read before the next is asked for.

    Raises:
        tarfile.TarError, EOFError: If it is damaged.
    """
    with tarfile.open(fileobj=cast("IO[bytes]", reader), mode="r:") as archive:
        while (info := archive.next()) is not None:
            member = _member(info)
            yield member, _content(archive, info, reader) if member.kind is MemberKind.FILE else None
            # Records for the whole archive would have to be applied to each member.
            while not archive.pax_headers:
                reader.seek(archive.offset)
                found = _ordinary(reader.peek(3 * _BLOCK))
                if found is None:
                    break
                member, head = found
                reader.seek(archive.offset + head)
                archive.offset += head + -(-member.size // _BLOCK) * _BLOCK
                yield member, _Part(reader, member.size)
    if not _is_end_mark(reader.read_to_end()):
        # `tarfile` takes a stream cut between two members for a complete one.
        raise EOFError("it ends before the end mark of a tar")


class _Part:
    """The next bytes of a stream, as a file."""

    def __init__(self, reader: ForwardReader, size: int) -> None:
        self._reader = reader
        self._left = size

    def read(self, size: int) -> bytes:
        data = self._reader.read(min(size, self._left))
        self._left -= len(data)
        return data

    def read_pieces(self, size: int) -> Sequence[bytes | memoryview]:
        found = self._reader.read_pieces(min(size, self._left))
        self._left -= sum(map(len, found))
        return found


def _content(archive: tarfile.TarFile, info: tarfile.TarInfo, reader: ForwardReader) -> MemberContent:
    # What `extractfile` gives can be read anywhere, which costs more than small files themselves; sparse ones need it.
    sparse = archive.extractfile(info) if info.issparse() else None
    return _Part(reader, info.size) if sparse is None else FileMemberContent(sparse)


def _member(info: tarfile.TarInfo) -> Member:
    return Member(
        name=info.name,
        kind=_kind(info),
        size=info.size,
        mode=info.mode,
        mtime=info.mtime,
        target=info.linkname,
    )


def _kind(info: tarfile.TarInfo) -> MemberKind:
    tests = (
        (info.isreg(), MemberKind.FILE),
        (info.isdir(), MemberKind.DIRECTORY),
        (info.issym(), MemberKind.SYMLINK),
        (info.islnk(), MemberKind.HARDLINK),
        (info.ischr() or info.isblk(), MemberKind.DEVICE),
        (info.isfifo(), MemberKind.FIFO),
    )
    return next((kind for holds, kind in tests if holds), MemberKind.OTHER)


def _ordinary(blocks: bytes) -> tuple[Member, int] | None:
    """The member whose header these bytes begin with and how long that is, if it is an ordinary file."""
    if blocks[156:157] == _FILE:
        member = _file(blocks[:_BLOCK])
        return None if member is None else (member, _BLOCK)
    if blocks[156:157] == _RECORDS and blocks[2 * _BLOCK + 156 : 2 * _BLOCK + 157] == _FILE:
        records, member = _records(blocks), _file(blocks[2 * _BLOCK :])
        if records is not None and member is not None:
            name, mtime = records.get(b"path"), records.get(b"mtime")
            return member._replace(
                name=member.name if name is None else name.rstrip("/"),
                mtime=member.mtime if mtime is None else float(mtime),
            ), 3 * _BLOCK
    return None


def _file(block: bytes) -> Member | None:
    """What the header of an ordinary file says, by POSIX 1003.1-1988 (`ustar`) and as GNU writes it."""
    if not _is_whole(block):
        return None
    mode, size, mtime = _number(block[100:108]), _number(block[124:136]), _number(block[136:148])
    name, prefix = block[:100].partition(b"\0")[0], block[345:500].partition(b"\0")[0]
    if prefix:
        name = prefix + b"/" + name
    if mode < 0 or size < 0 or mtime < 0 or not name.isascii():
        return None
    return Member(name.decode("ascii"), MemberKind.FILE, size, mode, mtime)


def _is_whole(block: bytes) -> bool:
    if len(block) < _BLOCK or block[257:265] not in _MAGICS:
        return False
    # The checksum counts its own field as spaces. Most of a header is zeros, which need not be added.
    counted = (block[:148] + b" " * 8 + block[156:]).replace(b"\0", b"")
    return sum(counted) == _number(block[148:156])


def _number(field: bytes) -> int:
    """An octal number; -1 for anything else, as the binary numbers of large files."""
    digits = field.rstrip(b"\0 ").lstrip(b" ")
    try:
        return int(digits, 8) if digits.isdigit() else -1
    except ValueError:
        return -1


def _records(blocks: bytes) -> dict[bytes, str] | None:
    """What the records before a header say of it, if they fill one block and say nothing out of the ordinary."""
    size = _number(blocks[124:136])
    if not 0 < size <= _BLOCK or not _is_whole(blocks[:_BLOCK]):
        return None
    found: dict[bytes, str] = {}
    data = blocks[_BLOCK : _BLOCK + size]
    while data:
        # "30 mtime=1321711775.987654321\n": the length counts all of that.
        record = _RECORD.match(data)
        end = int(record[1]) if record else 0
        if record is None or end <= record.end() or data[end - 1 : end] != b"\n":
            return None
        value = data[record.end() : end - 1]
        if record[2] not in _UNDERSTOOD or not value.isascii():
            return None
        found[record[2]] = value.decode("ascii")
        data = data[end:]
    return found if _TIME.fullmatch(found.get(b"mtime", "0")) else None


def _is_end_mark(tail: bytes) -> bool:
    """Whether these are the two empty blocks every complete tar ends with."""
    return len(tail) == 2 * _BLOCK and not any(tail)
