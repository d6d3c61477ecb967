"""Unpacking an untrusted archive into an empty folder.

Every member is checked before anything is written for it. One unsafe member rejects the whole archive. Rejected are:

- absolute names, names with `..`, and devices, pipes and other special files;
- members that would be written through a link, or replace a folder;
- links whose target is absolute or outside, except `bin/python*` of a venv, whose target is an interpreter of this
  machine; chains of links are resolved at the end;
- archives with too many members, too much content, or an extreme compression ratio (see `ExtractionLimits`).

`tarfile`'s extraction filters are not used: old patch releases of Python lack them, and they cannot limit sizes.

Three kinds of threads work on an archive: one decompresses ahead (`decompression`), the calling one parses and checks
members, two write files (`file_writers`).
"""

from __future__ import annotations

import errno
import logging
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from naiad.core.blocking import check_cancelled
from naiad.core.errors import ExecutionEnvironmentError
from naiad.core.real_paths import real_path
from naiad.environments.archives.file_writers import FileWriters, UnpackedFile, set_mtime
from naiad.environments.archives.formats import (
    ARCHIVE_ERRORS,
    detect_format,
    iterate_members,
    unpacked_size,
)
from naiad.environments.archives.member import Member, MemberAndContent, MemberContent, MemberKind
from naiad.environments.progress import ProgressMeter, ProgressReporter

_log = logging.getLogger("naiad.environments")
_INTERPRETER_NAME = re.compile(r"python(3(\.\d+)?)?")
# Paths that `venv` makes links to the interpreter it was made from, in an archive or a folder in it.
_INTERPRETER_LINK = re.compile(r"(/[^/]+)*/bin/python(3(\.\d+)?)?")
_CHUNK = 1024 * 1024
_NAME_SHOWN = 200
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
# Below this much content the ratio is not checked: small files of zeros compress a thousandfold and are harmless.
_RATIO_FROM = 1 << 30
_REPACK = "use no archive of unknown origin; pack one of your own again from its environment, with `naiad env pack`"
_SPECIAL_NAMES = frozenset(("", ".", ".."))


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractionLimits:
    """How much an archive may unpack to. The largest known environments have a few tens of gigabytes."""

    entries: int = 1_000_000
    total_bytes: int = 256 << 30
    ratio: int = 200  # content size divided by packed size; checked above one gigabyte of content
    depth: int = 256  # Number of folders above a member. Removing and copying folders takes a stack frame for each.


@dataclass(frozen=True, slots=True)
class ExtractionResult:
    """Counts, and the written files by path relative to the folder."""

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
    what: str = "",
) -> ExtractionResult:
    """Unpack into an existing, empty folder. After an error the caller removes the folder.

    Args:
        size: Size of the content; None if no manifest states it.
        what: Name of the archive in errors; "the execution environment" and its path unless given.
    """
    packed_with = detect_format(archive)
    packed_size = archive.stat().st_size
    needed = size or unpacked_size(archive, packed_with) or packed_size
    if shutil.disk_usage(into).free < needed:
        raise _no_space_error(archive, into, needed=needed)
    try:
        with (
            ProgressMeter(reporter, step="unpacking", label=label, path=archive, total=packed_size) as meter,
            closing(iterate_members(archive, packed_with, meter.advance, ahead=True)) as entries,
            FileWriters() as writers,
        ):
            named = what or f"the execution environment {archive}"
            unpacker = _Unpacker(archive, into, limits or ExtractionLimits(), packed_size, writers, named)
            for member, content in _readable(archive, entries, unpacker):
                unpacker.add(member, content)
            unpacker.finish()
    except OSError as error:
        if error.errno in _NO_SPACE:
            raise _no_space_error(archive, into, needed=None) from error
        raise ExecutionEnvironmentError(
            f"cannot unpack {archive} into {into}: {error.strerror or error}"
            f"{f' ({error.filename})' if error.filename else ''}"
        ) from error
    return ExtractionResult(unpacker.entries, unpacker.total_bytes, writers.written)


def _readable(archive: Path, entries: Iterator[MemberAndContent], unpacker: _Unpacker) -> Iterator[MemberAndContent]:
    """The entries, with errors of the decoders converted into errors that name the archive."""
    while True:
        try:
            entry = next(entries, None)
        except ARCHIVE_ERRORS as error:
            raise damaged_archive_error(archive, unpacker.entries, error) from error
        if entry is None:
            break
        check_cancelled()
        yield entry
    if unpacker.entries == 0:
        raise ExecutionEnvironmentError(f"the execution environment {archive} is an empty archive")


def explain_unsafe_name(name: str) -> str:
    """Why a member of this name would be written outside the folder; empty if it would not."""
    if name.startswith("/"):
        return "is an absolute path"
    return "leads out of the archive" if ".." in name.split("/") or "\0" in name else ""


