"""Reading the members of a tar from a stream, with a fast path for ordinary files.

`tarfile` reads every dialect, but parsing one header takes as long as the kernel needs to create a small file. The fast
path parses the headers that nearly all members have: a regular file, alone or after one pax record block with its exact
time, as conda-pack writes them. Every other header, and every ambiguous one, is left to `tarfile`.

Measured with an environment of 424 MB in 12,600 files (conda-pack's tar.gz, two cores): 2.3 s, without the fast path
3.1 s, with `tarfile` in stream mode 7.2 s, with `TarFile.extractall` 7.7 s.
"""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator, Sequence
from typing import IO, cast

from naiad.environments.archives.decompression import ForwardReader
from naiad.environments.archives.member import FileMemberContent, Member, MemberAndContent, MemberContent, MemberKind

_BLOCK = 512
_FILE, _RECORDS = b"0", b"x"
_MAGICS = (b"ustar\x0000", b"ustar  \0")
_RECORD = re.compile(rb"([1-9]\d{0,2}) ([a-z]+)=")
# Keywords of pax records. The first two are used; the others can be ignored.
_UNDERSTOOD = frozenset((b"path", b"mtime", b"atime", b"ctime", b"uid", b"gid", b"uname", b"gname"))
_TIME = re.compile(r"\d{1,12}(\.\d*)?")


def tar_members(reader: ForwardReader) -> Iterator[MemberAndContent]:
    """All members with their contents. A content is valid until the next member is requested."""
    with tarfile.open(fileobj=cast("IO[bytes]", reader), mode="r:") as archive:
        # Opening reads the first header. Without one, Python 3.10 would seek to a place before the archive's start.
        while archive.offset and (info := archive.next()) is not None:
            member = _member(info)
            yield member, _content(archive, info, reader) if member.kind is MemberKind.FILE else None
            # Global pax records apply to every member, so then `tarfile` parses all headers.
            while not archive.pax_headers:
                reader.seek(archive.offset)
                found = _parse_regular(reader.peek(3 * _BLOCK))
                if found is None:
                    break
                member, head = found
                reader.seek(archive.offset + head)
                archive.offset += head + -(-member.size // _BLOCK) * _BLOCK
                yield member, _StreamContent(reader, member.size)
    if not _is_end_mark(reader.read_to_end()):
        # `tarfile` accepts a stream that was cut between two members.
        raise EOFError("it ends before the end mark of a tar")


class _StreamContent:
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
    # `extractfile` returns a seekable file, which costs more than reading a small one. Only sparse files need it.
    sparse = archive.extractfile(info) if info.issparse() else None
    return _StreamContent(reader, info.size) if sparse is None else FileMemberContent(sparse)


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


def _parse_regular(blocks: bytes) -> tuple[Member, int] | None:
    """The member described by these header blocks and the size of its header; None if `tarfile` must parse them."""
    if blocks[156:157] == _FILE:
        member = _parse_header(blocks[:_BLOCK])
        return None if member is None else (member, _BLOCK)
    if blocks[156:157] == _RECORDS and blocks[2 * _BLOCK + 156 : 2 * _BLOCK + 157] == _FILE:
        records, member = _records(blocks), _parse_header(blocks[2 * _BLOCK :])
        if records is not None and member is not None:
            name, mtime = records.get(b"path"), records.get(b"mtime")
            return member._replace(
                name=member.name if name is None else name.rstrip("/"),
                mtime=member.mtime if mtime is None else float(mtime),
            ), 3 * _BLOCK
    return None


def _parse_header(block: bytes) -> Member | None:
    """The header of a regular file, in ustar (POSIX 1003.1-1988) or GNU form; None if it is unusual."""
    if not _is_valid_header(block):
        return None
    mode, size, mtime = _number(block[100:108]), _number(block[124:136]), _number(block[136:148])
    name, prefix = block[:100].partition(b"\0")[0], block[345:500].partition(b"\0")[0]
    if prefix:
        name = prefix + b"/" + name
    if mode < 0 or size < 0 or mtime < 0 or not name.isascii():
        return None
    return Member(name.decode("ascii"), MemberKind.FILE, size, mode, mtime)


def _is_valid_header(block: bytes) -> bool:
    if len(block) < _BLOCK or block[257:265] not in _MAGICS:
        return False
    # The checksum is computed with its own field as spaces. Removing the zeros first makes `sum` several times faster.
    counted = (block[:148] + b" " * 8 + block[156:]).replace(b"\0", b"")
    return sum(counted) == _number(block[148:156])


def _number(field: bytes) -> int:
    """An octal number; -1 for anything else, such as the base-256 numbers of large files."""
    digits = field.rstrip(b"\0 ").lstrip(b" ")
    try:
        return int(digits, 8) if digits.isdigit() else -1
    except ValueError:
        return -1


def _records(blocks: bytes) -> dict[bytes, str] | None:
    """The pax records before a header, if they fit into one block and contain only known keywords, else None."""
    size = _number(blocks[124:136])
    if not 0 < size <= _BLOCK or not _is_valid_header(blocks[:_BLOCK]):
        return None
    found: dict[bytes, str] = {}
    data = blocks[_BLOCK : _BLOCK + size]
    while data:
        # "30 mtime=1321711775.987654321\n": the leading length covers the whole record.
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
    """Whether these are the two zero blocks that end every complete tar."""
    return len(tail) == 2 * _BLOCK and not any(tail)
