"""Lock files: `pylock.toml` (PEP 751), `uv.lock`, and uv's lock of a script.

They are read for one version of Python on this machine: names, versions, digests and markers. Their URLs are ignored:
packages come from the indexes of pip's settings, which may be mirrors, and from those that the declaration names.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from packaging.markers import InvalidMarker, Marker, default_environment
from packaging.pylock import Package, Pylock, PylockUnsupportedVersionError, PylockValidationError
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from naiad.core.errors import ExecutionEnvironmentError
from naiad.core.file_digest import file_digest
from naiad.core.toml import explain_toml_error, tomllib

_log = logging.getLogger("naiad.environments")

_Table = Mapping[str, Any]

_NEWER_MINOR = re.compile(r"1\.0*[1-9][0-9]*", re.ASCII)
"""Versions of pylock.toml that have what 1.0 has, and more (PEP 751, "lock-version")."""


@dataclass(frozen=True, slots=True)
class Pin:
    """One resolved package, with the names of its files, and the bytes of each, as far as the lock has them, else 0.

    Digests are SHA-256 of the files that may be installed; of a file without one, another of pip's digests, with its
    name, such as `sha512:...`.
    """

    name: str
    version: str
    digests: tuple[str, ...]
    files: tuple[str, ...] = field(default=(), compare=False)
    sizes: tuple[int, ...] = field(default=(), compare=False)

    def has_file_for(self, python: str) -> bool:
        """Whether one of the files can be installed on this machine for a version of CPython; True if none is known."""
        return not self.files or any(file_rank(file, python) is not None for file in self.files)

    def size_for(self, python: str) -> int:
        """Bytes of the file that is downloaded for a version of CPython on this machine; 0 if that is unknown."""
        ranked = ((file_rank(file, python), size) for file, size in zip(self.files, self.sizes, strict=False))
        return min(((rank, size) for rank, size in ranked if rank is not None), default=(0, 0))[1]


def file_name(place: str) -> str:
    """The name of the file at an address or a path."""
    return unquote(urlsplit(place).path.rpartition("/")[2])


def file_rank(file: str, python: str) -> int | None:
    """How well a file suits a version of CPython on this machine, 0 is best; None if it cannot be installed.

    A source distribution, or a name that cannot be read, may be for any Python: it comes last.
    """
    usable = _usable_tags(*map(int, python.split(".")[:2]))
    try:
        tags = parse_wheel_filename(file)[3]
    except InvalidWheelFilename:
        return len(usable)
    return min((usable[tag] for tag in tags if tag in usable), default=None)


@cache
def _usable_tags(major: int, minor: int) -> Mapping[Tag, int]:
    """The ranks of the tags of wheels for a version of CPython on this machine: thousands, so made once."""
    tags = (*cpython_tags((major, minor)), *compatible_tags((major, minor), f"cp{major}{minor}"))
    return {tag: rank for rank, tag in reversed([*enumerate(tags)])}


def pin_lines(pins: Iterable[Pin]) -> str:
    """The pins as a requirements file with digests."""
    lines = []
    for pin in pins:
        digests = (digest if ":" in digest else f"sha256:{digest}" for digest in sorted(pin.digests))
        lines.append(" \\\n    ".join([f"{pin.name}=={pin.version}", *(f"--hash={digest}" for digest in digests)]))
    return "".join(f"{line}\n" for line in lines)


@dataclass(frozen=True, slots=True)
class ForeignLock:
    """A lock of another tool, parsed; *pylock* is checked by the rules of PEP 751, None for a lock of uv."""

    path: Path
    table: _Table
    pylock: Pylock | None = None

    @property
    def requires_python(self) -> SpecifierSet:
        """The versions of Python that it is for."""
        if self.pylock is not None:
            return self.pylock.requires_python or SpecifierSet()
        try:
            return SpecifierSet(self.table.get("requires-python", ""))
        except (InvalidSpecifier, TypeError, AttributeError) as error:
            raise ExecutionEnvironmentError(f"{self.path} is invalid: requires-python: {error}") from error

    @property
    def requirements(self) -> tuple[Requirement, ...] | None:
        """The requirements that it was written for, as far as it says; None if it does not.

        Of a `uv.lock`, those of the project in its own folder. In a `pylock.toml`, naiad writes them itself.
        """
        try:
            if self.pylock is not None:
                recorded = self.table.get("tool", {}).get("naiad", {}).get("requirements")
                return None if recorded is None else tuple(map(Requirement, recorded))
            entries = _recorded_by_uv(self.table)
            return None if entries is None else tuple(map(_requirement_of_uv, entries))
        except (AttributeError, InvalidRequirement, KeyError, TypeError) as error:
            raise ExecutionEnvironmentError(f"{self.path} is invalid: {error!r}") from error

    def pins(self, python: str, wheels: tuple[Path, ...] = ()) -> list[Pin]:
        """The packages that it selects for a version of Python, by name.

        *wheels* are folders with wheels that the lock names without a digest, because they were in a folder.

        Raises ExecutionEnvironmentError if it is for other machines or versions, or has a package that is of no index.
        """
        try:
            environment = _environment(python)
            self._require_environment(python, environment)
            pins = _read_uv_lock(self.path, self.table, environment, wheels)
            if self.pylock is not None:
                pins = _read_pylock(self.path, self.pylock, environment)
            return sorted(pins, key=lambda pin: pin.name)
        except (AttributeError, KeyError, TypeError, ValueError, InvalidMarker) as error:
            raise ExecutionEnvironmentError(f"{self.path} is invalid: {error!r}") from error

    def _require_environment(self, python: str, environment: dict[str, str]) -> None:
        if not self.requires_python.contains(python, prereleases=True):
            raise ExecutionEnvironmentError(
                f"{self.path} is for Python {self.requires_python}, not for {python}; lock again for it"
            )
        markers = self.table.get("environments", ())  # in locks of uv, too
        if markers and not any(Marker(marker).evaluate(environment) for marker in markers):
            raise ExecutionEnvironmentError(
                f"{self.path} is for {' or '.join(markers)}, which this machine is not; lock on it"
            )


def open_foreign_lock(lock: Path) -> ForeignLock:
    """The lock in a file: `pylock.toml`, `uv.lock`, or the lock of a script."""
    try:
        text = lock.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ExecutionEnvironmentError(f"cannot read {lock}: {error}") from error
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ExecutionEnvironmentError(f"cannot read {lock}: {explain_toml_error(error, text)}") from error
    return ForeignLock(lock, table, _checked_pylock(lock, table) if lock.name.endswith(".toml") else None)


def _checked_pylock(lock: Path, table: _Table) -> Pylock:
    version = table.get("lock-version")
    if isinstance(version, str) and _NEWER_MINOR.fullmatch(version):
        _log.warning(
            "%s has lock-version %s, and naiad knows 1.0: it ignores what %s added; if packages are missing, lock "
            "again with a tool that writes 1.0",
            *(lock, version, version),
        )
        table = {**table, "lock-version": "1.0"}  # or `packaging` would warn, too, without the name of the file
    try:
        return Pylock.from_dict(_with_decoded_names(table))
    except PylockUnsupportedVersionError:
        raise ExecutionEnvironmentError(
            f"cannot read {lock}: it has lock-version {version}, and naiad knows 1.0; lock again with a tool that "
            "writes 1.0, for example `uv pip compile --format pylock.toml`"
        ) from None
    except PylockValidationError as error:
        cause = " ".join(str(error).split())  # that of a marker has several lines
        raise ExecutionEnvironmentError(
            f"cannot read {lock}: {cause}; PEP 751 says what it must have, lock again"
        ) from error


def _with_decoded_names(table: _Table) -> _Table:
    """The lock with normalized names of packages, and names of files in place of their URLs.

    Locks that naiad once wrote with pip have names as the packages spell them, and `%2B` in names of files. Versions of
    `packaging` before 26.3 do not decode URLs either. The URLs are not needed: files come from the configured indexes.
    """
    try:
        return {**table, "packages": [_decoded(package) for package in table["packages"]]}
    except (AttributeError, KeyError, TypeError):  # what is wrong with it is said by `packaging`
        return table


def _decoded(package: dict[str, Any]) -> dict[str, Any]:
    changed: dict[str, Any] = {"name": str(canonicalize_name(package["name"]))}
    if "wheels" in package:
        changed["wheels"] = [_named(file) for file in package["wheels"]]
    if "sdist" in package:
        changed["sdist"] = _named(package["sdist"])
    return {**package, **changed}


def _named(file: dict[str, Any]) -> dict[str, Any]:
    name = file.get("name")
    if name is None and "path" not in file and "url" in file:
        name = file_name(file["url"])
    return file if name is None else {**file, "name": unquote(name)}


def _recorded_by_uv(table: _Table) -> Iterable[_Table] | None:
    projects = [package for package in table["package"] if _is_project(package)]
    found: Iterable[_Table] | None = None if projects else table.get("manifest", {}).get("requirements")
    for package in projects:
        if "." in package["source"].values():
            found = package.get("metadata", {}).get("requires-dist")
    return found


def _requirement_of_uv(entry: _Table) -> Requirement:
    extras = f"[{','.join(entry['extras'])}]" if entry.get("extras") else ""
    marker = f"; {entry['marker']}" if entry.get("marker") else ""
    return Requirement(f"{entry['name']}{extras}{entry.get('specifier', '')}{marker}")


def _environment(python: str) -> dict[str, str]:
    """The values for markers: this machine's, with the given version of CPython."""
    here = {name: str(value) for name, value in default_environment().items()}
    minor = ".".join(python.split(".")[:2])
    return {**here, "python_version": minor, "python_full_version": python, "implementation_version": python}


