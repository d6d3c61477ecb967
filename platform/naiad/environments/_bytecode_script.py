"""Run by an environment's own interpreter: compile sources without usable bytecode if they are few.

Arguments: the limit for "few"; then optionally a cache tag, a magic number in hex, and the stale sources that the host
found for an interpreter with these. If the tag or the magic number is not this interpreter's, or none is given, the
script searches for stale sources itself.

Output: one line of JSON with `stale` (number of stale sources), `left` (how many remain uncompiled) and `looked`
(whether the script searched). Used only on environments in the store, which may be written to.
"""

# ruff: noqa: PTH116, PTH118, PTH123, T201
# No pathlib: the script walks up to 30,000 files, and os.walk is several times faster.

import importlib.util
import json
import os
import py_compile
import struct
import sys
import sysconfig

MARK = "naiad-bytecode:"
# Models never import these, and they contain files with deliberate syntax errors.
SKIPPED = {"__pycache__", "test", "tests", "idlelib", "lib2to3", "turtledemo"}


def is_fresh(source: str) -> bool:
    """Whether Python would use the bytecode beside a source (PEP 552: magic, flags, then mtime and size)."""
    try:
        with open(importlib.util.cache_from_source(source), "rb") as file:
            head = file.read(16)
        flags, mtime, size = struct.unpack("<III", head[4:16])
        facts = os.stat(source)
    except (OSError, struct.error):
        return False
    expected = [int(facts.st_mtime) & 0xFFFFFFFF, facts.st_size & 0xFFFFFFFF]
    return head[:4] == importlib.util.MAGIC_NUMBER and (bool(flags) or [mtime, size] == expected)


def stale_sources() -> "list[str]":
    """Every importable source without usable bytecode."""
    found = set()  # type: set[str]
    for name in ("stdlib", "purelib", "platlib"):
        for folder, folders, files in os.walk(sysconfig.get_path(name)):
            folders[:] = [child for child in folders if child not in SKIPPED]
            sources = (os.path.join(folder, file) for file in files if file.endswith(".py"))
            found.update(source for source in sources if not is_fresh(source))
    return sorted(found)


def has_stale_list() -> bool:
    """Whether the arguments list the stale sources for this very interpreter."""
    return sys.argv[2:4] == [sys.implementation.cache_tag, importlib.util.MAGIC_NUMBER.hex()]


def main() -> None:
    searched = not has_stale_list()
    stale = stale_sources() if searched else sys.argv[4:]
    few = len(stale) <= int(sys.argv[1])
    for source in stale if few else ():
        try:
            py_compile.compile(source, doraise=True)
        except (py_compile.PyCompileError, OSError, ValueError):
            continue  # a template or a sample of invalid syntax; importing it would fail too
    print(MARK + json.dumps({"stale": len(stale), "left": 0 if few else len(stale), "looked": searched}))


main()
