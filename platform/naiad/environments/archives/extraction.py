"""Unpacking an archive into an empty folder without trusting it.

Every member is checked before anything is written for it; the whole is refused for one bad member, because an
environment with a hole is worse than none. Not used: `tarfile`'s own extraction filters, which old patch releases
of Python lack and which cannot limit sizes.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from naiad.environments.archives.file_writers import FileWriters, set_mtime
from naiad.environments.archives.formats import (
    ARCHIVE_ERRORS,
    ArchiveFormat,
    detect_format,
    iterate_members,
    unpacked_size,
)
from naiad.environments.archives.member import Member, MemberAndContent, MemberContent, MemberKind
from naiad.environments.progress import ProgressMeter, ProgressReporter
from naiad.environments.store.file_digests import UnpackedFile
from naiad.errors import ExecutionEnvironmentError

_CHUNK = 1024 * 1024
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
# Small files of zeros compress a thousandfold and are harmless; a ratio means something only for much output.
_RATIO_FROM = 1 << 30
_NO_NAMES = frozenset(("", ".", ".."))


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractionLimits:
    """How much an archive may unpack to. Generous: the largest environments in use are a few ten gigabytes.

    Attributes:
        entries: Members.
        total_bytes: Content of all files.
        ratio: Content over packed size, looked at from one gigabyte of content on.
    """

    entries: int = 1_000_000
    total_bytes: int = 256 << 30
    ratio: int = 200


@dataclass(frozen=True, slots=True)
class ExtractionResult:
    """What came out: counts for the log, and each file for the store's record, by path below the folder."""

    entries: int
    total_bytes: int
    written: Mapping[str, UnpackedFile] = field(default_factory=dict, repr=False)


def unpack(
    archive: Path,
    into: Path,
    *,
    reporter: ProgressReporter,
    label: str = "",
    limits: ExtractionLimits | None = None,
    size: int | None = None,
) -> ExtractionResult:
    """Unpack into an existing, empty folder; on an error the folder's content is the caller's to throw away.

    Args:
        archive: The file.
        into: The folder.
        reporter: Whoever shows progress.
        label: The model it is for.
        limits: How much it may unpack to.
        size: Bytes of its content if it says so itself.

    Raises:
        ExecutionEnvironmentError: If the archive is damaged, unsafe or too large, or the disk is full.
    """
    packed_with = detect_format(archive)
    packed_size = archive.stat().st_size
    _check_space(archive, into, size or unpacked_size(archive, packed_with) or packed_size)
    try:
        with (
            ProgressMeter(reporter, step="unpacking", label=label, path=archive, total=packed_size) as meter,
            closing(iterate_members(archive, packed_with, meter.advance, ahead=True)) as entries,
            FileWriters() as writers,
        ):
            unpacker = _Unpacker(archive, into, limits or ExtractionLimits(), packed_size, writers)
            for member, content in _readable(archive, entries, unpacker):
                unpacker.add(member, content)
            unpacker.finish()
    except OSError as error:
        if error.errno in _NO_SPACE:
            raise _full(archive, into, needed=None) from error
        raise ExecutionEnvironmentError(
            f"cannot unpack {archive} into {into}: {error.strerror or error}"
            f"{f' ({error.filename})' if error.filename else ''}"
        ) from error
    return ExtractionResult(unpacker.entries, unpacker.total_bytes, writers.written)


def _readable(archive: Path, entries: Iterator[MemberAndContent], unpacker: _Unpacker) -> Iterator[MemberAndContent]:
    """The entries, with every error of the *reading* side turned into one that names the archive."""
    while True:
        try:
            entry = next(entries, None)
        except ARCHIVE_ERRORS as error:
            raise damaged_archive_error(archive, unpacker.entries, error) from error
        if entry is None:
            break
        yield entry
    if unpacker.entries == 0:
        raise ExecutionEnvironmentError(f"the execution environment {archive} is an archive without any member")


def damaged_archive_error(archive: Path, entries: int, error: BaseException) -> ExecutionEnvironmentError:
    """The error for an archive that cannot be read to its end."""
    return ExecutionEnvironmentError(
        f"the execution environment {archive} is truncated or damaged: reading it failed after {entries} members "
        f"({str(error) or type(error).__name__}); copy or pack it again"
    )


