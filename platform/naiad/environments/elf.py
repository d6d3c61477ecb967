"""Reading ELF files: needed libraries, library search paths, and required versions of symbols; changing search paths.

Supports 64-bit little-endian files, which covers every Linux platform with published CPython wheels. A search path is
overwritten in the string table, without patchelf. It can become shorter but never longer, because nothing in the file
moves.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from packaging.version import Version

from naiad.core.errors import ExecutionEnvironmentError

__all__ = [
    "DynamicSection",
    "newest_glibc",
    "overwrite_search_path",
    "read_dynamic_section",
    "read_dynamic_values",
    "required_versions",
    "string_at",
]

_MAGIC = b"\x7fELF\x02\x01"  # 64 bits, little-endian
_PROGRAM_HEADER = struct.Struct("<IIQQQQQQ")
_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_NEEDED, _DT_STRTAB, _DT_RPATH, _DT_RUNPATH = 1, 5, 15, 29


@dataclass(frozen=True)
class DynamicSection:
    """The dynamic section of an ELF file.

    Attributes:
        needed: Names of the needed libraries.
        search_path: RUNPATH, or RPATH without a RUNPATH; empty without either.
        search_path_offset: Offset of the search path in the file; 0 without one.
    """

    needed: tuple[str, ...]
    search_path: str
    search_path_offset: int


def read_dynamic_section(path: Path) -> DynamicSection | None:
    """The dynamic section of a file; None if it is not a 64-bit little-endian ELF file, or is linked statically."""
    data = _elf(path)
    try:
        return _parse(data) if data is not None else None
    except (struct.error, ValueError):
        # Separate debug files keep the headers of the original, but not the contents.
        return None


def read_dynamic_values(path: Path) -> tuple[bytes, dict[int, int], Callable[[int], int | None]] | None:
    """Bytes of a file, first value of each dynamic tag, and a function from addresses to file offsets."""
    data = _elf(path)
    try:
        loads, dynamic = _segments(data) if data is not None else ([], None)
        if data is None or dynamic is None:
            return None
        values = dict(reversed(list(_dynamic_entries(data, *dynamic))))
    except struct.error:
        return None
    return data, values, partial(_file_offset, loads)


def overwrite_search_path(path: Path, section: DynamicSection, new: str) -> None:
    """Overwrite the search path of a file with *new*.

    Raises:
        ExecutionEnvironmentError: If *new* is longer than the existing search path.
    """
    old, replacement = section.search_path.encode(), new.encode()
    if len(replacement) > len(old):
        raise ExecutionEnvironmentError(
            f"cannot make {path} relocatable: its library search path '{section.search_path}' has room for "
            f"{len(old)} bytes and '{new}' needs {len(replacement)}; use another Python interpreter, one installed "
            f"at a longer path or linked statically"
        )
    with path.open("r+b") as file:
        file.seek(section.search_path_offset)
        file.write(replacement.ljust(len(old), b"\0"))


def string_at(data: bytes, offset: int) -> str:
    """The null-terminated string at an offset."""
    return data[offset : data.index(b"\0", offset)].decode(errors="surrogateescape")


def _elf(path: Path) -> bytes | None:
    with path.open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            return None
        file.seek(0)
        return file.read()


def _segments(data: bytes) -> tuple[list[tuple[int, int, int]], tuple[int, int] | None]:
    """Address, offset and size of each PT_LOAD segment; offset and size of the dynamic section."""
    loads: list[tuple[int, int, int]] = []
    dynamic: tuple[int, int] | None = None
    for kind, _, offset, address, _, size, _, _ in _program_headers(data):
        if kind == _PT_LOAD:
            loads.append((address, offset, size))
        elif kind == _PT_DYNAMIC:
            dynamic = (offset, size)
    return loads, dynamic


def _parse(data: bytes) -> DynamicSection | None:
    loads, dynamic = _segments(data)
    if dynamic is None:
        return None
    entries = list(_dynamic_entries(data, *dynamic))
    values = dict(reversed(entries))  # the first value of each tag counts
    strings = _file_offset(loads, values[_DT_STRTAB]) if _DT_STRTAB in values else None
    if strings is None:
        return None
    needed = tuple(string_at(data, strings + value) for tag, value in entries if tag == _DT_NEEDED)
    # The loader ignores RPATH if there is a RUNPATH (ld.so(8)).
    path = values.get(_DT_RUNPATH, values.get(_DT_RPATH))
    if path is None:
        return DynamicSection(needed, "", 0)
    return DynamicSection(needed, string_at(data, strings + path), strings + path)


def _program_headers(data: bytes) -> Iterator[tuple[int, ...]]:
    (table,) = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    for index in range(count):
        yield _PROGRAM_HEADER.unpack_from(data, table + index * size)


def _dynamic_entries(data: bytes, offset: int, size: int) -> Iterator[tuple[int, int]]:
    for position in range(offset, offset + size - 15, 16):
        tag, value = struct.unpack_from("<qQ", data, position)
        if tag == 0:
            return
        yield tag, value


def _file_offset(loads: list[tuple[int, int, int]], address: int) -> int | None:
    for start, offset, size in loads:
        if start <= address < start + size:
            return offset + address - start
    return None


_DT_VERNEED, _DT_VERNEEDNUM = 0x6FFFFFFE, 0x6FFFFFFF
_NEED = struct.Struct("<HHIII")
_AUX = struct.Struct("<IHHII")
_GLIBC = "GLIBC_"


def required_versions(path: Path) -> frozenset[tuple[str, str]]:
    """Libraries and symbol versions that a file needs: `("libc.so.6", "GLIBC_2.17")`. Empty for non-ELF files."""
    facts = read_dynamic_values(path)
    if facts is None:
        return frozenset()
    data, values, offset_of = facts
    try:
        strings, table = offset_of(values.get(_DT_STRTAB, 0)), offset_of(values.get(_DT_VERNEED, 0))
        if strings is None or table is None:
            return frozenset()
        return frozenset(_needs(data, strings, table, values.get(_DT_VERNEEDNUM, 0)))
    except (struct.error, ValueError):
        return frozenset()


def newest_glibc(paths: Iterable[Path]) -> str:
    """The newest glibc version that any of these files needs, empty if none needs glibc."""
    versions = {
        version.removeprefix(_GLIBC)
        for path in paths
        for _, version in required_versions(path)
        if version.startswith(_GLIBC) and version[len(_GLIBC) : len(_GLIBC) + 1].isdigit()
    }
    return max(versions, key=Version, default="")


def _needs(data: bytes, strings: int, table: int, count: int) -> Iterator[tuple[str, str]]:
    position = table
    for _ in range(count):
        _, entries, file, first, step = _NEED.unpack_from(data, position)
        entry = position + first
        for _ in range(entries):
            _, _, _, name, following = _AUX.unpack_from(data, entry)
            yield string_at(data, strings + file), string_at(data, strings + name)
            entry += following
        position += step