def _read_pylock(lock: Path, pylock: Pylock, environment: dict[str, str]) -> Iterator[Pin]:
    """The packages to install, by the steps of PEP 751 ("Installation"), with all their files: pip or uv chooses one.

    Not `Pylock.select`, which chooses one file by the tags of this Python, needs one for another Python, and rejects
    Pythons before their first release.
    """
    groups = frozenset(pylock.default_groups or ())
    values: dict[str, Any] = {**environment, "extras": frozenset(), "dependency_groups": groups}
    selected: dict[str, Package] = {}
    python = environment["python_full_version"]
    for package in pylock.packages:
        if package.marker is not None and not package.marker.evaluate(values, context="lock_file"):
            continue
        versions = package.requires_python
        if versions is not None and not versions.contains(python, prereleases=True):
            raise ExecutionEnvironmentError(
                f"{lock} has '{package.name}' for Python {versions}, not for {python}; lock again for it"
            )
        if package.name in selected:
            raise ExecutionEnvironmentError(
                f"{lock} selects '{package.name}' twice, version {selected[package.name].version} and version "
                f"{package.version}; lock again, or make the markers of the two exclude each other"
            )
        selected[package.name] = package
    for package in selected.values():
        if place := _place_without_index(package):
            raise ExecutionEnvironmentError(
                f"{lock} takes '{package.name}' from {place}, and locked packages come from an index; build a wheel of "
                "it, name the folder of that with --wheels (for a server, --env-wheels), require its version, and lock "
                "again"
            )
        files = [*(package.wheels or ()), *([package.sdist] if package.sdist is not None else ())]
        version = "" if package.version is None else str(package.version)
        names = {file.filename: file.size or 0 for file in files}
        yield _pin(lock, package.name, version, [_digest(file.hashes) for file in files], names)


