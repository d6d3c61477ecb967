"""What two environments have that the other has not, and which packages require another one."""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import importlib.metadata
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from email.parser import BytesHeaderParser
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from naiad.core.errors import Code, ExecutionEnvironmentError
from naiad.core.file_digest import file_digest
from naiad.core.foreign_json import read_json
from naiad.environments.archives.extraction import damaged_archive_error
from naiad.environments.archives.formats import ARCHIVE_ERRORS, detect_format, iterate_members
from naiad.environments.archives.member import MemberKind
from naiad.environments.installed_packages import site_folders
from naiad.environments.progress import ProgressReporter
from naiad.environments.store.entries import find_entry
from naiad.environments.store.inspection import inspect_environment
from naiad.environments.store.record import read_record

_CHUNK = 1 << 20
_METADATA = re.compile(r".*/(?:site|dist)-packages/[^/]+\.dist-info/METADATA")
_RECORD = re.compile(r"(?:[^/]+/)*conda-meta/[^/]+\.json")
_LARGEST = 16 << 20
_Package = tuple[str, str, list[str]]
"""Name, version and requirements."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageChange:
    """A package that differs; a version is empty where the environment lacks it."""

    name: str
    before: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChange:
    """A file that differs; a size is None where the environment lacks it."""

    path: str
    before: int | None
    after: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """What differs between two environments."""

    python: tuple[str, str]
    sizes: tuple[int, int]
    files: tuple[int, int]
    packages: tuple[PackageChange, ...]
    changes: tuple[FileChange, ...]

    @property
    def is_empty(self) -> bool:
        return not self.packages and not self.changes and self.python[0] == self.python[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequiredBy:
    """A package that requires another one."""

    name: str
    version: str
    requirement: str
    dependants: tuple[RequiredBy, ...] = ()


def package_changes(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[PackageChange, ...]:
    """The packages whose versions, by name, differ."""
    return tuple(
        PackageChange(name=name, before=before.get(name, ""), after=after.get(name, ""))
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    )


def compare_environments(before: str, after: str, root: Path, reporter: ProgressReporter) -> Difference:
    """What differs between two archives, directories or digests of entries. Reads all of their files."""
    first, second = (inspect_environment(text, root, reporter) for text in (before, after))
    ours, theirs = ({package.name.lower(): package for package in one.packages} for one in (first, second))
    shown = {name: package.name for name, package in (theirs | ours).items()}
    old, new = (dict(_files(text, root)) for text in (before, after))
    changes = [
        FileChange(path=path, before=old.get(path, (None,))[0], after=new.get(path, (None,))[0])
        for path in old.keys() | new.keys()
        if old.get(path) != new.get(path)
    ]
    versions = ({shown[name]: package.version for name, package in one.items()} for one in (ours, theirs))
    return Difference(
        python=(first.python, second.python),
        sizes=(sum(size for size, _ in old.values()), sum(size for size, _ in new.values())),
        files=(len(old), len(new)),
        packages=tuple(sorted(package_changes(*versions), key=lambda one: one.name.lower())),
        changes=tuple(sorted(changes, key=lambda one: (-max(one.before or 0, one.after or 0), one.path))),
    )


def find_dependants(package: str, text: str, root: Path) -> RequiredBy:
    """The packages that require another one in an archive, a directory or an entry, and those that require them."""
    installed: dict[str, _Package] = {canonicalize_name(one[0]): one for one in _installed(text, root)}
    wanted = canonicalize_name(package)
    if wanted not in installed:
        near = difflib.get_close_matches(wanted, installed, n=1)
        hint = f"; did you mean '{near[0]}'?" if near else f"; `naiad env inspect {text}` lists its packages"
        raise ExecutionEnvironmentError(f"there is no package '{package}' in {text}{hint}", code=Code.NOT_FOUND)
    users: dict[str, set[tuple[str, str]]] = {}
    for name, (_, _, requires) in installed.items():
        for needed, shown in filter(None, map(_parsed, requires)):
            users.setdefault(needed, set()).add((name, shown))

    def required_by(name: str, requirement: str, above: tuple[str, ...]) -> RequiredBy:
        found = [] if name in above else sorted(users.get(name, ()))
        dependants = (required_by(user, wants, (*above, name)) for user, wants in found if user != name)
        shown, version, _ = installed[name]
        return RequiredBy(name=shown, version=version, requirement=requirement, dependants=tuple(dependants))

    return required_by(wanted, "", ())


def _parsed(requirement: str) -> tuple[str, str] | None:
    """The package that a requirement of a wheel or a conda package is about, and how it is shown; None if not here."""
    try:
        parsed = Requirement(requirement)
    except InvalidRequirement:  # conda: `numpy >=1.26,<3`, `libblas 3.9.0 *openblas`
        return canonicalize_name(requirement.partition(" ")[0]), requirement
    if parsed.marker is None or parsed.marker.evaluate({"extra": ""}):
        return canonicalize_name(parsed.name), f"{parsed.name}{parsed.specifier}"
    return None


def _installed(text: str, root: Path) -> Iterator[_Package]:
    prefix = _prefix(text, root)
    if prefix is None:
        for name, content, _ in _members(Path(text)):
            if content is not None and _METADATA.fullmatch(name):
                head = BytesHeaderParser().parsebytes(content.read(_LARGEST))
                if head["Name"]:
                    yield str(head["Name"]), str(head["Version"]), list(map(str, head.get_all("Requires-Dist", ())))
            elif content is not None and _RECORD.fullmatch(name):
                yield from _conda(content.read(_LARGEST))
        return
    for found in importlib.metadata.distributions(path=[str(folder) for folder in site_folders(prefix)]):
        if found.metadata["Name"]:
            yield found.name, found.version, list(found.requires or ())
    for file in sorted((prefix / "conda-meta").glob("*.json")):
        with contextlib.suppress(OSError):
            yield from _conda(file.read_bytes())


def _conda(record: bytes) -> Iterator[_Package]:
    with contextlib.suppress(KeyError, TypeError, ValueError):
        value = read_json(record)
        yield str(value["name"]), str(value["version"]), [str(one) for one in value.get("depends") or ()]


def _prefix(text: str, root: Path) -> Path | None:
    """The folder of an environment; None of an archive."""
    path = Path(text)
    if path.exists():
        return path if path.is_dir() else None
    folder = find_entry(root, text).folder
    stored = read_record(folder)
    return folder / "env" if stored is None else stored.prefix


def _members(archive: Path) -> Iterator[tuple[str, Any, str]]:
    """Name, content (None without one) and target (of links) of each member."""
    count = 0
    try:
        for member, content in iterate_members(archive, detect_format(archive), lambda _: None):
            count += 1
            is_link = member.kind is MemberKind.SYMLINK
            yield member.name.removeprefix("./"), content, member.target if is_link else ""
    except ARCHIVE_ERRORS as error:
        raise damaged_archive_error(archive, count, error) from error


def _files(text: str, root: Path) -> Iterator[tuple[str, tuple[int, str]]]:
    """Size and digest of each file by its path, and the targets of links."""
    prefix = _prefix(text, root)
    if prefix is not None:
        yield from _files_in(prefix)
        return
    for name, content, target in _members(Path(text)):
        if target:
            yield name, (0, f"-> {target}")
        elif content is not None:
            digest, size = hashlib.sha256(), 0
            while pieces := content.read_pieces(_CHUNK):
                for piece in pieces:
                    digest.update(piece)
                    size += len(piece)
            yield name, (size, digest.hexdigest())


def _files_in(prefix: Path) -> Iterator[tuple[str, tuple[int, str]]]:
    for parent, folders, names in os.walk(prefix):
        for path in (Path(parent, name) for name in (*names, *folders)):
            shown = path.relative_to(prefix).as_posix()
            try:
                if path.is_symlink():
                    yield shown, (0, f"-> {path.readlink()}")
                elif path.is_file():
                    yield shown, (path.stat().st_size, file_digest(path))
            except OSError as error:
                raise ExecutionEnvironmentError(f"cannot read {path}: {error.strerror or error}") from error
