"""ELF files of environments: needed libraries, search paths of libraries, required versions of symbols; changing paths.

`naiad_stub.native.elf` reads them. A search path is overwritten in the string table, without patchelf. It can become
shorter but never longer, because nothing in the file moves.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

from naiad_stub.native.elf import IDENTITY, MALFORMED, ElfError, ElfFile
from packaging.version import Version

from naiad.core.errors import ExecutionEnvironmentError

_DT_VERNEED, _DT_VERNEEDNUM = 0x6FFFFFFE, 0x6FFFFFFF
_NEED = struct.Struct("<HHIII")
_AUX = struct.Struct("<IHHII")
_GLIBC = "GLIBC_"


def read_dynamic_section(path: Path) -> ElfFile | None:
    """The dynamic section of a file; None if it is not a 64-bit little-endian ELF file, or is linked statically."""
    with path.open("rb") as file:
        head = file.read(len(IDENTITY))
        if head != IDENTITY:
            return None
        data = head + file.read()
    try:
        return ElfFile(data)
    except ElfError:
        # Separate debug files keep the headers of the original, but not the contents.
        return None


def overwrite_search_path(path: Path, section: ElfFile, new: str) -> None:
    """Overwrite the search path of a file; ExecutionEnvironmentError if *new* is longer than the existing one."""
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


def required_versions(path: Path) -> frozenset[tuple[str, str]]:
    """Libraries and symbol versions that a file needs: `("libc.so.6", "GLIBC_2.17")`. Empty for non-ELF files."""
    file = read_dynamic_section(path)
    if file is None or _DT_VERNEED not in file.values:
        return frozenset()
    try:
        return frozenset(_needs(file, file.offset_of(file.values[_DT_VERNEED]), file.values.get(_DT_VERNEEDNUM, 0)))
    except MALFORMED:
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


def _needs(file: ElfFile, table: int, count: int) -> Iterator[tuple[str, str]]:
    position = table
    for _ in range(count):
        _, entries, library, first, step = _NEED.unpack_from(file.data, position)
        entry = position + first
        for _ in range(entries):
            _, _, _, name, following = _AUX.unpack_from(file.data, entry)
            yield file.string(library), file.string(name)
            entry += following
        position += step