def _place_without_index(package: Package) -> str:
    """Where a package comes from that does not come from an index; empty for one that does."""
    if package.directory is not None:
        return f"the folder {package.directory.path}"
    for kind, place in (("repository", package.vcs), ("archive", package.archive)):
        if place is not None:
            return f"the {kind} {place.url or place.path}"
    return ""


def _digest(hashes: Mapping[str, str]) -> str:
    """The digest of a file as in `Pin.digests`; empty without one that pip takes."""
    others = (f"{name}:{hashes[name]}" for name in ("sha384", "sha512") if name in hashes)
    return hashes.get("sha256") or next(others, "")


def _read_uv_lock(lock: Path, table: _Table, environment: dict[str, str], wheels: tuple[Path, ...]) -> Iterator[Pin]:
    packages: list[_Table] = table["package"]
    seen: set[tuple[str, str, str]] = set()
    pinned: set[tuple[str, str]] = set()
    waiting: list[tuple[_Table, str]] = [(package, "") for package in packages if _is_project(package)]
    if not waiting:  # the lock of a script, which has requirements and no project
        waiting += _follow_dependencies(packages, table.get("manifest", {}).get("requirements", ()), environment)
    while waiting:
        package, extra = waiting.pop()
        key = (package["name"], package.get("version", ""), extra)
        if key in seen:
            continue
        seen.add(key)
        if not _is_project(package) and key[:2] not in pinned:
            pinned.add(key[:2])
            files = [*package.get("wheels", ()), *([package["sdist"]] if "sdist" in package else ())]
            digests = [_uv_digest(lock, package, file, wheels) for file in files]
            names = {file_name(file.get("url") or file.get("path") or ""): file.get("size", 0) for file in files}
            names.pop("", None)
            yield _pin(lock, package["name"], package.get("version", ""), digests, names)
        optional: _Table = package.get("optional-dependencies", {})
        dependencies = optional.get(extra, ()) if extra else package.get("dependencies", ())
        waiting += _follow_dependencies(packages, dependencies, environment)


