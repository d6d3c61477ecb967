"""Chooses the artifacts of a model: the stub (the guest's program) and `triton_python_backend_utils.py`.

Both come from the same directory: the first one with both of them (PB src/python_be.cc). A stub in the model's own
directory then replaces the stub alone (PB src/stub_launcher.cc).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from packaging.specifiers import SpecifierSet

from naiad.errors import Code, ResolutionError
from naiad.resolution.decision import STUB_FILENAME, UTILS_FILENAME, Decision, GuestLayout, SearchedPath
from naiad.resolution.files import Files
from naiad.resolution.manifest import read_stub_manifest

__all__ = ["Artifacts", "choose_artifacts", "is_compiled"]

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifacts:
    """The stub and utils of a model.

    Attributes:
        stub: The guest's program.
        utils_dir: Directory of the utils.
        requires_python: Python versions that the stub supports.
        steps: The decisions.
        notices: Sentences about files that were found and not used.
    """

    stub: Path
    utils_dir: Path
    requires_python: SpecifierSet
    steps: tuple[Decision, ...]
    notices: tuple[str, ...]


def choose_artifacts(
    *, model_dir: Path, backend_dir: Path | None, python_dirs: tuple[Path, ...], default: GuestLayout, files: Files
) -> Artifacts:
    """Choose the stub and the utils.

    Args:
        model_dir: The model's directory; a stub in it takes precedence.
        backend_dir: Directory of a shared backend; None for a model with its own code.
        python_dirs: Directories of backend `python`, where the reference installs its default artifacts.
        default: The guest that ships with naiad.
        files: The file system.

    Raises:
        ResolutionError: If there is no stub.
    """
    own = () if backend_dir is None else (backend_dir,)
    notices: list[str] = []
    utils_dir, pair_step = _choose_pair((*own, *python_dirs), default, files, notices)
    stub, stub_step = _choose_stub(model_dir, utils_dir, files, notices)
    return Artifacts(
        stub=stub,
        utils_dir=utils_dir,
        requires_python=read_stub_manifest(stub.parent, files) or default.requires_python,
        steps=(pair_step, stub_step),
        notices=tuple(notices),
    )


def is_compiled(path: Path, files: Files) -> bool:
    """Whether a file is a binary executable rather than a script."""
    try:
        return files.read(path, _MAGIC_SIZE).startswith(_EXECUTABLE_MAGIC)
    except OSError:
        return False


def _choose_pair(
    directories: tuple[Path, ...], default: GuestLayout, files: Files, notices: list[str]
) -> tuple[Path, Decision]:
    """The first directory with both files whose stub is a script."""
    searched: list[SearchedPath] = []
    half: list[Path] = []
    for directory in directories:
        stub, utils = (_search(directory / name, files) for name in (STUB_FILENAME, UTILS_FILENAME))
        searched += (stub, utils)
        if stub.found and utils.found and not _is_foreign(stub.path, files, notices):
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


def _choose_stub(model_dir: Path, pair_dir: Path, files: Files, notices: list[str]) -> tuple[Path, Decision]:
    """The model's own stub, else the one beside the utils."""
    own = _search(model_dir / STUB_FILENAME, files)
    if own.found and not _is_foreign(own.path, files, notices):
        return own.path, Decision("stub", str(own.path), "the model's directory has a stub of its own", (own,))
    why = "the stub that belongs to the utils"
    if own.found:
        why += "; the one in the model's directory is compiled for another implementation"
    return pair_dir / STUB_FILENAME, Decision("stub", str(pair_dir / STUB_FILENAME), why, (own,))


def _is_foreign(stub: Path, files: Files, notices: list[str]) -> bool:
    """Whether a stub is a binary, and so belongs to the reference; if it is, add a notice."""
    if not is_compiled(stub, files):
        return False
    notices.append(
        f"'{stub}' is a compiled stub of another implementation and is not used: naiad's own stub runs under any "
        "interpreter it supports and needs no compiling"
    )
    return True


def _search(path: Path, files: Files) -> SearchedPath:
    return SearchedPath(path, files.exists(path) and not files.is_dir(path))
