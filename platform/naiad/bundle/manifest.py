"""What a bundle says of itself: where it runs, what is in it, and the digest of each of its files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from naiad.environments.archives.archive_writer import Packed
from naiad.errors import BundleError

__all__ = ["HERE", "MANIFEST_NAME", "BundleManifest", "damage", "digests_of", "read_manifest"]

MANIFEST_NAME = "naiad-bundle.json"
HERE = "{bundle}"
"""Stands in flags for the folder the bundle was unpacked into."""
_FORMAT = 1
_LINK = "link:"


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleManifest:
    """What a bundle says of itself.

    Attributes:
        name: Its name.
        naiad: Version of the server in it.
        python: Version of the server's interpreter.
        platform: System and machine it is for, `linux-x86_64`.
        glibc: The oldest glibc that everything in it runs with, empty if nothing needs any.
        flags: The server's flags, with `{bundle}` where the bundle's own folder stands.
        models: Models, each with its versions.
        environments: Where each comes from, and its SHA-256, by path.
        files: SHA-256 of every file by path; of links where they point.
    """

    name: str
    naiad: str
    python: str
    platform: str
    glibc: str
    flags: tuple[str, ...]
    models: Mapping[str, list[int]]
    environments: Mapping[str, Mapping[str, str]]
    files: Mapping[str, str]

    def as_bytes(self) -> bytes:
        """The file's content."""
        return (json.dumps({"format": _FORMAT, **asdict(self)}, indent=1) + "\n").encode()

    def flags_in(self, folder: Path) -> list[str]:
        """The server's flags for a bundle that lies in *folder*."""
        return [flag.replace(HERE, str(folder)) for flag in self.flags]


def read_manifest(folder: Path) -> BundleManifest:
    """What the bundle unpacked in a folder says of itself.

    Raises:
        BundleError: If there is none, or it is of another version.
    """
    path = folder / MANIFEST_NAME
    try:
        value: dict[str, Any] = json.loads(path.read_bytes())
        if value.pop("format") != _FORMAT:
            raise BundleError(f"{path} is of another format than this naiad reads ({_FORMAT}); make the bundle again")
        return BundleManifest(**{**value, "flags": tuple(value["flags"])})
    except OSError as error:
        raise BundleError(f"{folder} is no bundle of naiad: {path}: {error.strerror or error}") from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BundleError(f"{path} is broken ({error!r}); make the bundle again") from error


def digests_of(members: Iterable[Packed]) -> dict[str, str]:
    """The digest of each member by name."""
    return {member.name: _digest(member) for member in members}


def _digest(member: Packed) -> str:
    if member.link is not None:
        return f"{_LINK}{member.link}"
    if member.source is not None:
        return _file_digest(member.source)
    return hashlib.sha256(member.read()).hexdigest()


def _file_digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def damage(folder: Path, manifest: BundleManifest) -> list[str]:
    """What of an unpacked bundle is not as it was made: missing and changed files, a line each."""
    found: list[str] = []
    for name, digest in manifest.files.items():
        path = folder / name
        try:
            now = f"{_LINK}{path.readlink()}" if path.is_symlink() else _file_digest(path)
        except OSError as error:
            found.append(f"{name}: {error.strerror or error}")
            continue
        if now != digest:
            found.append(f"{name}: changed")
    return found
