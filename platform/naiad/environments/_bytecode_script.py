"""Run by an environment's own interpreter: find sources without usable bytecode, and compile them if they are few.

Arguments: how many are few; then, from who knows which they are, for what they were looked through (a tag and a magic
number), and they. Prints one line of JSON. Only for environments that are ours to write to.
"""

# ruff: noqa: PTH116, PTH118, PTH123, T201
# No pathlib: os.walk over 30,000 files is what this does.

import importlib.util
import json
import os
import py_compile
import struct
import sys
import sysconfig

MARK = "naiad-bytecode:"
# Never imported by a model, and full of files that are wrong on purpose.
SKIPPED = {"__pycache__", "test", "tests", "idlelib", "lib2to3", "turtledemo"}


def is_fresh(source: str) -> bool:
    """Whether the bytecode beside a source can be used as it is (PEP 552: magic, flags, then mtime and size)."""
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
    """Every source an import could meet that would have to be compiled first."""
    found = set()  # type: set[str]
    for name in ("stdlib", "purelib", "platlib"):
        for folder, folders, files in os.walk(sysconfig.get_path(name)):
            folders[:] = [child for child in folders if child not in SKIPPED]
            sources = (os.path.join(folder, file) for file in files if file.endswith(".py"))
            found.update(source for source in sources if not is_fresh(source))
    return sorted(found)


def told() -> bool:
    """Whether the arguments name what is to be compiled for this very interpreter."""
    return sys.argv[2:4] == [sys.implementation.cache_tag, importlib.util.MAGIC_NUMBER.hex()]


def main() -> None:
    """Compile what is few, and say how much is left."""
    looked = not told()
    stale = stale_sources() if looked else sys.argv[4:]
    few = len(stale) <= int(sys.argv[1])
    for source in stale if few else ():
        try:
            py_compile.compile(source, doraise=True)
        except (py_compile.PyCompileError, OSError, ValueError):
            continue  # a template or a sample of bad syntax: an import of it would fail as well
    print(MARK + json.dumps({"stale": len(stale), "left": 0 if few else len(stale), "looked": looked}))


main()
