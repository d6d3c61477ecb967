"""Which sources have to be compiled, told from what unpacking saw and what is there now."""

from __future__ import annotations

import stat
import struct

import pytest

from naiad.environments.archives.file_writers import UnpackedFile
from naiad.environments.bytecode import BytecodeTarget, bytecode_name, find_bytecode_target, stale_sources
from naiad.environments.store.file_digests import FileState

KIND = BytecodeTarget("cpython-311", b"abcd")
SOURCE, CACHE = "lib/python3.11/m.py", "lib/python3.11/__pycache__/m.cpython-311.pyc"
TIME, SIZE = 1_700_000_000, 321


def head(*, magic: bytes = KIND.magic, flags: int = 0, mtime: int = TIME, size: int = SIZE) -> bytes:
    return struct.pack("<4sIII", magic, flags, mtime, size)


def found(size: int, seconds: int) -> FileState:
    return FileState("/somewhere", stat.S_IFREG | 0o644, size, seconds * 1_000_000_000 + 5)


def stale(head: bytes | None, *, source: tuple[int, int] = (SIZE, TIME), cache_time: int = TIME) -> list[str]:
    files = {SOURCE: found(*source)}
    written = {SOURCE: UnpackedFile(SIZE, TIME * 1_000_000_000 + 5, "")}
    if head is not None:
        files[CACHE] = found(999, cache_time)
        written[CACHE] = UnpackedFile(999, TIME * 1_000_000_000 + 5, "", head)
    return stale_sources("", files, written, KIND)


def test_bytecode_made_from_the_present_source_is_used():
    assert stale(head()) == []


@pytest.mark.parametrize(
    "given",
    [
        {"head": None},
        {"head": head(magic=b"abce")},
        {"head": head(mtime=TIME - 1)},
        {"head": head(size=SIZE + 1)},
        {"head": b"short"},
        {"head": head(), "source": (SIZE + 4, TIME)},
        {"head": head(), "source": (SIZE, TIME + 60)},
        {"head": head(), "cache_time": TIME + 60},
    ],
    ids=["none", "other Python", "other time", "other size", "cut short", "source grew", "source touched", "replaced"],
)
def test_any_other_bytecode_is_not(given):
    assert stale(**given) == [SOURCE]


def test_bytecode_that_is_valid_by_the_hash_of_its_source_needs_no_time():
    assert stale(head(flags=1, mtime=0, size=0)) == []


def test_only_what_can_be_imported_counts():
    names = ["lib/python3.11/test/x.py", "lib/python3.11/p/tests/x.py", "share/x.py", "lib/x.txt", "lib64/p/y.py"]

    assert stale_sources("", {name: found(1, 1) for name in names}, {}, KIND) == ["lib64/p/y.py"]


def test_an_environment_one_folder_below_is_examined_in_that_folder():
    files = {"inner/lib/x.py": found(1, 1), "lib/y.py": found(1, 1)}

    assert stale_sources("inner/", files, {}, KIND) == ["inner/lib/x.py"]


def test_the_kind_of_bytecode_is_that_of_most_files():
    def cache(name: str, tag: str, magic: bytes) -> tuple[str, UnpackedFile]:
        return bytecode_name(name, tag), UnpackedFile(20, 0, "", head(magic=magic))

    written = dict(
        [
            cache("lib/a.py", "cpython-311", b"abcd"),
            cache("lib/b.c.py", "cpython-311", b"abcd"),
            cache("lib/c.py", "cpython-39", b"old1"),
            cache("lib/d.py", "cpython-311.opt-1", b"abcd"),
            ("lib/legacy.pyc", UnpackedFile(20, 0, "", head())),
        ]
    )

    assert find_bytecode_target(written) == KIND
    assert find_bytecode_target({}) is None
