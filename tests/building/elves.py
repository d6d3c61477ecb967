"""Makes the least that is an ELF file with a dynamic section: headers, that section, its strings."""

from __future__ import annotations

import struct
from pathlib import Path

RPATH, RUNPATH = 15, 29
_HEADERS = 64 + 2 * 56


def write_elf(path: Path, search_path: str, *, tag: int = RUNPATH, needed: tuple[str, ...] = ("libc.so.6",)) -> Path:
    """Write such a file; an empty search path means none."""
    strings, entries = b"\0", []
    for kind, text in ((tag, search_path), *((1, name) for name in needed)):
        if not text:
            continue
        entries.append((kind, len(strings)))
        strings += text.encode() + b"\0"
    size = 16 * (len(entries) + 2)
    # The file is mapped at 0x1000, so that an address mistaken for an offset shows.
    entries += [(5, 0x1000 + _HEADERS + size), (0, 0)]
    dynamic = b"".join(struct.pack("<qQ", *entry) for entry in entries)
    total = _HEADERS + size + len(strings)
    header = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    header += struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, 2, 64, 0, 0)
    load = struct.pack("<IIQQQQQQ", 1, 5, 0, 0x1000, 0x1000, total, total, 0x1000)
    section = struct.pack("<IIQQQQQQ", 2, 6, _HEADERS, 0x1000 + _HEADERS, 0, size, size, 8)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(header + load + section + dynamic + strings)
    return path