def _uv_digest(lock: Path, package: _Table, file: _Table, wheels: tuple[Path, ...]) -> str:
    """The digest of one file. uv records none for a wheel in a folder, so it is read from the wheel."""
    if "hash" in file:
        return str(file["hash"]).removeprefix("sha256:")
    if "path" not in file:
        return ""
    recorded = lock.parent / package["source"].get("registry", "") / file["path"]
    for wheel in (recorded, *(folder / recorded.name for folder in wheels)):
        if wheel.is_file():
            return file_digest(wheel)
    raise ExecutionEnvironmentError(
        f"{lock} names {recorded}, which does not exist; name the folder that has {recorded.name} with --env-wheels"
    )


def _is_project(package: _Table) -> bool:
    return any(kind in package.get("source", {}) for kind in ("virtual", "editable"))


def _follow_dependencies(
    packages: list[_Table], dependencies: Iterable[_Table], environment: dict[str, str]
) -> Iterator[tuple[_Table, str]]:
    for dependency in dependencies:
        if "marker" in dependency and not Marker(dependency["marker"]).evaluate(environment):
            continue
        for package in packages:
            # A lock may have a version of a package for each range of Pythons.
            markers = package.get("resolution-markers", ())
            if (
                package["name"] == dependency["name"]
                and dependency.get("version") in (None, package.get("version"))
                and (not markers or any(Marker(marker).evaluate(environment) for marker in markers))
            ):
                # uv writes `extra` for dependencies of packages, and `extras` for requirements of scripts.
                extras = (*dependency.get("extra", ()), *dependency.get("extras", ()))
                yield from ((package, extra) for extra in ("", *extras))


def _pin(lock: Path, name: str, version: str, digests: list[str], files: Mapping[str, int]) -> Pin:
    if not all(digests) or not digests or not version:
        raise ExecutionEnvironmentError(
            f"{lock} has '{name}' without version or digest (sha256, sha384 or sha512), as from a folder, a "
            "repository, or an index that states no digests; build a wheel of it, and name the folder of that in place "
            "of the index"
        )
    return Pin(name, version, tuple(digests), tuple(files), tuple(files.values()))
