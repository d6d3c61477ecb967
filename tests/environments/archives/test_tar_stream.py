"""What is read of a tar is what `tarfile` reads of it, whichever of the two ways a header took."""

from __future__ import annotations

import io
import random
import tarfile
from collections.abc import Iterator

import pytest
from environments.makers import member

from naiad.environments.archives.decompression import ForwardReader
from naiad.environments.archives.formats import ARCHIVE_ERRORS
from naiad.environments.archives.member import MemberKind
from naiad.environments.archives.tar_stream import tar_members

DIALECTS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
NAMES = ("a", "./b", "d/" * 60 + "deep", "with space", "x" * 99, "y" * 101, "lib/" + "z" * 250, "ümlaut", "slash/", "-")
TIMES = (0, 1, 1_700_000_000, 1_700_000_000.25, 8**11 + 5, -3)
SIZES = (0, 1, 511, 512, 513, 70_000)


def write(dialect: int, infos: list[tuple[tarfile.TarInfo, bytes]], **options: object) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:", format=dialect, **options) as archive:
        for info, content in infos:
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return file.getvalue()


def some(seed: str, dialect: int) -> list[tuple[tarfile.TarInfo, bytes]]:
    dice = random.Random(seed)
    found = []
    for number in range(60):
        name = dice.choice(NAMES)
        if dialect == tarfile.USTAR_FORMAT and len(name) > 100:
            name = f"short{number}"
        kind = dice.choice([tarfile.REGTYPE] * 6 + [tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.AREGTYPE])
        info = member(name, kind, "somewhere" if kind == tarfile.SYMTYPE else "", mode=dice.choice([0o644, 0o755]))
        info.mtime = dice.choice(TIMES) if dialect == tarfile.PAX_FORMAT else dice.choice(TIMES[:3])
        found.append((info, dice.randbytes(dice.choice(SIZES)) if info.isreg() else b""))
    return found


def in_chunks(data: bytes, seed: str) -> Iterator[bytes]:
    dice, at = random.Random(seed), 0
    while at < len(data):
        size = dice.choice([1, 100, 511, 512, 2000, 100_000])
        yield data[at : at + size]
        at += size


def ours(data: bytes, seed: str = "") -> list[tuple[object, ...]]:
    found = []
    for one, content in tar_members(ForwardReader(in_chunks(data, seed))):
        held = b"" if content is None else b"".join(iter(lambda c=content: b"".join(c.read_pieces(40_000)), b""))
        found.append((*one[:2], *one[2:], held))
    return found


def theirs(data: bytes) -> list[tuple[object, ...]]:
    kinds = (
        (tarfile.TarInfo.isreg, MemberKind.FILE),
        (tarfile.TarInfo.isdir, MemberKind.DIRECTORY),
        (tarfile.TarInfo.issym, MemberKind.SYMLINK),
    )
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
        return [
            (
                *(info.name, next(kind for test, kind in kinds if test(info))),
                *(info.size, info.mode, info.mtime, info.linkname),
                archive.extractfile(info).read() if info.isreg() else b"",
            )
            for info in archive
        ]


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("round_", range(6))
def test_members_are_those_that_tarfile_finds(dialect, round_):
    data = write(DIALECTS[dialect], some(f"{dialect}{round_}", DIALECTS[dialect]))

    assert ours(data, str(round_)) == theirs(data)


@pytest.mark.parametrize(
    "records",
    [
        {"SCHILY.xattr.user.x": "1"},
        {"comment": "x"},
        {"path": "another/name"},
        {"path": "with/slash/"},
        {"mtime": "5.5"},
        {"mtime": "nonsense"},
        {"size": "3"},
        {"linkpath": "x", "uid": "7"},
        {"atime": "1.5", "ctime": "2.5", "uname": "somebody"},
        {"GNU.sparse.name": "sparse", "GNU.sparse.realsize": "3"},
    ],
)
@pytest.mark.parametrize("for_all", [False, True])
def test_records_beside_a_header_count_as_they_do_for_tarfile(records, for_all):
    first, second = member("first"), member("name")
    options: dict[str, object] = {"pax_headers": records} if for_all else {}
    second.pax_headers = {} if for_all else dict(records)
    data = write(tarfile.PAX_FORMAT, [(first, b"one"), (second, b"two"), (member("third"), b"33333")], **options)

    assert ours(data) == theirs(data)


def test_a_header_that_is_spoilt_anywhere_is_no_other_member_than_tarfile_takes_it_for():
    infos = [(member("first"), b"1"), (member("second", mode=0o755), b"22"), (member("third"), b"3")]
    whole = write(tarfile.USTAR_FORMAT, infos)
    for place in range(1024, 1536):
        spoilt = whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]
        try:
            expected: object = theirs(spoilt)
        except tarfile.TarError:
            expected = None
        try:
            found: object = ours(spoilt)
        except ARCHIVE_ERRORS:
            found = None

        assert found in (expected, None), place


def test_a_number_in_binary_is_read_as_well():
    info = member("large")
    info.mtime = 8**12
    data = write(tarfile.GNU_FORMAT, [(member("first"), b""), (info, b"x")])

    assert ours(data) == theirs(data)
    assert ours(data)[1][4] == 8**12