def damaged_archive_error(archive: Path, entries: int, error: BaseException) -> ExecutionEnvironmentError:
    """The error for an archive that cannot be read completely."""
    return ExecutionEnvironmentError(
        f"the execution environment {archive} is truncated or damaged: reading it failed after {entries} members "
        f"({str(error) or type(error).__name__}); copy or pack it again"
    )


def _no_space_error(archive: Path, into: Path, *, needed: int | None) -> ExecutionEnvironmentError:
    free = shutil.disk_usage(into).free
    size = f"at least {needed / 1e6:.0f} MB are needed, " if needed else ""
    return ExecutionEnvironmentError(
        f"no space to unpack {archive}: {size}{free / 1e6:.0f} MB are free on the disk of {into}; "
        "make room there, for example with `naiad env gc --keep-bytes=0`, or choose another folder for the store of "
        "environments"
    )


class _Unpacker:
    """Writes members into one folder, and never outside it."""

    def __init__(
        self,
        archive: Path,
        root: Path,
        limits: ExtractionLimits,
        packed_size: int,
        writers: FileWriters,
        what: str,
    ) -> None:
        self.entries = 0
        self.total_bytes = 0
        self._archive = archive
        self._what = what
        self._root = str(root)
        self._limits = limits
        self._packed_size = max(packed_size, 1)
        # Folders that were created or verified here; no later member can replace one by a link.
        self._folders = {self._root}
        # Checked folder paths by the folder part of member names: most members share it with the previous one.
        self._named: dict[str, str] = {}
        # Files and links so far, including queued ones.
        self._occupied: set[str] = set()
        self._writers = writers
        self._folder_times: dict[str, float] = {}
        self._links: list[tuple[str, Member]] = []
        # Interpreters of this machine that the archive's own links name.
        self._interpreters: set[str] = set()

    def add(self, member: Member, content: MemberContent | None) -> None:
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
                raise self._unsafe_error(member, f"is a {member.kind.value}")

    def finish(self) -> None:
        """Resolve all links, and set the times of folders, which change when files are written into them.

        A chain of links can lead outside although each target alone stays inside, so links are resolved once all exist.
        Until then nothing is written through a link, so this check is early enough.
        """
        self._writers.drain()
        root = str(real_path(self._root))
        for path, member in self._links:
            real = str(real_path(path))
            if real in self._interpreters and _INTERPRETER_LINK.fullmatch(path[len(self._root) :]):
                continue
            if real != root and not real.startswith(root + os.sep):
                raise self._unsafe_error(member, f"is a symbolic link that leaves the archive (to '{member.target}')")
            if _is_loop(path):
                raise self._unsafe_error(
                    member, f"is a symbolic link that leads back to itself (to '{member.target}'): remove it"
                )
        for path, mtime in self._folder_times.items():
            set_mtime(path, mtime)

    def _check_limits(self, member: Member) -> None:
        limits = self._limits
        if member.kind is MemberKind.FILE:
            self.total_bytes += member.size
        if self.entries > limits.entries:
            raise self._limit_error(f"more than {limits.entries} members")
        if self.total_bytes > limits.total_bytes:
            raise self._limit_error(f"more than {limits.total_bytes / 1e9:.0f} GB of content")
        if self.total_bytes > _RATIO_FROM and self.total_bytes > limits.ratio * self._packed_size:
            raise self._limit_error(f"content of more than {limits.ratio} times its packed size")

    def _inside(self, member: Member, name: str) -> str:
        folder, slash, last = name.rpartition("/")
        # The key includes the slash: "x" is relative, "/x" is absolute and must not share its key.
        known = self._named.get(folder + slash)
        if known is not None and last not in _SPECIAL_NAMES and "\0" not in last:
            return f"{known}/{last}"
        path = self._checked(member, name)
        if last not in _SPECIAL_NAMES:
            self._named[folder + slash] = path[: -len(last) - 1]
        return path

    def _checked(self, member: Member, name: str) -> str:
        if name == member.name and (why := explain_unsafe_name(name)):
            raise self._unsafe_error(member, why)
        if name.startswith("/"):
            raise self._unsafe_error(member, f"links to '{name}'")
        parts = [part for part in name.split("/") if part not in ("", ".")]
        if len(parts) > self._limits.depth:
            raise self._unsafe_error(member, f"is more than {self._limits.depth} folders deep")
        if ".." in parts or "\0" in name:
            raise self._unsafe_error(member, f"links out of the archive, to '{name}'")
        return os.path.join(self._root, *parts)  # noqa: PTH118 - called for each of 100,000 members

    def _make_folder(self, member: Member, path: str) -> None:
        if path in self._folders:
            return
        self._make_folder(member, os.path.dirname(path))  # noqa: PTH120 - plain strings: called for each of 100,000 members
        if path in self._occupied:
            raise self._through_link_error(member, path)
        try:
            os.mkdir(path, 0o755)  # noqa: PTH102 - plain strings: called for each of 100,000 members
        except FileExistsError:
            if os.path.islink(path) or not os.path.isdir(path):  # noqa: PTH112, PTH114 - plain strings: called for each of 100,000 members
                raise self._through_link_error(member, path) from None
        self._folders.add(path)

    def _vacate(self, member: Member, path: str) -> str:
        """Prepare the path of a file or link: create its folder, remove an earlier member of the same name."""
        if path in self._folders:
            raise self._unsafe_error(member, "has the name of a folder")
        self._make_folder(member, path.rpartition("/")[0])
        # The root was empty, so an existing file comes from this archive. It may still be queued.
        if path in self._occupied:
            self._writers.drain()
            os.unlink(path)  # noqa: PTH108 - plain strings: called for each of 100,000 members
        self._occupied.add(path)
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
            if _INTERPRETER_LINK.fullmatch(path[len(self._root) :]) and _is_interpreter(target):
                _log.warning(
                    "the execution environment %s is not relocatable: its %s is a link to the interpreter '%s' of this "
                    "machine; `naiad env pack` includes the interpreter",
                    self._archive,
                    member.name,
                    target,
                )
                self._interpreters.add(str(real_path(target)))
                os.symlink(target, path)  # noqa: PTH211 - as below
                self._links.append((path, member))
                return
            raise self._absolute_link_error(member, path)
        joined = os.path.normpath(os.path.join(os.path.dirname(path), target))  # noqa: PTH118, PTH120 - plain strings: called for each of 100,000 members
        if not target or (joined != self._root and not joined.startswith(self._root + os.sep)):
            raise self._unsafe_error(member, f"is a symbolic link that leaves the archive (to '{target}')")
        os.symlink(target, path)  # noqa: PTH211 - plain strings: called for each of 100,000 members
        self._links.append((path, member))

    def _hardlink(self, member: Member, path: str) -> None:
        source = self._inside(member, member.target)
        self._writers.drain()
        if os.path.dirname(source) in self._folders and os.path.islink(source) and source != path:  # noqa: PTH114, PTH120 - as below
            # How tar stores a symbolic link that has several names. It is checked as one at this place.
            self._symlink(member._replace(target=os.readlink(source)), self._vacate(member, path))  # noqa: PTH115 - as below
            return
        if os.path.dirname(source) not in self._folders or not _is_plain_file(source):  # noqa: PTH120 - plain strings: called for each of 100,000 members
            raise self._unsafe_error(member, f"is a hard link to '{member.target}', which is not an earlier file")
        if source != path:
            os.link(source, self._vacate(member, path), follow_symlinks=False)
            start = len(self._root) + 1
            self._writers.written[path[start:]] = self._writers.written[source[start:]]

    def _absolute_link_error(self, member: Member, path: str) -> ExecutionEnvironmentError:
        if _INTERPRETER_LINK.fullmatch(path[len(self._root) :]) or _INTERPRETER_NAME.fullmatch(path.rpartition("/")[2]):
            what = (
                "(in an archive made from a venv this is its interpreter, which the archive lacks: build a whole "
                "environment with conda or `naiad env build`)"
            )
        else:
            what = (
                "of the machine that it was packed on, which need not be here, or need not be the same: before "
                "packing, make the link relative, or put in its place what it leads to (`cp --remove-destination "
                "$(readlink -f LINK) LINK`)"
            )
        return self._unsafe_error(member, f"is a symbolic link to the absolute path '{member.target}' {what}")

    def _through_link_error(self, member: Member, path: str) -> ExecutionEnvironmentError:
        return self._unsafe_error(
            member, f"would be written through '{os.path.relpath(path, self._root)}', which is not a folder"
        )

    def _unsafe_error(self, member: Member, why: str) -> ExecutionEnvironmentError:
        name = member.name if len(member.name) <= _NAME_SHOWN else f"{member.name[:_NAME_SHOWN]}..."
        return ExecutionEnvironmentError(f"{self._what} is refused: its member '{name}' {why}; {_REPACK}")

    def _limit_error(self, what: str) -> ExecutionEnvironmentError:
        return ExecutionEnvironmentError(
            f"{self._what} is refused: it has {what} "
            f"(reached at {self.entries} members, {self.total_bytes / 1e6:.0f} MB); "
            f"{_REPACK}"
        )


def _is_interpreter(target: str) -> bool:
    name = os.path.basename(target)  # noqa: PTH119 - a plain string, as all paths here
    return bool(_INTERPRETER_NAME.fullmatch(name)) and os.path.isfile(target) and os.access(target, os.X_OK)  # noqa: PTH113 - as above


def _is_loop(path: str) -> bool:
    try:
        os.stat(path)  # noqa: PTH116 - a plain string, as all paths here
    except OSError as error:
        return error.errno == errno.ELOOP
    return False


def _is_plain_file(path: str) -> bool:
    return os.path.isfile(path) and not os.path.islink(path)  # noqa: PTH113, PTH114 - plain strings: called for each of 100,000 members
