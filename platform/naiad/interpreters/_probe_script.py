"""Run by a foreign interpreter to say what it is; prints one line of JSON. Must parse on Python 3.5 and newer.

Kept as a file of its own so that linters and tests see it; `probe` reads its text and passes it with `-c`.
"""

# ruff: noqa: PTH116, PTH119, PTH123, ICN001, UP031, T201, BLE001
# No pathlib: it would be imported for this alone. Old syntax, so that an old Python answers with its version instead
# of a syntax error. Anything at all can go wrong when a broken numpy is imported.

import json
import os
import struct
import sys
import sysconfig

MARK = "naiad-probe:"


def fresh(module: object) -> bool:
    """Whether a module's bytecode on disk can be used as it is (PEP 552: magic, flags, then mtime and size)."""
    source, cached = getattr(module, "__file__", None), getattr(module, "__cached__", None)
    if not source or not cached or not source.endswith(".py"):
        return True
    try:
        with open(cached, "rb") as file:
            head = file.read(16)
        flags, mtime, size = struct.unpack("<III", head[4:16])
        facts = os.stat(source)
    except (OSError, struct.error):
        return False
    return bool(flags) or [mtime, size] == [int(facts.st_mtime) & 0xFFFFFFFF, facts.st_size & 0xFFFFFFFF]


def mostly_fresh() -> bool:
    """Whether what is imported by now came with bytecode; a few stale files are nobody's concern."""
    modules = [fresh(module) for module in list(sys.modules.values())]
    return modules.count(False) * 10 <= len(modules)


def mapped_libpython() -> "str | None":
    """The libpython in use, None where it is part of the executable or cannot be told."""
    try:
        with open("/proc/self/maps") as file:
            for line in file:
                path = line.split(None, 5)[-1].strip()
                if os.path.basename(path).startswith("libpython3."):
                    return path
    except OSError:
        pass
    return None


def numpy_version() -> "tuple[str | None, str | None]":
    """Version and error of importing numpy, one of them None."""
    try:
        import numpy
    except BaseException as error:
        return None, "%s: %s" % (type(error).__name__, error)
    return str(getattr(numpy, "__version__", "unknown")), None


def main() -> None:
    """Print what this interpreter is."""
    numpy, numpy_error = numpy_version()
    found = {
        "version": list(sys.version_info[:3]),
        "implementation": sys.implementation.name,
        "cache_tag": sys.implementation.cache_tag or "",
        "abi": sysconfig.get_config_var("SOABI") or "",
        "prefix": sys.prefix,
        "base_prefix": sys.base_prefix,
        "bits": struct.calcsize("P") * 8,
        "platform": sysconfig.get_platform(),
        "libpython": mapped_libpython(),
        "site_dirs": sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}),
        "numpy": numpy,
        "numpy_error": numpy_error,
        "has_bytecode": mostly_fresh(),
    }
    print(MARK + json.dumps(found))


main()
