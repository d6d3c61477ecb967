"""The manifest of a bundle: its platform, flags, models and environments, and the digest of each file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from naiad.core.errors import BundleError
from naiad.core.file_digest import file_digest
from naiad.core.foreign_json import read_json
from naiad.environments.archives.archive_writer import OutputMember

RUN = "run"  # name of the script that starts the server of an unpacked bundle
MANIFEST_NAME = "naiad-bundle.json"
HERE = "{bundle}"  # placeholder in flags for the folder that the bundle is unpacked into
_FORMAT = 1
_LINK = "link:"


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleManifest:
    """The manifest of a bundle."""

    name: str
    naiad: str
    python: str
    platform: str
    glibc: str  # oldest version of glibc that all files run with; empty if no file needs glibc
    flags: tuple[str, ...]  # the server's flags, with `{bundle}` in the place of the bundle's folder
    models: Mapping[str, list[int]]
    environments: Mapping[str, Mapping[str, str]]  # origin and SHA-256 of each environment, by path
    files: Mapping[str, str]  # SHA-256 of every file by path; the target of a link, after `link:`

    def as_bytes(self) -> bytes:
        return (json.dumps({"format": _FORMAT, **asdict(self)}, indent=1) + "\n").encode()

    def flags_in(self, folder: Path) -> list[str]:
        return [flag.replace(HERE, str(folder)) for flag in self.flags]


def read_manifest(folder: Path) -> BundleManifest:
    """The manifest of the bundle that is unpacked in a folder."""
    path = folder / MANIFEST_NAME
    try:
        value: dict[str, Any] = read_json(path.read_bytes())
        if value.pop("format") != _FORMAT:
            raise BundleError(f"cannot read {path}: its format is not {_FORMAT}; make the bundle again")
        return BundleManifest(**{**value, "flags": tuple(value["flags"])})
    except OSError as error:
        raise BundleError(f"cannot read the bundle in {folder}: {path}: {error.strerror or error}") from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BundleError(f"cannot read {path}: it is malformed ({error!r}); make the bundle again") from error


def digests_of(members: Iterable[OutputMember], environments: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """The value of `BundleManifest.files` for these members; *environments* has the digests of archives."""
    return {
        member.name: environments[member.name]["sha256"] if member.name in environments else _digest(member)
        for member in members
    }


def _digest(member: OutputMember) -> str:
    if member.link is not None:
        return f"{_LINK}{member.link}"
    if member.source is not None:
        return file_digest(member.source)
    return hashlib.sha256(member.read()).hexdigest()


def find_damage(folder: Path, manifest: BundleManifest) -> list[str]:
    """The missing and changed files of an unpacked bundle, one line each."""
    differences: list[str] = []
    for name, digest in manifest.files.items():
        path = folder / name
        try:
            actual = f"{_LINK}{path.readlink()}" if path.is_symlink() else file_digest(path)
        except OSError as error:
            differences.append(f"{name}: {error.strerror or error}")
            continue
        if actual != digest:
            differences.append(f"{name}: changed")
    return differences
