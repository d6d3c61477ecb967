"""Which sources of a fresh entry would have to be compiled when they are imported, told without reading a file again.

Unpacking kept what each file of bytecode begins with, so that only a source's own time and size are needed. Which
interpreter the bytecode is for is told by the bytecode itself: nearly all of it is for one.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from naiad.environments.store.file_digests import HEAD_BYTES, Found, Written

__all__ = ["Kind", "bytecode_of", "main_kind", "stale_sources"]

# PEP 552: magic number, flags, and with flags of 0 its source's time and size.
_HEAD = struct.Struct("<4sIII")
_CACHE = "__pycache__"
# Never imported by a model, and full of files that are wrong on purpose.
_SKIPPED = frozenset({_CACHE, "test", "tests", "idlelib", "lib2to3", "turtledemo"})


class Kind(NamedTuple):
    """What bytecode is for.

    Attributes:
        tag: As in its files' names, `cpython-310`.
        magic: What it begins with.
    """

    tag: str
    magic: bytes


def main_kind(written: Mapping[str, Written]) -> Kind | None:
    """What most of the bytecode is for, None where there is none."""
    kinds: Counter[Kind] = Counter()
    for name, file in written.items():
        if file.head:
            stem, _, tag = name[:-4].rpartition(".")
            if f"/{_CACHE}/" in stem and not tag.startswith("opt-"):
                kinds[Kind(tag, file.head[:4])] += 1
    return kinds.most_common(1)[0][0] if kinds else None


def stale_sources(folder: str, files: Mapping[str, Found], written: Mapping[str, Written], kind: Kind) -> list[str]:
    """Every source an import could meet that has no usable bytecode.

    Args:
        folder: The environment's name among the files, with a slash at its end; empty if they are all of it.
        files: What is there now.
        written: What was unpacked.
        kind: What bytecode is usable.
    """
    libraries = f"{folder}lib"  # and lib64
    return sorted(
        name
        for name, found in files.items()
        if name.endswith(".py")
        and name.startswith(libraries)
        and _SKIPPED.isdisjoint(name.split("/"))
        and not _is_fresh(found, bytecode_of(name, kind.tag), files, written, kind)
    )


def bytecode_of(source: str, tag: str) -> str:
    """Where the bytecode of a source lies."""
    parent, slash, name = source.rpartition("/")
    return f"{parent}{slash}{_CACHE}/{name[:-3]}.{tag}.pyc"


def _is_fresh(
    source: Found, bytecode: str, files: Mapping[str, Found], written: Mapping[str, Written], kind: Kind
) -> bool:
    before, now = written.get(bytecode), files.get(bytecode)
    if before is None or now is None or not now.is_same(before) or len(before.head) != HEAD_BYTES:
        return False
    magic, flags, mtime, size = _HEAD.unpack(before.head)
    seconds = source.mtime_ns // 1_000_000_000
    return magic == kind.magic and (bool(flags) or (mtime, size) == (seconds & 0xFFFFFFFF, source.size & 0xFFFFFFFF))
