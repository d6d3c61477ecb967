"""What an image needs of a system: the loader, the C library and what binaries name; a user, and room to write."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from naiad.environments.archives.archive_writer import OutputMember
from naiad.environments.building.elf import read_dynamic_section
from naiad.errors import BundleError

__all__ = ["SYSTEM_FOLDERS", "system_files"]

SYSTEM_FOLDERS = {"tmp": 0o1777, "var/lib/naiad": 0o775, "etc": 0o755}

# Where loaders look without being told, the distribution's own folders first.
_FOLDERS = ("/lib/{0}-linux-gnu", "/usr/lib/{0}-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib")
# Loaded by name while running, which no binary's header tells; environments in archives need the last ones.
_ALWAYS = (
    *("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libutil.so.1", "libresolv.so.2"),
    *("libnss_files.so.2", "libnss_dns.so.2", "libgcc_s.so.1", "libstdc++.so.6", "libz.so.1"),
)
_LOADERS = {"x86_64": "/lib64/ld-linux-x86-64.so.2", "aarch64": "/lib/ld-linux-aarch64.so.1"}
_TEXTS = {
    "etc/passwd": "root:x:0:0:root:/:/sbin/nologin\nnaiad:x:65532:0:naiad:/tmp:/sbin/nologin\n",
    "etc/group": "root:x:0:\nnaiad:x:65532:\n",
    "etc/nsswitch.conf": "hosts: files dns\n",
}


def system_files(binaries: Iterable[Path]) -> list[OutputMember]:
    """The files of a system on which these binaries run, from this machine.

    Raises:
        BundleError: If this machine's libraries are not where glibc has them.
    """
    machine = os.uname().machine
    loader = Path(_LOADERS.get(machine, ""))
    if not loader.is_file():
        raise BundleError(
            f"this machine ({machine}) has no {loader} to take into the image; name an image to build on with --base"
        )
    files = {loader, *_libraries(binaries, machine)}
    found = [OutputMember(name=str(path)[1:], source=path.resolve(), executable=True) for path in files]
    return [*found, *(OutputMember(name=name, data=text.encode()) for name, text in _TEXTS.items())]


def _libraries(binaries: Iterable[Path], machine: str) -> Iterator[Path]:
    """The libraries of the system that binaries need, and what those need."""
    folders = [Path(folder.format(machine)) for folder in _FOLDERS]
    waiting = list(_ALWAYS)
    # What the image brings beside the system is not taken from there, too.
    seen: set[str] = set()
    for binary in binaries:
        seen.add(binary.name)
        section = read_dynamic_section(binary)
        waiting += section.needed if section is not None else ()
    while waiting:
        name = waiting.pop()
        path = next((folder / name for folder in folders if (folder / name).is_file()), None)
        if name in seen or path is None:
            continue  # not of the system: it lies beside what needs it
        seen.add(name)
        yield path
        section = read_dynamic_section(path)
        waiting += section.needed if section is not None else ()
