"""The manifest of a packed environment: content, platform and versions, readable without unpacking.

It is the first member of the archive, so reading it decompresses only the first block.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from naiad.core.errors import ExecutionEnvironmentError
from naiad.core.foreign_json import read_json
from naiad.environments.archives.extraction import damaged_archive_error
from naiad.environments.archives.formats import ARCHIVE_ERRORS, ArchiveFormat, detect_format, iterate_members

MANIFEST_NAME = "naiad-environment.json"
# Folder in an environment with a copy of its recipe, in a sub-folder of the recipe's name.
RECIPE_FOLDER = "share/naiad/recipe"
_FORMAT = 1
# Size limit. A manifest lists a few hundred packages, far below this.
_LARGEST = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """One installed package."""

    name: str
    version: str
    # SHA-256 of conda's package archive, or of a wheel's RECORD, which lists files with digests. Empty if neither is
    # known.
    digest: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The description of an environment inside its archive."""

    name: str  # Name of the recipe, empty without one. Never the folder name: archives must not depend on the location.
    made_from: str
    platform: str
    glibc: str  # minimum version of glibc for its compiled files, empty if none needs glibc
    python: str
    abi: str  # as in names of extension modules, `cpython-312-x86_64-linux-gnu`
    packages: tuple[Package, ...]
    files: int
    size: int
    recipe: dict[str, str]  # SHA-256 of the recipe's files by name; empty without a recipe
    # What `content_digest` returns for its files but the manifest; empty in archives of earlier versions.
    content: str = ""

    def as_bytes(self) -> bytes:
        return (json.dumps({"format": _FORMAT, **asdict(self)}, indent=1) + "\n").encode()

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Manifest:
        """The manifest for what `as_bytes` writes; KeyError, TypeError or ValueError for anything else."""
        fields = {name: value[name] for name in cls.__slots__ if name != "content"}
        packages = tuple(Package(**one) for one in value["packages"])
        return cls(**{**fields, "packages": packages, "content": str(value.get("content", ""))})


def read_manifest(archive: Path) -> Manifest | None:
    """The manifest of an archive; None if it has none, such as archives of conda-pack."""
    packed_with = detect_format(archive)
    if packed_with is ArchiveFormat.SQUASHFS:
        return None  # naiad writes none, and to look into an image is to unpack it
    try:
        for member, content in iterate_members(archive, packed_with, lambda _: None):
            if member.name.removeprefix("./") != MANIFEST_NAME or content is None:
                return None
            return _parse(archive, content.read(_LARGEST))
    except ARCHIVE_ERRORS as error:
        raise damaged_archive_error(archive, 0, error) from error
    return None


def content_digest(files: Mapping[str, str]) -> str:
    """The SHA-256 of a list of files, by name and in order, with the SHA-256 of each, as `sha256sum` prints them."""
    lines = "".join(f"{files[name]}  {name}\n" for name in sorted(files))
    return hashlib.sha256(lines.encode("utf-8", "surrogateescape")).hexdigest()  # a name need not be UTF-8


def require_content(manifest: Manifest, files: Mapping[str, str], archive: Path) -> None:
    """Reject an archive whose files (SHA-256 by path) are not those that were packed: tar has no checksums."""
    packed = {name: digest for name, digest in files.items() if name != MANIFEST_NAME}
    if manifest.content and content_digest(packed) != manifest.content:
        raise ExecutionEnvironmentError(
            f"the execution environment {archive} is damaged: its files differ from those that its manifest was "
            "written for; copy or pack it again"
        )


def require_compatible_host(needed: str, glibc: str, *, where: str) -> None:
    """Reject an environment or bundle whose platform, or minimum version of glibc, is not that of this machine."""
    here = host_platform()
    if needed != here:
        raise ExecutionEnvironmentError(
            f"{where} is for {needed}, this machine is {here}; build and pack it on a machine of this kind"
        )
    library, version = platform.libc_ver()
    if library == "glibc" and glibc and _older(version, glibc):
        raise ExecutionEnvironmentError(
            f"{where} needs glibc {glibc} or newer, this machine has {version}; "
            "build it on a machine with this glibc or an older one"
        )


def host_platform() -> str:
    """Operating system and processor of this machine, `linux-x86_64`."""
    return f"{platform.system().lower()}-{platform.machine().lower()}"


def _parse(archive: Path, data: bytes) -> Manifest:
    try:
        value = read_json(data)
        if value["format"] != _FORMAT:
            raise ExecutionEnvironmentError(
                f"the manifest of {archive} has format {value['format']}, this naiad reads {_FORMAT}; "
                "use a newer naiad, or pack the environment with this one"
            )
        return Manifest.from_json(value)
    except (KeyError, TypeError, ValueError) as error:
        raise ExecutionEnvironmentError(f"the manifest of {archive} is invalid ({error!r}); pack it again") from error


def _older(version: str, needed: str) -> bool:
    try:
        return Version(version) < Version(needed)
    except InvalidVersion:
        return False  # incomparable versions: the dynamic loader will name the missing symbol
