"""Chooses the artifacts of a model: the stub (the guest's program) and `triton_python_backend_utils.py`.

Both come from the same directory: the first one with both of them (PB src/python_be.cc). A stub in the model's own
directory then replaces the stub alone (PB src/stub_launcher.cc).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from naiad_stub.native.elf import ElfError, read_shared_object
from packaging.specifiers import SpecifierSet

from naiad.core.errors import Code, ResolutionError
from naiad.models.resolution.decision import (
    STUB_FILENAME,
    UTILS_FILENAME,
    Decision,
    GuestLayout,
    LinkedStub,
    SearchedPath,
)
from naiad.models.resolution.files import Files
from naiad.models.resolution.manifest import STUB_MANIFEST, read_stub_manifest

_EXECUTABLE_MAGIC = (
    b"\x7fELF",
    b"\xfe\xed\xfa\xce",  # Mach-O, 32 and 64 bit, both byte orders
    b"\xfe\xed\xfa\xcf",
    b"\xce\xfa\xed\xfe",
    b"\xcf\xfa\xed\xfe",
    b"\xca\xfe\xba\xbe",  # Mach-O universal binary
    b"MZ",
)
_MAGIC_SIZE = 4
_LIBPYTHON = re.compile(r"libpython(3\.\d+)\w*\.so")


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifacts:
    """The stub and utils of a model."""

    stub: Path
    utils_dir: Path
    requires_python: SpecifierSet
    requires_origin: str  # the manifest that requires Python versions; empty for a stub without one
    # The compiled stub that the reference would run, if it is known to which Python it is linked.
    linked: LinkedStub | None
    steps: tuple[Decision, ...]
    notices: tuple[str, ...]


def choose_artifacts(
    *, model_dir: Path, backend_dir: Path | None, python_dirs: tuple[Path, ...], default: GuestLayout, files: Files
) -> Artifacts:
    """Choose the stub and the utils; *backend_dir* is None for a model with its own code."""
    own = () if backend_dir is None else (backend_dir,)
    foreign: list[Path] = []
    utils_dir, pair_step = _choose_pair((*own, *python_dirs), default, files, foreign)
    stub, stub_step = _choose_stub(model_dir, utils_dir, files, foreign)
    linked = {path: _linked_python(path, files) for path in foreign}
    # The model's own stub was looked at last, and takes precedence.
    by_precedence = sorted(foreign, key=lambda path: path.parent != model_dir)
    required = read_stub_manifest(stub.parent, files) if stub.parent != default.artifacts_dir else None
    return Artifacts(
        stub=stub,
        utils_dir=utils_dir,
        requires_python=required or default.requires_python,
        requires_origin=str(stub.parent / STUB_MANIFEST) if required else "",
        steps=(pair_step, stub_step),
        linked=next((LinkedStub(path, linked[path]) for path in by_precedence if linked[path]), None),
        notices=tuple(_foreign_notice(path, linked[path]) for path in foreign),
    )


def is_compiled(path: Path, files: Files) -> bool:
    """Whether a file is a binary executable rather than a script."""
    try:
        return files.read(path, _MAGIC_SIZE).startswith(_EXECUTABLE_MAGIC)
    except OSError:
        return False


def _choose_pair(
    directories: tuple[Path, ...], default: GuestLayout, files: Files, foreign: list[Path]
) -> tuple[Path, Decision]:
    searched: list[SearchedPath] = []
    half: list[Path] = []
    for directory in directories:
        stub, utils = (_search(directory / name, files) for name in (STUB_FILENAME, UTILS_FILENAME))
        searched += (stub, utils)
        if stub.found and utils.found and not _is_foreign(stub.path, files, foreign):
            return directory, Decision("utils", str(directory), "stub and utils are both there", tuple(searched))
        if stub.found != utils.found:
            half.append(directory)
    stub = _search(default.artifacts_dir / STUB_FILENAME, files)
    if not stub.found:
        paths = " and ".join(map(str, (default.artifacts_dir, *directories)))
        raise ResolutionError(f"{STUB_FILENAME} is not found. Searched paths: {paths}", code=Code.NOT_FOUND)
    why = "the default: no other directory has both stub and utils for it"
    if half:
        why += f" ({', '.join(map(str, half))} has only one of them, and they are used together or not at all)"
    return default.artifacts_dir, Decision("utils", str(default.artifacts_dir), why, (*searched, stub))


def _choose_stub(model_dir: Path, pair_dir: Path, files: Files, foreign: list[Path]) -> tuple[Path, Decision]:
    own = _search(model_dir / STUB_FILENAME, files)
    if own.found and not _is_foreign(own.path, files, foreign):
        return own.path, Decision("stub", str(own.path), "the model's directory has a stub of its own", (own,))
    why = "the stub that belongs to the utils"
    if own.found:
        why += "; the one in the model's directory is compiled for another implementation"
    return pair_dir / STUB_FILENAME, Decision("stub", str(pair_dir / STUB_FILENAME), why, (own,))


def _is_foreign(stub: Path, files: Files, foreign: list[Path]) -> bool:
    """Whether a stub is a binary, and so belongs to the reference; if it is, add it to *foreign*."""
    if not is_compiled(stub, files):
        return False
    foreign.append(stub)
    return True


def _foreign_notice(stub: Path, python: str) -> str:
    linked = f". It is linked to Python {python}: a model for which nothing else is chosen needs this version"
    return (
        f"'{stub}' is a compiled stub of another implementation and is not used: naiad's own stub runs under any "
        f"interpreter it supports and needs no compiling{linked if python else ''}"
    )


def _linked_python(stub: Path, files: Files) -> str:
    try:
        needed = read_shared_object(files.read(stub)).needed
    except (OSError, ElfError):
        return ""
    found = next(filter(None, map(_LIBPYTHON.match, needed)), None)
    return "" if found is None else found[1]


def _search(path: Path, files: Files) -> SearchedPath:
    return SearchedPath(path, files.exists(path) and not files.is_dir(path))
