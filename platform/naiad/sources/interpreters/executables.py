"""Reading headers of executables, to report a foreign platform instead of `Exec format error`."""

from __future__ import annotations

import os
import platform
import struct
import sys
from dataclasses import dataclass
from pathlib import Path

from naiad.core.errors import ExecutionEnvironmentError
from naiad.core.real_paths import real_path

_MACH_O = {b"\xcf\xfa\xed\xfe", b"\xce\xfa\xed\xfe", b"\xfe\xed\xfa\xcf", b"\xfe\xed\xfa\xce", b"\xca\xfe\xba\xbe"}
_ELF_MACHINES = {3: "i386", 40: "arm", 21: "ppc64", 22: "s390x", 62: "x86_64", 183: "aarch64", 243: "riscv64"}
_MACHINE_ALIASES = {"amd64": "x86_64", "arm64": "aarch64", "ppc64le": "ppc64", "i686": "i386"}
_PT_INTERP = 3
HEADER_BYTES = 64 * 1024  # number of bytes that are read of a file


@dataclass(frozen=True, slots=True)
class Executable:
    """The header of a file: `linux` (ELF, with processor and loader), `macos`, `windows`, `script` or `unknown`."""

    system: str
    machine: str = ""
    loader: str = ""


def read_header(path: Path) -> Executable:
    """The header of a file."""
    with path.open("rb") as file:
        return parse_header(file.read(HEADER_BYTES))


def parse_header(head: bytes) -> Executable:
    """The header in the first bytes of a file, at most `HEADER_BYTES`."""
    if head[:4] == b"\x7fELF":
        return _read_elf(head)
    if head[:4] in _MACH_O:
        return Executable("macos")
    if head[:2] == b"MZ":
        return Executable("windows")
    return Executable("script" if head[:2] == b"#!" else "unknown")


def _read_elf(head: bytes) -> Executable:
    try:
        wide, order = head[4] == 2, "<" if head[5] == 1 else ">"  # noqa: PLR2004 - EI_CLASS: 2 is 64 bit
        (number,) = struct.unpack_from(order + "H", head, 18)
        machine = _ELF_MACHINES.get(number, f"ELF machine {number}")
        loader = _elf_loader(head, order) if wide else ""
    except (struct.error, IndexError):
        return Executable("unknown")
    return Executable("linux", machine, loader)


def _elf_loader(head: bytes, order: str) -> str:
    (table,) = struct.unpack_from(order + "Q", head, 32)
    size, count = struct.unpack_from(order + "HH", head, 54)
    for index in range(count):
        kind, _flags, offset, _address, _physical, length = struct.unpack_from(
            order + "IIQQQQ", head, table + index * size
        )
        if kind == _PT_INTERP:
            return head[offset : offset + length].rstrip(b"\0").decode("ascii", "replace")
    return ""


def require_runs_here(interpreter: Path, *, where: str) -> None:
    """Reject an interpreter (links are followed) that was built for another system or processor."""
    try:
        found = read_header(interpreter)
    except OSError as error:
        raise ExecutionEnvironmentError(f"{where}: cannot read {interpreter}: {error.strerror or error}") from error
    here = platform.machine().lower()
    here = _MACHINE_ALIASES.get(here, here)
    own = "macos" if sys.platform == "darwin" else "linux"
    foreign = _foreign_platform(found, own, here)
    if foreign:
        raise ExecutionEnvironmentError(
            f"{where} is for another platform: {interpreter} is built for {foreign}, this machine is {own} {here}; "
            f"build or pack the environment on {own} {here}"
        )
    if found.loader and not os.path.exists(found.loader):  # noqa: PTH110 - a plain string from the file's header
        raise ExecutionEnvironmentError(
            f"{where} is for another platform: {interpreter} needs the dynamic loader {found.loader}, which this "
            "machine does not have (a musl build on a glibc system, or the reverse); build it on a system like this"
        )


def explain_not_executable(program: Path) -> str:
    """Why the system may not execute a file, with what to do; empty unless its mode or its file system is the cause."""
    try:
        real = real_path(program)
        mode = real.stat().st_mode
        is_noexec = bool(os.statvfs(real).f_flag & os.ST_NOEXEC)
    except OSError:
        return ""
    if is_noexec:
        return (
            f"the file system at {_mount_of(real)} is mounted with noexec, so no program in it can be started; mount "
            "it without noexec, or put the environment elsewhere (for the store --env-store)"
        )
    if not mode & 0o111:
        return (
            f"{real} has lost its permission to be executed (mode {mode & 0o7777:o}), as copies by some tools and file "
            "systems do; copy the environment again with modes (`cp -a`, `tar -p`), or remove it from the store"
        )
    return ""


def _mount_of(path: Path) -> Path:
    return next(folder for folder in (path, *path.parents) if folder.is_mount())


def _foreign_platform(found: Executable, own: str, here: str) -> str:
    """The platform of the file if it is foreign, else empty. Scripts and unknown files are accepted."""
    if found.system in ("script", "unknown"):
        return ""
    if found.system != own:
        return f"{found.system} {found.machine}".strip()
    return f"{own} {found.machine}" if found.machine not in ("", here) else ""
