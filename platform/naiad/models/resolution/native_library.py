"""What the library of a native backend needs of the machine, read from its file without loading it."""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path

from naiad_stub.native.elf import ElfError, SharedObject, read_shared_object
from naiad_stub.native.signatures import REQUIRED_ENTRY_POINT

from naiad.models.resolution.files import Files

_SERVER = re.compile(r"libtritonserver(-[0-9a-f]+)?\.so")
_LOADER_CACHE = Path("/etc/ld.so.cache")
_SET_CONFIG = "TRITONBACKEND_ModelSetConfig"


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeLibrary:
    """The library of a native backend."""

    path: Path
    needed: tuple[str, ...] = ()  # the libraries that it needs, in order; those that naiad provides itself are left out
    missing: tuple[str, ...] = ()  # those of them that the loader will not find
    may_complete: bool = False  # whether it may complete a model's configuration, as it imports the function for that
    problem: str = ""  # why it cannot be loaded, apart from missing libraries; empty if nothing is known

    def describe(self) -> str:
        if self.problem:
            return self.problem
        names = [f"{name} (missing)" if name in self.missing else name for name in self.needed]
        return f"needs {', '.join(names)}" if names else "needs no other library"


def examine_library(path: Path, files: Files) -> NativeLibrary:
    """Read the file of a library, and search the libraries that it needs as the loader does."""
    try:
        found = read_shared_object(files.read(path))
    except OSError as error:
        return NativeLibrary(path=path, problem=f"cannot be read: {error.strerror or error}")
    except ElfError as error:
        return NativeLibrary(path=path, problem=f"cannot be loaded: {error}")
    needed = tuple(name for name in found.needed if not _SERVER.fullmatch(name))
    return NativeLibrary(
        path=path,
        needed=needed,
        missing=tuple(name for name in needed if not _is_found(name, path, found, files)),
        may_complete=_SET_CONFIG in found.imports,
        problem=_problem(found),
    )


def _problem(found: SharedObject) -> str:
    machine = platform.machine()
    if found.machine != machine:
        return f"cannot be loaded: it is compiled for {found.machine}, and this machine is {machine}"
    if REQUIRED_ENTRY_POINT not in found.exports:
        return f"is not a backend: it does not export {REQUIRED_ENTRY_POINT}"
    return ""


def _is_found(name: str, path: Path, found: SharedObject, files: Files) -> bool:
    """Whether the loader finds a needed library (ld.so(8)): by search paths, its cache, or the system's folders."""
    if "/" in name:
        return files.exists(Path(name))
    machine = platform.machine()
    folders = [
        folder.replace("$ORIGIN", str(path.parent)).replace("${ORIGIN}", str(path.parent))
        for folder in found.search_path.split(":")
    ]
    folders += os.environ.get("LD_LIBRARY_PATH", "").split(":")
    folders += [
        f"/lib/{machine}-linux-gnu",
        f"/usr/lib/{machine}-linux-gnu",
        "/lib64",
        "/usr/lib64",
        "/lib",
        "/usr/lib",
    ]
    if any(folder and files.exists(Path(folder) / name) for folder in folders):
        return True
    try:
        # The cache lists the names that it knows as null-terminated strings.
        return b"\0" + name.encode() + b"\0" in files.read(_LOADER_CACHE)
    except OSError:
        return False
