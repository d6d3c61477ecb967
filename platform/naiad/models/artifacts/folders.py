"""The files of a repository in a folder: listed without following links, read as regular files, hashed or copied.

Somebody else may write to the folder at any time, so nothing here relies on what an earlier call has found: a file is
opened once, and its digest is that of the bytes that were read from it, or copied.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from naiad.core.errors import RegistryError
from naiad.models.artifacts.manifest import SIGNATURES_FOLDER

_PIECE = 1 << 20
_BYTECODE = "__pycache__"
_CLONE = 0x40049409  # FICLONE of linux/fs.h: both files share their blocks until one is changed
_COPY_MODE, _EXECUTABLE = 0o444, 0o111


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderListing:
    """What is in a folder; *problems* by path, of entries that are unreadable or neither file nor folder."""

    files: list[str] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    problems: dict[str, str] = field(default_factory=dict)


def list_folder(folder: Path, tops: Sequence[str] | None = None, *, with_bytecode: bool) -> FolderListing:
    """List a repository's folder without its signatures; *with_bytecode*, with what Python runs in place of sources."""
    found = FolderListing()
    # A stack of folders in place of recursion: a path of 4,096 bytes may have 2,000 folders.
    waiting = [""]
    while waiting:
        prefix = waiting.pop()
        try:
            with os.scandir(folder / prefix) as entries:
                names = sorted(entries, key=lambda entry: entry.name)
        except OSError as error:
            found.problems[prefix.rstrip("/")] = f"cannot be read: {error.strerror or error}"
            continue
        for entry in names:
            path = f"{prefix}{entry.name}"
            is_left_out = not prefix and tops is not None and entry.name not in tops
            is_bytecode = entry.name == _BYTECODE and not with_bytecode
            if is_left_out or is_bytecode or path == SIGNATURES_FOLDER:
                continue
            if entry.is_symlink():
                found.problems[path] = "is a symbolic link, and a signature is of files"
            elif entry.is_dir(follow_symlinks=False):
                found.folders.append(path)
                waiting.append(f"{path}/")
            elif entry.is_file(follow_symlinks=False):
                found.files.append(path)
            else:
                found.problems[path] = "is neither a file nor a folder"
    return found


def quoted(path: str) -> str:
    """A path for a message, on one line: names may have any bytes."""
    return repr(path or ".").encode("utf-8", "backslashreplace").decode()


def read_file(path: Path, limit: int) -> bytes:
    """The content of a file; RegistryError if it is irregular, unreadable, or has more than *limit* bytes."""
    with _opened(path) as descriptor, open(descriptor, "rb", closefd=False) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise RegistryError(f"cannot read {path}: it has more than {limit} bytes; put the original back")
    return data


def sha256_of_file(path: Path) -> str:
    """The SHA-256 of a file, as hexadecimal digits."""
    with _opened(path) as descriptor:
        return _digest(descriptor)


def copy_file(source: Path, target: Path) -> str:
    """Copy a file; returns the SHA-256 of the copy, which has no permission to be written."""
    with _opened(source) as descriptor, target.open("xb+", buffering=0) as copy:
        is_executable = os.fstat(descriptor).st_mode & stat.S_IXUSR
        os.fchmod(copy.fileno(), _COPY_MODE | (_EXECUTABLE if is_executable else 0))
        # The source may change while it is copied: the digest is that of the copy.
        return _digest(copy.fileno()) if _clone(descriptor, copy.fileno()) else _digest(descriptor, copy.fileno())


def _clone(source: int, target: int) -> bool:
    """Let a file share the blocks of another one; False where the file system cannot."""
    try:
        fcntl.ioctl(target, _CLONE, source)
    except OSError:
        return False
    return True


def _digest(source: int, target: int | None = None) -> str:
    """The SHA-256 of the rest of a file, whose bytes are also written to *target*."""
    digest = hashlib.sha256()
    while piece := os.read(source, _PIECE):
        digest.update(piece)
        rest = memoryview(piece)
        while target is not None and rest:
            rest = rest[os.write(target, rest) :]
    return digest.hexdigest()


def move_into_place(
    staging: Path, target: Path, changed: Iterable[str], *, files: Collection[str], folders: Collection[str]
) -> None:
    """Make a folder have these files and folders, and nothing else; changed files are moved from *staging*."""
    target.mkdir(parents=True, exist_ok=True)
    # Deepest first: a directory is empty once its entries are removed.
    for entry in sorted(target.rglob("*"), key=lambda each: len(each.parts), reverse=True):
        path = entry.relative_to(target).as_posix()
        is_folder = entry.is_dir() and not entry.is_symlink()
        if is_folder and path not in folders:
            entry.rmdir()
        elif not is_folder and path not in files:
            entry.unlink()
    for folder in sorted(folders):
        (target / folder).mkdir(parents=True, exist_ok=True)
    for path in changed:
        os.replace(staging / path, target / path)  # noqa: PTH105 - atomic, also over a file


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    """A descriptor of a regular file; opening a pipe without a writer would block."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        cause = "it is a symbolic link" if error.errno == errno.ELOOP else error.strerror or error
        raise RegistryError(f"cannot read {quoted(str(path))}: {cause}; put the original back") from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise RegistryError(f"cannot read {quoted(str(path))}: it is not a file; put the original back")
        yield descriptor
    finally:
        os.close(descriptor)
