"""The TOML manifests of a stub and of a shared backend: `stub.toml` and `backend.toml`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from naiad.core.errors import ResolutionError
from naiad.core.toml import explain_toml_error, tomllib
from naiad.models.resolution.files import Files

BACKEND_MANIFEST = "backend.toml"
# Folder of a model repository with the repository's own backends; `naiad push` writes it.
REPOSITORY_BACKENDS = ".naiad/backends"
STUB_MANIFEST = "stub.toml"
STUB_PROTOCOL = 1  # version of the protocol between host and guest that this host implements

_VERSION = re.compile(r"\d+(\.\d+){0,2}")
_FULL_VERSION_PARTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendManifest:
    """The manifest of a shared backend."""

    path: Path
    requires_python: SpecifierSet | None = None
    environment: str = ""  # its default environment as written, relative to the backend's directory; empty for none
    # Names of files in a version's directory that declare its environment, in order of precedence; empty if models of
    # the backend bring none.
    environment_files: tuple[str, ...] = ()


def parse_python_version(text: str, origin: str, *, takes_path: bool = False) -> SpecifierSet:
    """Parse a required Python version: `3.10` is any 3.10.x, `3.10.13` that version only, `>=3.10,<3.12` a range."""
    text = text.strip()
    if _VERSION.fullmatch(text):
        exact = text.count(".") + 1 == _FULL_VERSION_PARTS
        return SpecifierSet(f"=={text}" if exact else f"=={text}.*")
    try:
        return SpecifierSet(text)
    except InvalidSpecifier:
        path = ', or the path of an interpreter or environment, as "/opt/conda"' if takes_path else ""
        raise ResolutionError(
            f'{origin}: \'{text}\' is not a version of Python: write a version as "3.10" or a range as ">=3.10,<3.12"'
            f"{path}"
        ) from None


def read_backend_manifest(directory: Path, files: Files) -> BackendManifest | None:
    """Read the manifest of a shared backend; None if it has none."""
    path = directory / BACKEND_MANIFEST
    if not files.exists(path):
        return None
    content = _read(path, files, {"requires-python", "environment", "environment-files"})
    required = content.get("requires-python")
    names = content.get("environment-files", [])
    if not isinstance(names, list) or not all(_is_inside(name) for name in names):
        raise ResolutionError(
            f"{path}: environment-files is {names!r}; write a list of names of files in the directory of a version"
        )
    return BackendManifest(
        path=path,
        requires_python=None if required is None else parse_python_version(str(required), f"{path}: requires-python"),
        environment=str(content.get("environment", "")),
        environment_files=tuple(names),
    )


def _is_inside(name: object) -> bool:
    """Whether a value of a manifest is a path that stays in the folder it is relative to."""
    return isinstance(name, str) and bool(name) and not name.startswith("/") and ".." not in name.split("/")


def read_stub_manifest(directory: Path, files: Files) -> SpecifierSet | None:
    """Read the Python versions that the stub in a directory supports; None without a manifest."""
    path = directory / STUB_MANIFEST
    if not files.exists(path):
        return None
    content = _read(path, files, {"protocol", "requires-python"})
    if content.get("protocol", STUB_PROTOCOL) != STUB_PROTOCOL:
        raise ResolutionError(
            f"{path}: the stub speaks protocol {content['protocol']}, this server {STUB_PROTOCOL}: take the stub "
            "that belongs to this version of naiad"
        )
    required = content.get("requires-python")
    return None if required is None else parse_python_version(str(required), f"{path}: requires-python")


def _read(path: Path, files: Files, known: set[str]) -> Mapping[str, object]:
    try:
        text = files.read(path).decode("utf-8-sig")
    except OSError as error:
        raise ResolutionError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ResolutionError(f"{path}: {error}") from error
    try:
        content: Mapping[str, object] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ResolutionError(f"{path}: {explain_toml_error(error, text)}") from error
    unknown = sorted(set(content) - known)
    if unknown:
        raise ResolutionError(f"{path}: unknown key '{unknown[0]}'; there are: {', '.join(sorted(known))}")
    return content