def _check_space(archive: Path, into: Path, needed: int) -> None:
    if shutil.disk_usage(into).free < needed:
        raise _full(archive, into, needed=needed)


def _full(archive: Path, into: Path, *, needed: int | None) -> ExecutionEnvironmentError:
    free = shutil.disk_usage(into).free
    size = f"at least {needed / 1e6:.0f} MB are needed, " if needed else ""
    return ExecutionEnvironmentError(
        f"no space to unpack {archive}: {size}{free / 1e6:.0f} MB are free on the disk of {into}; "
        "make room there, or choose another folder for the store of environments"
    )


class _Unpacker:
    """Writes members below one folder, and nothing outside it."""

    def __init__(
        self, archive: Path, root: Path, limits: ExtractionLimits, packed_size: int, writers: FileWriters
    ) -> None:
        self.entries = 0
        self.total_bytes = 0
        self._archive = archive
        self._root = str(root)
        self._limits = limits
        self._packed_size = max(packed_size, 1)
        # Folders known to be real ones inside the root: made or seen here, and never replaced by a link.
        self._folders = {self._root}
        # The paths of folders by what members' names have before their last part, which was checked.
        self._named: dict[str, str] = {}
        # Files and links so far, also those still waiting to be written.
        self._taken: set[str] = set()
        self._writers = writers
        self._folder_times: dict[str, float] = {}
        self._links: list[tuple[str, Member]] = []

    def add(self, member: Member, content: MemberContent | None) -> None:
        """Write one member.

        Raises:
            ExecutionEnvironmentError: If it is unsafe, too much, or cannot be read.
            OSError: If it cannot be written.
        """
        self.entries += 1
        self._check_limits(member)
        path = self._inside(member, member.name)
        match member.kind:
            case MemberKind.DIRECTORY:
                self._make_folder(member, path)
                self._folder_times[path] = member.mtime
            case MemberKind.FILE:
                self._write(member, content, self._vacate(member, path))
            case MemberKind.SYMLINK:
                self._symlink(member, self._vacate(member, path))
            case MemberKind.HARDLINK:
                self._hardlink(member, path)
            case _:
                raise self._unsafe(member, f"is a {member.kind.value}")

    def finish(self) -> None:
        """Check the links as a whole and set the folders' times, which writing into them had changed.

        A chain of links can leave the tree although each target, read by itself, stays inside; only following
        them shows it. Nothing was ever written through a link, so this is early enough.
        """
        self._writers.drain()
        root = os.path.realpath(self._root)
        for path, member in self._links:
            real = os.path.realpath(path)
            if real != root and not real.startswith(root + os.sep):
                raise self._unsafe(member, f"is a symbolic link that leaves the archive (to '{member.target}')")
        for path, mtime in self._folder_times.items():
            set_mtime(path, mtime)

    def _check_limits(self, member: Member) -> None:
        limits = self._limits
        if member.kind is MemberKind.FILE:
            self.total_bytes += member.size
        if self.entries > limits.entries:
            raise self._too_much(f"more than {limits.entries} members")
        if self.total_bytes > limits.total_bytes:
            raise self._too_much(f"more than {limits.total_bytes / 1e9:.0f} GB of content")
        if self.total_bytes > _RATIO_FROM and self.total_bytes > limits.ratio * self._packed_size:
            raise self._too_much(f"content of more than {limits.ratio} times its packed size")

    def _inside(self, member: Member, name: str) -> str:
        """The path below the root for a name in the archive."""
        folder, slash, last = name.rpartition("/")
        # With its slash: "x" lies beside "y", "/x" does not.
        known = self._named.get(folder + slash)
        # Most members lie beside the one before them.
        if known is not None and last not in _NO_NAMES and "\0" not in last:
            return f"{known}/{last}"
        path = self._checked(member, name)
        if last not in _NO_NAMES:
            self._named[folder + slash] = path[: -len(last) - 1]
        return path

    def _checked(self, member: Member, name: str) -> str:
        if name.startswith("/"):
            raise self._unsafe(member, "is an absolute path" if name == member.name else f"links to '{name}'")
        parts = [part for part in name.split("/") if part not in ("", ".")]
        if ".." in parts or "\0" in name:
            raise self._unsafe(
                member, "leads out of the archive" if name == member.name else f"links out of the archive, to '{name}'"
            )
        return os.path.join(self._root, *parts)  # noqa: PTH118 - called for each of 100,000 members

    def _make_folder(self, member: Member, path: str) -> None:
        if path in self._folders:
            return
        self._make_folder(member, os.path.dirname(path))  # noqa: PTH120
        if path in self._taken:
            raise self._through(member, path)
        try:
            os.mkdir(path, 0o755)  # noqa: PTH102
        except FileExistsError:
            if os.path.islink(path) or not os.path.isdir(path):  # noqa: PTH112, PTH114
                raise self._through(member, path) from None
        self._folders.add(path)

    def _vacate(self, member: Member, path: str) -> str:
        """Make room for a file or link: its folder exists, and an earlier member of the same name goes."""
        if path in self._folders:
            raise self._unsafe(member, "has the name of a folder")
        self._make_folder(member, path.rpartition("/")[0])
        # The folder was empty, so what is in the way came from this archive.
        if path in self._taken:
            self._writers.drain()
            os.unlink(path)  # noqa: PTH108
        self._taken.add(path)
        return path

    def _write(self, member: Member, content: MemberContent | None, path: str) -> None:
        assert content is not None
        name = path[len(self._root) + 1 :]
        if member.size <= _CHUNK:
            pieces = self._read(content)
            self._require_whole(member, sum(map(len, pieces)))
            self._writers.add(path, name, pieces, member.size, member.mode, member.mtime)
        else:
            stream = (piece for part in iter(lambda: self._read(content), ()) for piece in part)
            written = self._writers.write(path, name, stream, member.mode, member.mtime)
            self._require_whole(member, written.size)

    def _require_whole(self, member: Member, size: int) -> None:
        if size != member.size:
            raise damaged_archive_error(self._archive, self.entries, EOFError(f"'{member.name}' is cut short"))

    def _read(self, content: MemberContent) -> tuple[bytes | memoryview, ...]:
        try:
            return tuple(content.read_pieces(_CHUNK))
        except ARCHIVE_ERRORS as error:
            raise damaged_archive_error(self._archive, self.entries, error) from error

    def _symlink(self, member: Member, path: str) -> None:
        target = member.target
        if target.startswith("/"):
            raise self._unsafe(
                member,
                f"is a symbolic link to the absolute path '{target}' (in an archive made from a venv this is its "
                "interpreter, which the archive lacks: build a whole environment with conda or `naiad env build`)",
            )
        joined = os.path.normpath(os.path.join(os.path.dirname(path), target))  # noqa: PTH118, PTH120
        if not target or (joined != self._root and not joined.startswith(self._root + os.sep)):
            raise self._unsafe(member, f"is a symbolic link that leaves the archive (to '{target}')")
        os.symlink(target, path)  # noqa: PTH211
        self._links.append((path, member))

    def _hardlink(self, member: Member, path: str) -> None:
        source = self._inside(member, member.target)
        self._writers.drain()
        if os.path.dirname(source) not in self._folders or not _is_plain_file(source):  # noqa: PTH120
            raise self._unsafe(member, f"is a hard link to '{member.target}', which is no file before it")
        if source != path:
            os.link(source, self._vacate(member, path), follow_symlinks=False)
            start = len(self._root) + 1
            self._writers.written[path[start:]] = self._writers.written[source[start:]]

    def _through(self, member: Member, path: str) -> ExecutionEnvironmentError:
        return self._unsafe(
            member, f"would be written through '{os.path.relpath(path, self._root)}', which is no folder"
        )

    def _unsafe(self, member: Member, why: str) -> ExecutionEnvironmentError:
        return ExecutionEnvironmentError(
            f"the execution environment {self._archive} is refused: its member '{member.name}' {why}"
        )

    def _too_much(self, what: str) -> ExecutionEnvironmentError:
        return ExecutionEnvironmentError(
            f"the execution environment {self._archive} is refused: it has {what} "
            f"(reached at {self.entries} members, {self.total_bytes / 1e6:.0f} MB)"
        )


def _is_plain_file(path: str) -> bool:
    return os.path.isfile(path) and not os.path.islink(path)  # noqa: PTH113, PTH114


__all__ = ["ArchiveFormat", "ExtractionLimits", "ExtractionResult", "unpack"]
