"""The manifest of a packed environment: what it is and where it runs, to be read without unpacking it.

It is the archive's first member, so that reading it costs one block of the archive.
"""

from __future__ import annotations

import json
import platform
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from packaging.version import InvalidVersion, Version

from naiad.environments.archives.extraction import damaged_archive_error
from naiad.environments.archives.formats import ARCHIVE_ERRORS, detect_format, iterate_members
from naiad.errors import ExecutionEnvironmentError

__all__ = [
    "MANIFEST_NAME",
    "Machine",
    "Manifest",
    "Package",
    "host_platform",
    "read_manifest",
    "require_compatible_host",
]

MANIFEST_NAME = "naiad-environment.json"
_FORMAT = 1
# A manifest lists some hundred packages; more than this is none of ours.
_LARGEST = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """One installed package.

    Attributes:
        name: Its name.
        version: Its version.
        digest: SHA-256 of what it consists of: of conda's archive, or of the list of files with their digests that
            an installer of wheels keeps. Empty where nothing of that is known.
        source: `python` or `conda`.
    """

    name: str
    version: str
    digest: str
    source: str


class Machine(Protocol):
    """What says for which machines something is."""

    @property
    def platform(self) -> str:
        """System and machine, `linux-x86_64`."""

    @property
    def glibc(self) -> str:
        """The oldest glibc that it runs with, empty if it needs none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What an archive says of the environment in it.

    Attributes:
        name: Of the recipe, empty without one: where an environment lay must not matter.
        made_from: `recipe`, `conda`, `venv` or `directory`.
        platform: System and machine, `linux-x86_64`.
        glibc: The oldest glibc that its compiled files run with, empty if none of them needs any.
        python: Version of its interpreter.
        abi: As in names of extension modules, `cpython-312-x86_64-linux-gnu`.
        packages: Everything installed, by name.
        files: How many members the archive has.
        size: Bytes of its content, unpacked.
        recipe: Digests of the recipe's files by name; empty without a recipe.
    """

    name: str
    made_from: str
    platform: str
    glibc: str
    python: str
    abi: str
    packages: tuple[Package, ...]
    files: int
    size: int
    recipe: dict[str, str]

    def as_bytes(self) -> bytes:
        """The file's content."""
        return (json.dumps({"format": _FORMAT, **asdict(self)}, indent=1) + "\n").encode()

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Manifest:
        """The reverse of `as_bytes`, once that is parsed.

        Raises:
            KeyError, TypeError, ValueError: If it is not what `as_bytes` writes.
        """
        fields = {name: value[name] for name in cls.__slots__}
        return cls(**{**fields, "packages": tuple(Package(**one) for one in value["packages"])})


def read_manifest(archive: Path) -> Manifest | None:
    """What an archive says of itself; None where it has no manifest, as those of conda-pack.

    Raises:
        ExecutionEnvironmentError: It cannot be read, or its manifest is of another version or broken.
    """
    try:
        for member, content in iterate_members(archive, detect_format(archive), lambda _: None):
            if member.name.removeprefix("./") != MANIFEST_NAME or content is None:
                return None
            return _parse(archive, content.read(_LARGEST))
    except ARCHIVE_ERRORS as error:
        raise damaged_archive_error(archive, 0, error) from error
    return None


def require_compatible_host(manifest: Machine, *, where: str) -> None:
    """Refuse what was made for other machines than this one.

    Raises:
        ExecutionEnvironmentError: Names both sides and what to do.
    """
    here = host_platform()
    if manifest.platform != here:
        raise ExecutionEnvironmentError(
            f"{where} is for {manifest.platform}, this machine is {here}; build and pack it on a machine of this kind"
        )
    library, version = platform.libc_ver()
    if library == "glibc" and manifest.glibc and _older(version, manifest.glibc):
        raise ExecutionEnvironmentError(
            f"{where} needs glibc {manifest.glibc} or newer, this machine has {version}; "
            "build it on a machine with this glibc or an older one"
        )


def host_platform() -> str:
    """System and machine of this host, `linux-x86_64`."""
    return f"{platform.system().lower()}-{platform.machine().lower()}"


def _parse(archive: Path, data: bytes) -> Manifest:
    try:
        value = json.loads(data)
        if value["format"] != _FORMAT:
            raise ExecutionEnvironmentError(
                f"the manifest of {archive} has format {value['format']}, this naiad reads {_FORMAT}; "
                "use a newer naiad, or pack the environment with this one"
            )
        return Manifest.from_json(value)
    except (KeyError, TypeError, ValueError) as error:
        raise ExecutionEnvironmentError(f"the manifest of {archive} is broken ({error!r}); pack it again") from error


def _older(version: str, needed: str) -> bool:
    try:
        return Version(version) < Version(needed)
    except InvalidVersion:
        return False  # what cannot be compared is left to the loader, which names the symbol
