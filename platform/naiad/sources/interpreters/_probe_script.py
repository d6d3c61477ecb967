"""Run by a foreign interpreter: prints facts about it as one line of JSON. Must parse on Python 3.5 and newer.

`probe` reads this file and passes its text with `-c`.
"""

# ruff: noqa: PTH116, PTH119, PTH123, ICN001, UP031, T201, BLE001
# No pathlib: importing it would slow down the probe. Old syntax: an old Python then reports its version instead of a
# syntax error. BaseException: importing a broken numpy can raise anything.

import json
import os
import struct
import sys
import sysconfig

MARK = "naiad-probe:"


def is_fresh(module: object) -> bool:
    """Whether Python would use a module's bytecode on disk (PEP 552: magic, flags, then mtime and size)."""
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


def has_mostly_fresh_bytecode() -> bool:
    """Whether at least nine of ten imported modules have usable bytecode."""
    modules = [is_fresh(module) for module in list(sys.modules.values())]
    return modules.count(False) * 10 <= len(modules)


def mapped_libpython() -> "str | None":
    """The shared libpython in use, None if it is linked statically or unknown."""
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
    """Version of numpy and the error of importing it; one is None."""
    try:
        import numpy
    except BaseException as error:
        return None, "%s: %s" % (type(error).__name__, error)
    return str(getattr(numpy, "__version__", "unknown")), None


def main() -> None:
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
        "has_bytecode": has_mostly_fresh_bytecode(),
    }
    print(MARK + json.dumps(found))


main()
