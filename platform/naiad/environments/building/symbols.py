"""Which versions of libraries' symbols an ELF file asks for: what decides on how old a system it runs."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

from packaging.version import Version

from naiad.environments.building.elf import dynamic_facts, string_at

__all__ = ["newest_glibc", "required_versions"]

_DT_STRTAB, _DT_VERNEED, _DT_VERNEEDNUM = 5, 0x6FFFFFFE, 0x6FFFFFFF
_NEED = struct.Struct("<HHIII")
_AUX = struct.Struct("<IHHII")
_GLIBC = "GLIBC_"


def required_versions(path: Path) -> frozenset[tuple[str, str]]:
    """Library and version of the symbols that a file needs: `("libc.so.6", "GLIBC_2.17")`. Empty for other files."""
    facts = dynamic_facts(path)
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
    """The newest glibc that any of these files needs, empty if none needs any."""
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
