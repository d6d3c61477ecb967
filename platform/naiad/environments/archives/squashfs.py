"""Squashfs images, which conda-pack writes too: unpacked by the machine's own tools, and read as any archive.

The tools write into a temporary folder, not into the store, so that each member is checked as those of other archives.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from naiad.core.child_processes import ended_with_group
from naiad.core.errors import ExecutionEnvironmentError
from naiad.environments.archives.member import FileMemberContent, Member, MemberAndContent, MemberKind

_TOOL = "unsquashfs"
_SHOWN = 300


def squashfs_members(path: Path, advance: Callable[[int], None]) -> Iterator[MemberAndContent]:
    """All members of an image with contents; ExecutionEnvironmentError if no tool of this machine reads it."""
    tool = shutil.which(_TOOL)
    if tool is None:
        raise ExecutionEnvironmentError(
            f"cannot unpack the execution environment {path}: it is a squashfs image, and this machine has no {_TOOL}; "
            "install it (squashfs-tools), or pack the environment as a tar"
        )
    with tempfile.TemporaryDirectory(prefix="naiad-squashfs-") as scratch:
        folder = Path(scratch, "image")
        command = [tool, "-no-progress", "-no-xattrs", "-dest", str(folder), str(path)]
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        with ended_with_group(process):
            _, errors = process.communicate()
        if process.returncode != 0:
            said = errors.decode("utf-8", "replace").strip().replace("\n", " | ")[-_SHOWN:]
            raise ExecutionEnvironmentError(
                f"the execution environment {path} is truncated or damaged: {_TOOL} cannot read it ({said}); copy or "
                "pack it again"
            )
        advance(path.stat().st_size)
        yield from _members(folder, "")


def _members(folder: Path, above: str) -> Iterator[MemberAndContent]:
    with os.scandir(folder) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    for entry in found:
        facts = entry.stat(follow_symlinks=False)
        name = f"{above}{entry.name}"
        kind = _kind(facts.st_mode)
        target = os.readlink(entry.path) if kind is MemberKind.SYMLINK else ""  # noqa: PTH115 - of a DirEntry
        size = facts.st_size if kind is MemberKind.FILE else 0
        member = Member(name, kind, size, stat.S_IMODE(facts.st_mode), facts.st_mtime, target)
        if kind is MemberKind.FILE:
            with open(entry.path, "rb") as content:  # noqa: PTH123 - of a DirEntry
                yield member, FileMemberContent(content)
        else:
            yield member, None
        if kind is MemberKind.DIRECTORY:
            yield from _members(Path(entry.path), f"{name}/")


def _kind(mode: int) -> MemberKind:
    kinds = {
        stat.S_IFREG: MemberKind.FILE,
        stat.S_IFDIR: MemberKind.DIRECTORY,
        stat.S_IFLNK: MemberKind.SYMLINK,
        stat.S_IFIFO: MemberKind.FIFO,
        stat.S_IFCHR: MemberKind.DEVICE,
        stat.S_IFBLK: MemberKind.DEVICE,
    }
    return kinds.get(stat.S_IFMT(mode), MemberKind.OTHER)
